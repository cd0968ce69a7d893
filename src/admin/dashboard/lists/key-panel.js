/** The panel of one key: what a newcomer waits, its latest requests, and other limits for a while. */
import {
  byId,
  count,
  duration,
  keyName,
  levelText,
  list,
  make,
  moment,
  newcomerText,
  perSecond,
  put,
  timeOfDay,
} from '../format.js'
import { ask, scope } from '../stream.js'
import { askReset } from './reset.js'
import { rowOf } from './tables.js'

/** How often an open panel asks for its key, in ms. */
const PANEL_EVERY = 1_000

/** The key that is shown: { bucket, key }. */
let panelKey
let panelTimer

const pathOf = ({ bucket, key }) => `buckets/${encodeURIComponent(bucket)}/${encodeURIComponent(key)}`

/** Opens the panel of a key, and lets the picture follow it. */
export function askKey(bucket, key) {
  panelKey = { bucket, key }
  scope.watch(panelKey)
  put(byId('key-title'), keyName(key))
  put(byId('key-bucket'), bucket)
  put(byId('key-note'), '')
  byId('key-facts').hidden = true
  byId('override').reset()
  if (!byId('key-panel').open) byId('key-panel').showModal()
  void refreshPanel()
}

async function refreshPanel() {
  clearTimeout(panelTimer)
  const asked = panelKey
  try {
    const answer = await ask(pathOf(asked))
    if (asked !== panelKey || !byId('key-panel').open) return
    if (answer.ok) fillPanel(await answer.json())
    else put(byId('key-state'), `No answer: status ${answer.status}`)
  } catch {
    put(byId('key-state'), 'No answer; trying again')
  }
  if (asked === panelKey && byId('key-panel').open) panelTimer = setTimeout(refreshPanel, PANEL_EVERY)
}

function blockOf({ blockedMs }) {
  if (blockedMs === undefined) return ''
  return blockedMs < 0 ? ' · blocked until empty' : ` · blocked ${duration(blockedMs)}`
}

function fillPanel(state) {
  const { hash, tier, level, capacity, rate, waiting, inFlight, routes, recent, override } = state
  byId('key-facts').hidden = false
  put(byId('key-state'), `${hash} in the log${tier === undefined ? '' : ` · tier ${tier}`}${blockOf(state)}`)
  const figures = {
    level: levelText(level, capacity),
    rate: perSecond(rate),
    waiting: count(waiting),
    'in-flight': count(inFlight),
    newcomer: newcomerText(state),
  }
  for (const [name, text] of Object.entries(figures)) put(byId(`key-${name}`), text)
  list(byId('key-routes'), Object.entries(routes), {
    nameOf: ([name]) => name,
    create: () => make('li'),
    fill: (element, [name, outlook]) => put(element, routeText(name, outlook)),
  })
  put(byId('override-state'), override === undefined ? '' : overrideText(override))
  byId('override-end').hidden = override === undefined
  fillRecent(recent)
}

function routeText(name, outlook) {
  const { heldBy, rejected, assumed } = outlook
  const idle = assumed.length === 0 ? '' : `; ${assumed.join(', ')} taken as idle`
  const held = heldBy === undefined ? '' : `; ${heldBy.join(', ')}`
  if (rejected === undefined) return `${name}: a newcomer waits ${newcomerText(outlook)}${held}${idle}`
  const { reason, bucket, retryAfterMs } = rejected
  const again = retryAfterMs === undefined ? '' : `, again in ${duration(retryAfterMs)}`
  return `${name}: a newcomer is rejected (${reason}${bucket && ` of ${bucket}`}${again})${idle}`
}

function overrideText({ rate, capacity, until }) {
  const limits = [
    rate !== undefined && `rate ${perSecond(rate)}`,
    capacity !== undefined && `capacity ${count(capacity)}`,
  ].filter(Boolean)
  return `Overridden until ${moment(until)}: ${limits.join(', ')}.`
}

/** The latest first. */
function fillRecent(recent) {
  const create = () => {
    const parts = rowOf('key', [['route'], ['outcome'], ['held', 'n'], ['answered in', 'n']])
    parts.row.parts = parts
    return parts.row
  }
  const fill = ({ parts }, { at, route, outcome, status, waitMs, upstreamMs, reason }) => {
    put(parts.name, timeOfDay(at))
    const ended = `${reason === undefined ? outcome : `${outcome}: ${reason}`}, ${status}`
    const texts = [route, ended, duration(waitMs), upstreamMs === undefined ? '–' : duration(upstreamMs)]
    for (const [index, text] of texts.entries()) put(parts.cells[index], text)
  }
  byId('recent').hidden = recent.length === 0
  byId('recent-none').hidden = recent.length > 0
  const latest = recent.map((each, place) => ({ ...each, place })).reverse()
  const nameOf = ({ at, place }) => `${at} ${place}`
  list(byId('recent').tBodies[0], latest, { nameOf, create, fill })
}

/** Sends a change of the limits. The server says what is wrong with it. */
async function setOverride(change) {
  const asked = panelKey
  try {
    const answer = await ask(pathOf(asked), {
      method: 'PUT',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(change),
    })
    const said = answer.ok ? '' : `${answer.status}: ${(await answer.json()).detail}`
    if (asked === panelKey) put(byId('key-note'), said)
  } catch {
    put(byId('key-note'), 'No answer')
  }
  void refreshPanel()
}

byId('override').addEventListener('submit', event => {
  event.preventDefault()
  const [rate, capacity, until] = ['rate', 'capacity', 'until'].map(name => byId(`override-${name}`).value.trim())
  setOverride({ ...(rate && { rate }), ...(capacity && { capacity: Number(capacity) }), until })
})
byId('override-end').addEventListener('click', () => setOverride({ until: 'now' }))
byId('key-picture').addEventListener('click', () => {
  byId('key-panel').close()
  byId('stage').scrollIntoView()
  byId('all-keys').focus()
})
byId('key-close').addEventListener('click', () => byId('key-panel').close())
byId('key-reset').addEventListener('click', () => askReset(panelKey.bucket, panelKey.key))
byId('key-panel').addEventListener('close', () => clearTimeout(panelTimer))
