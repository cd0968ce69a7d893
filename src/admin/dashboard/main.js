/** The dashboard: receives snapshots and shows them. */
import { fillChooser, fillFocus, fillNotice, WINDOW } from './focus.js'
import { byId, count, duration, perSecond, put, timeOfDay } from './format.js'
import { History, ServerClock } from './history.js'
import { askReset } from './reset.js'
import { halt, stage } from './stage.js'
import { connect, scope, token } from './stream.js'
import { fillDryRun, fillKeys, fillMembers, fillRoutes, fillUpstreams } from './tables.js'

/** The time over which the rates of instances are counted, in ms. */
const RATE_OVER = 5_000

/** How often the buckets are sorted, in ms. */
const SORT_EVERY = 5_000

const clock = new ServerClock()
const histories = new Map()
/** Totals of all routes. Only `rejected` is used. */
let totals = new History()

let snapshot
/** Earlier snapshots of all instances, at most `RATE_OVER` old: { at, members }. */
let earlier = []
/** The user has chosen what to see. */
let hasChosenScope = false
let lostSince
let chosen
let order = []
let orderedAt = -Infinity

/** The figures of all instances and of one are not comparable. */
function forget() {
  histories.clear()
  clock.reset()
  totals = new History()
  earlier = []
}

function receive(latest) {
  if (snapshot !== undefined && isOfAll(latest) !== isOfAll(snapshot)) forget()
  if (snapshot !== undefined && latest.uptime < snapshot.uptime) clock.reset()
  clock.sync(latest.at)
  snapshot = latest
  lostSince = undefined
  earlier = [
    ...earlier.filter(({ at }) => at >= latest.at - RATE_OVER),
    { at: latest.at, members: latest.members ?? [] },
  ]
  const names = new Set(latest.buckets.map(({ name }) => name))
  for (const name of histories.keys()) if (!names.has(name)) histories.delete(name)
  for (const bucket of latest.buckets) {
    if (!histories.has(bucket.name)) histories.set(bucket.name, new History())
    histories.get(bucket.name).add(latest.at, bucket)
  }
  const rejected = latest.routes.reduce((sum, { outcomes }) => sum + outcomes.rejected, 0)
  totals.add(latest.at, { offered: 0, released: 0, rejected, rate: 0, fullest: [] })
  render()
  if (!hasChosenScope && !scope.isAll && latest.store.instances > latest.processes) scope.set(true)
}

const isOfAll = ({ members }) => members !== undefined

/** Sorts the buckets, the busiest first. It rounds rates to powers of two, so similar ones keep their places. */
function arrange() {
  const names = snapshot.buckets.map(({ name }) => name)
  const isKnown = order.length === names.length && names.every(name => order.includes(name))
  if (isKnown && Math.abs(snapshot.at - orderedAt) < SORT_EVERY) return
  const size = (name, figure) => Math.round(Math.log2(1 + histories.get(name).rate(figure, WINDOW)))
  order = names.toSorted((a, b) => size(b, 'offered') - size(a, 'offered') || size(b, 'rejected') - size(a, 'rejected'))
  orderedAt = order.some(name => size(name, 'offered') > 0) ? snapshot.at : -Infinity
}

function focused() {
  const find = name => snapshot?.buckets.find(bucket => bucket.name === name)
  return find(chosen) ?? find(order[0])
}

function render() {
  arrange()
  const bucket = focused()
  const { draining, store, upstreams, wait, lateness } = snapshot
  const isUpstreamPaused = upstreams.some(({ pausedMs }) => pausedMs > 0)
  if (draining) state('draining', 'Shutting down: accepts no new requests')
  else if (!store.ready) state('draining', `Store ${store.type} unreachable`)
  else if (isUpstreamPaused) state('paused', 'Upstream paused')
  else state('live', 'Live')
  byId('live').classList.remove('stale')
  byId('live').hidden = false
  byId('token-form').hidden = true
  fillScope()
  put(byId('about'), about(snapshot))
  fillNotice(snapshot)

  for (const id of ['summary', 'chooser', 'stage', 'keys-card']) byId(id).hidden = bucket === undefined
  if (bucket !== undefined) {
    const buckets = order.map(name => snapshot.buckets.find(each => each.name === name))
    fillChooser(buckets, bucket, name => {
      chosen = name
      // While the connection is lost, the page shows the last snapshot.
      if (lostSince === undefined) render()
    })
    fillFocus(bucket, histories.get(bucket.name), snapshot)
    fillKeys(bucket, askReset)
  }
  for (const each of ['p50', 'p90', 'p99', 'max']) {
    put(byId(`wait-${each}`), wait.count === 0 ? '–' : duration(wait[each]))
  }
  put(byId('lateness'), lateness.count === 0 ? '–' : duration(lateness.p99))
  put(byId('queued'), count(snapshot.queued))
  put(byId('in-flight'), count(snapshot.inFlight))
  put(byId('rejects'), perSecond(Math.max(0, totals.rate('rejected', WINDOW))))
  fillMembers(snapshot.members ?? [], earlier[0].members, (snapshot.at - earlier[0].at) / 1_000)
  fillRoutes(snapshot.routes)
  fillUpstreams(upstreams)
  fillDryRun(snapshot.dryRun)
  const isTapShut = upstreams.length > 0 && upstreams.every(({ pausedMs }) => pausedMs > 0)
  stage(bucket && { bucket, history: histories.get(bucket.name), clock, isTapShut })
}

function about({ uptime, store, processes, members }) {
  const parts = [`up ${duration(uptime * 1_000)}`, `store ${store.type}`]
  if (processes > 1 && members === undefined) parts.push(`${processes} processes`)
  if (store.instances > 1) parts.push(`${store.instances} instances`)
  return parts.join(' · ')
}

function fillScope() {
  const { store, members = [], processes } = snapshot
  const isOne = !scope.isAll && store.instances <= processes
  byId('scope').hidden = isOne && !hasChosenScope
  byId('scope').setAttribute('aria-pressed', String(scope.isAll))
  put(byId('members-count'), `${members.length} on the store`)
}

function state(name, text) {
  byId('status').dataset.state = name
  put(byId('status'), text)
}

function start() {
  connect({
    snapshot: receive,
    lost() {
      lostSince ??= Date.now()
      halt()
      const what = snapshot === undefined ? 'No answer' : 'Connection lost'
      state('lost', `${what} since ${timeOfDay(lostSince)}; trying again`)
      byId('live').classList.add('stale')
    },
    refused(hadToken) {
      halt()
      state('refused', 'Token needed')
      byId('live').hidden = true
      byId('notice').hidden = true
      byId('pause').hidden = true
      byId('token-form').hidden = false
      put(byId('token-error'), hadToken ? 'The server does not know this token.' : '')
      byId('token').focus()
    },
  })
}

byId('scope').addEventListener('click', () => {
  hasChosenScope = true
  scope.set(!scope.isAll)
})

byId('token-form').addEventListener('submit', event => {
  event.preventDefault()
  token.set(byId('token').value)
  byId('token').value = ''
  put(byId('token-error'), '')
  state('connecting', 'Connecting')
  start()
})
start()
