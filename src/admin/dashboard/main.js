/** The dashboard: receives snapshots and shows them. */
import { showHour } from './charts.js'
import { fillDeliveries } from './deliveries.js'
import { fillChooser, fillFocus, fillNotice, WINDOW } from './focus.js'
import { byId, colour, count, duration, list, make, perSecond, put, timeOfDay } from './format.js'
import { History, ServerClock } from './history.js'
import {
  askKey,
  askOverrides,
  askReset,
  fillDryRun,
  fillKeys,
  fillMembers,
  fillRoutes,
  fillUpstreams,
} from './lists.js'
import { halt, stage } from './stage.js'
import { connect, scope, token } from './stream.js'

/** The time over which the rates of instances are counted, in ms. */
const RATE_OVER = 5_000
/** A trouble that comes and goes, as of an upstream that is full at times, is shown for so long, in ms. */
const TROUBLE_STAYS = 2_000
/** A p99 of lateness that is worth a look, in ms. */
const LATE = 5
/** How often the buckets are sorted, in ms. */
const SORT_EVERY = 5_000
const clock = new ServerClock()
const histories = new Map()
let totals = new History()
let snapshot
/** Earlier snapshots of all instances, at most `RATE_OVER` old: { at, members }. */
let earlier = []
let hasChosenScope = false
let lostSince
let chosen
/** The key that the user has chosen, with what the page has seen of it: { bucket, key, history }. */
let chosenKey
let troubles = { at: -Infinity, texts: [] }
let order = []
let orderedAt = -Infinity

/** The figures of all instances and of one are not comparable. */
function forget() {
  histories.clear()
  clock.reset()
  totals = new History()
  earlier = []
  chosenKey = undefined
  troubles = { at: -Infinity, texts: [] }
}

function receive(latest) {
  if (snapshot !== undefined && scopeOf(latest) !== scopeOf(snapshot)) forget()
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
  followKey(latest)
  const rejected = latest.routes.reduce((sum, { outcomes }) => sum + outcomes.rejected, 0)
  totals.add(latest.at, { offered: 0, released: 0, rejected, rate: 0, fullest: [] })
  render()
  if (!scope.isAll && isForAll(latest)) showAll()
}

/** Whether to show all instances: nobody has chosen, and there are several, or it is of a key, of which the server tells what all know. */
function isForAll(latest) {
  const hasSeveral = isOfOthers(latest) || latest.processes > 1
  return (!hasChosenScope && hasSeveral) || (scope.watched !== undefined && scope.instance !== undefined)
}

/** One key of a bucket as a bucket with one key. */
const alone = ({ instance, focus, offered, released, rejected }) => {
  const { rate, capacity, waiting } = instance
  const limits = { rate, configured: rate, capacity }
  return { ...limits, keys: 1, offered, released, rejected, waiting, fullest: [instance], focus }
}

function followKey({ at, watched }) {
  if (watched === undefined) {
    chosenKey = undefined
    return
  }
  const { bucket, instance } = watched
  if (chosenKey?.bucket !== bucket || chosenKey.key !== instance.key)
    chosenKey = { bucket, key: instance.key, history: new History() }
  chosenKey.history.add(at, alone(watched))
}

function showBucket(name) {
  chosen = name
  scope.watch(undefined)
  // While the connection is lost, the page shows the last snapshot.
  if (lostSince === undefined) render()
}

/** Whose figures a snapshot has: of this program, of all instances, or of one by its name. */
const scopeOf = ({ members, shown }) => shown ?? (members === undefined ? '' : '/all')

/** Whether the store has instances besides the processes of this program. */
const isOfOthers = ({ store, processes, members }) =>
  members?.some(({ isHere }) => !isHere) || store.instances > (members?.length ?? processes)

const showAll = () => scope.set({ isAll: true, isOfOthers: isOfOthers(snapshot) })

/** Sorts the buckets, the busiest first. It rounds rates to powers of two, so similar ones keep their places. */
function arrange() {
  const names = snapshot.buckets.map(({ name }) => name)
  const isKnown = order.length === names.length && names.every(name => order.includes(name))
  if (isKnown && Math.abs(snapshot.at - orderedAt) < SORT_EVERY) return
  const size = (name, ...figures) =>
    Math.round(Math.log2(1 + Math.max(...figures.map(figure => histories.get(name).rate(figure, WINDOW)))))
  const busy = name => size(name, 'offered', 'released')
  order = names.toSorted((a, b) => busy(b) - busy(a) || size(b, 'rejected') - size(a, 'rejected'))
  orderedAt = order.some(name => busy(name) > 0) ? snapshot.at : -Infinity
}

/** What the pictures show: `bucket`, its `history`, and whether it is one key of it. Undefined: there is no bucket. */
function focused() {
  const find = name => snapshot?.buckets.find(bucket => bucket.name === name)
  const ofKey = scope.watched && chosenKey && find(chosenKey.bucket)
  if (ofKey) return { bucket: { ...ofKey, ...alone(snapshot.watched) }, history: chosenKey.history, isChosen: true }
  const bucket = find(chosen) ?? find(order[0])
  return bucket && { bucket, history: histories.get(bucket.name), isChosen: false }
}

