/** Stored requests: how many wait, and the latest dead letters with what failed. */
import { byId, count, duration, make, put } from './format.js'
import { fillTable, toast } from './lists.js'
import { load } from './stream.js'

/** How often they are asked for, in ms. They are counted as often. */
const EVERY = 10_000
let askedAt = -Infinity

/** @param routes of the snapshot. The card is hidden if none of them stores requests */
export async function fillDeliveries(routes) {
  const areUsed = routes.some(({ delivers }) => delivers)
  byId('deliveries-card').hidden = !areUsed
  if (!areUsed || performance.now() - askedAt < EVERY) return
  askedAt = performance.now()
  const { value } = await load('deliveries?state=dead&counts')
  if (value) show(value)
}

function show({ counts, deliveries }) {
  const byRoute = [...new Set(counts.map(({ route }) => route))].map(route => {
    const of = state => counts.find(each => each.route === route && each.state === state)
    return { route, waiting: of('waiting'), dead: of('dead') }
  })
  const sum = state => counts.reduce((all, each) => (each.state === state ? all + each.count : all), 0)
  put(byId('deliveries-count'), `${count(sum('waiting'))} waiting, ${count(sum('dead'))} dead`)
  fillTable('deliveries', byRoute, {
    nameOf: ({ route }) => route,
    textOf: ({ route }) => route,
    cellsOf: ({ waiting, dead }) => {
      return [count(waiting?.count ?? 0), waiting === undefined ? '–' : duration(waiting.age), count(dead?.count ?? 0)]
    },
  })
  fillTable('dead', deliveries, {
    nameOf: ({ id }) => id,
    textOf: ({ id }) => id,
    isText: true,
    cellsOf: ({ route, attempts, error }) => [route, count(attempts), error?.detail ?? error?.title ?? ''],
    finish(parts, { id }) {
      if (parts.actions !== undefined) return
      parts.actions = [
        action(parts, id, { text: 'Retry', method: 'POST', path: `deliveries/${id}/retry`, done: 'is sent again' }),
        action(parts, id, { text: 'Delete', method: 'DELETE', path: `deliveries/${id}`, done: 'is deleted' }),
      ]
    },
  })
}

function action({ cells }, id, { text, method, path, done }) {
  const button = cells[3].appendChild(make('button', '', text))
  button.type = 'button'
  button.setAttribute('aria-label', `${text} ${id}`)
  button.onclick = async () => {
    const { fault } = await load(path, { method, headers: { 'content-type': 'application/json' } })
    toast(fault === undefined ? `${id} ${done}` : `${id}: ${fault}`)
    askedAt = -Infinity
  }
  return button
}