function render() {
  arrange()
  const focus = focused()
  const name = focus?.bucket.name
  const { draining, upstreams } = snapshot
  const isTroubled = fillTroubles(snapshot)
  if (draining) state('draining', 'Shutting down: accepts no new requests')
  else if (isTroubled) state('trouble', 'Something is wrong')
  else state('live', 'Live')
  byId('live').classList.remove('stale')
  byId('live').hidden = false
  byId('token-form').hidden = true
  fillScope()
  put(byId('about'), about(snapshot))
  fillNotice(snapshot)

  for (const id of ['summary', 'chooser', 'stage', 'hour-bucket-card', 'keys-card'])
    byId(id).hidden = focus === undefined
  if (focus !== undefined) {
    const buckets = order.map(each => snapshot.buckets.find(({ name }) => name === each))
    fillChooser(buckets, focus.bucket, showBucket)
    fillFocus({ ...focus, isTroubled }, snapshot)
    fillKeys(
      buckets.find(each => each.name === name),
      { open: askKey, reset: askReset, shown: focus.isChosen ? chosenKey.key : undefined },
    )
  }
  fillFigures(snapshot, isTroubled)
  fillMembers(snapshot, earlier[0], member => {
    hasChosenScope = true
    const isShown = member.name === scope.instance
    if (isShown) showAll()
    else {
      scope.watched = undefined
      scope.set({ instance: member.name, isOfOthers: !member.isHere })
    }
  })
  showHour(name)
  fillRoutes(snapshot.routes)
  fillUpstreams(upstreams)
  void fillDeliveries(snapshot.routes)
  fillDryRun(snapshot.dryRun, askKey)
  void askOverrides()
  const isShut = ({ pausedMs, probeMs }) => pausedMs > 0 || probeMs !== undefined
  const isTapShut = upstreams.length > 0 && upstreams.every(isShut)
  stage(focus && { ...focus, clock, isTapShut })
}

/** Says what is wrong, on top of everything else. Returns whether anything is. */
function fillTroubles({ at, troubles: texts = [] }) {
  if (texts.length > 0 || Math.abs(at - troubles.at) > TROUBLE_STAYS) troubles = { at, texts }
  byId('troubles').hidden = troubles.texts.length === 0
  list(byId('troubles').firstChild, [...troubles.texts.entries()], {
    nameOf: ([place]) => place,
    create: () => make('li'),
    fill: (element, [, text]) => put(element, text),
  })
  return troubles.texts.length > 0
}

function fillFigures({ upstreams, wait, lateness, queued, oldestMs, inFlight }, isTroubled) {
  for (const each of ['p50', 'p90', 'p99', 'max'])
    put(byId(`wait-${each}`), wait.count === 0 ? '–' : duration(wait[each]))
  const rejects = Math.max(0, totals.rate('rejected', WINDOW))
  const isHeld = queued > 0 && isTroubled
  const isSlow = upstreams.some(({ isFull, silent }) => isFull || silent)
  figure('lateness', lateness.count === 0 ? '–' : duration(lateness.p99), lateness.p99 > LATE && 'warn')
  figure('queued', count(queued), isHeld && 'bad')
  figure('oldest', oldestMs === undefined ? '' : `the oldest for ${duration(oldestMs)}`, isHeld && 'bad')
  figure('in-flight', count(inFlight), isSlow && 'warn')
  figure('rejects', perSecond(rejects), rejects > 0 && 'warn')
}

/** @param tone the class of its colour. False: it has none */
function figure(id, text, tone) {
  put(byId(id), text)
  colour(byId(id), tone)
}

function about({ uptime, store, processes, members, shown }) {
  const parts = [
    ...(shown === undefined ? [] : [`${shown} alone`]),
    `up ${duration(uptime * 1_000)}`,
    `store ${store.type}`,
  ]
  if (processes > 1 && members === undefined) parts.push(`${processes} processes`)
  if (store.instances > 1) parts.push(`${store.instances} instances`)
  return parts.join(' · ')
}

function fillScope() {
  const { store, members = [], processes } = snapshot
  const isOne = !scope.isAll && store.instances <= processes
  byId('scope').hidden = isOne && processes === 1 && !hasChosenScope
  byId('scope').setAttribute('aria-pressed', String(scope.isAll))
  put(byId('members-count'), store.type === 'memory' ? `${members.length} processes` : `${members.length} on the store`)
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
      byId('troubles').hidden = true
      byId('pause').hidden = true
      byId('token-form').hidden = false
      put(byId('token-error'), hadToken ? 'The server does not know this token.' : '')
      byId('token').focus()
    },
  })
}

byId('scope').addEventListener('click', () => {
  hasChosenScope = true
  if (scope.isAll) scope.set({})
  else showAll()
})

byId('all-keys').addEventListener('click', () => showBucket(chosenKey.bucket))

byId('token-form').addEventListener('submit', event => {
  event.preventDefault()
  token.set(byId('token').value)
  byId('token').value = ''
  put(byId('token-error'), '')
  state('connecting', 'Connecting')
  start()
})
start()
