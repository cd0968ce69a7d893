/**
 * Reads a history and says which promises it breaks. It knows nothing but the history: no code of the product, and none of the run.
 *
 * Each rule names its place in docs/semantics.md or docs/scaling.md. Spans in which a rule does not hold, for instance while shares of the
 * rate are in force without the store, are cut out by `calmSpans`, with the time that the documents give for recovery.
 */

import { worstBurst } from '../instances/spacing.js'
import type {
  ArriveEntry,
  AssumedEntry,
  DecideEntry,
  EndEntry,
  FaultEntry,
  FaultKind,
  History,
  ReleaseEntry,
} from './history.js'

export interface Problem {
  readonly rule: string
  readonly text: string
}

/** Of a rule that allows some: how often it was put to the test, and how often it failed. */
export interface Counted {
  returns: number
  refusedReturns: number
  readonly refused: string[]
}

export interface Verdict {
  readonly problems: readonly Problem[]
  readonly counted: Counted
}

interface Request extends ArriveEntry {
  decide: DecideEntry | undefined
  releasedAt: number | undefined
  /** When it was sent again. */
  readonly resentAt: number[]
  end: EndEntry | undefined
}

interface Limits {
  readonly from: number
  readonly rate: number
  readonly capacity: number
  readonly burst: number
}

interface Span {
  readonly from: number
  readonly to: number
}

interface Seen {
  readonly assumed: AssumedEntry
  readonly faults: readonly FaultEntry[]
  readonly requests: readonly Request[]
  /** By bucket name and key, each with those that pass it. */
  readonly byBucket: ReadonlyMap<string, BucketSeen>
  readonly from: number
  readonly to: number
  /** How many instances there were, at most. */
  readonly most: number
  readonly problems: Problem[]
  readonly counted: Counted
}

interface BucketSeen {
  readonly name: string
  readonly key: string
  readonly place: number
  readonly requests: Request[]
  /** In the order of time. */
  readonly limits: readonly Limits[]
}

export function check(history: History): Verdict {
  const seen = read(history)
  for (const rule of [
    oneEnd,
    inOrder,
    withinRate,
    exactCapacity,
    noneInVain,
    neverAboveCapacity,
    exactlyCapacityAtOnce,
    noGap,
    wholeRate,
    told,
    atRest(history),
    metricsAgree(history),
  ])
    rule(seen)
  const { problems, counted } = seen
  return { problems, counted }
}

/** ms before and after a fault in which a rule does not hold. */
type Margins = Partial<Record<FaultKind, { readonly before?: number; readonly after: number }>>

function calmSpans({ faults, from, to }: Seen, margins: Margins): Span[] {
  const spans: Span[] = []
  let begin = from
  const bad = faults
    .flatMap(({ kind, at, until }) => {
      const margin = margins[kind]
      return margin === undefined ? [] : [{ from: at - (margin.before ?? 0), to: until + margin.after }]
    })
    .sort((one, other) => one.from - other.from)
  for (const fault of bad) {
    if (fault.from > begin) spans.push({ from: begin, to: fault.from })
    begin = Math.max(begin, fault.to)
  }
  if (to > begin) spans.push({ from: begin, to })
  return spans
}

function read(history: History): Seen {
  const problems: Problem[] = []
  const requests = requestsOf(history, problems)
  const assumed = history.find(entry => entry.what === 'assumed')!
  const faults = history.filter(entry => entry.what === 'fault')
  return {
    ...{ assumed, faults, requests, problems },
    most: assumed.instances + faults.filter(({ kind }) => kind === 'join').length,
    byBucket: bucketsOf(history, assumed, requests),
    from: assumed.at,
    to: history.at(-1)!.at,
    counted: { returns: 0, refusedReturns: 0, refused: [] },
  }
}

/** Each request with what became of it: nothing comes twice, and nothing after its end. */
function requestsOf(history: History, problems: Problem[]): Request[] {
  const requests = new Map<number, Request>()
  for (const entry of history) {
    if (entry.what === 'arrive')
      requests.set(entry.request, { ...entry, decide: undefined, releasedAt: undefined, resentAt: [], end: undefined })
    else if (entry.what === 'decide' || entry.what === 'release' || entry.what === 'end')
      follow(requests.get(entry.request)!, entry, problems)
  }
  return [...requests.values()]
}

function follow(request: Request, entry: DecideEntry | ReleaseEntry | EndEntry, problems: Problem[]): void {
  if (entry.what === 'release' && entry.again) return void request.resentAt.push(entry.at)
  const before = entry.what === 'release' ? request.releasedAt : request[entry.what]
  const text = `request ${entry.request}: ${entry.what} at ${entry.at}`
  if (before !== undefined) problems.push({ rule: 'one end', text: `${text}, once more` })
  if (request.end !== undefined && entry.what !== 'end')
    problems.push({ rule: 'one end', text: `${text}, after its end` })
  if (entry.what === 'release') request.releasedAt = entry.at
  else Object.assign(request, { [entry.what]: entry })
}

function bucketsOf(history: History, { stack }: AssumedEntry, requests: readonly Request[]): Map<string, BucketSeen> {
  const found = new Map<string, BucketSeen>()
  for (const request of requests) {
    for (const [place, name] of stack.entries()) {
      const key = request.keys[place]!
      const id = `${name} ${key}`
      const known = found.get(id) ?? { name, key, place, requests: [], limits: limitsOf(history, name, key) }
      found.set(id, known)
      known.requests.push(request)
    }
  }
  return found
}

function limitsOf(history: History, name: string, key: string): Limits[] {
  return history.flatMap(entry => {
    if (entry.what !== 'limits' || entry.bucket !== name || (entry.key !== undefined && entry.key !== key)) return []
    const { at, rate, capacity, burst = 0 } = entry
    return [{ from: at, rate, capacity, burst }]
  })
}

function limitsAt({ limits }: BucketSeen, at: number): Limits {
  return limits.findLast(({ from }) => from <= at) ?? limits[0]!
}

/** "An outcome: how an exchange ended; each has exactly one." */
function oneEnd({ requests, problems }: Seen): void {
  for (const { request, decide, releasedAt, end } of requests) {
    const what = `request ${request}`
    if (end === undefined) problems.push({ rule: 'one end', text: `${what} never ended` })
    else if (end.how === 'done' && releasedAt === undefined)
      problems.push({ rule: 'one end', text: `${what} was answered and never released` })
    else if ((end.how === 'expired' || end.how === 'evicted') && releasedAt !== undefined)
      problems.push({ rule: 'one end', text: `${what} was released, and ${end.how}` })
    else if (end.how === 'rejected' && decide?.verdict !== 'rejected')
      problems.push({ rule: 'one end', text: `${what} was rejected after it had been admitted` })
  }
}

/** "Order is kept within a key and instance". A booking stands where it would stand if its client had come in time. */
function inOrder({ requests, assumed, faults, problems }: Seen): void {
  if (assumed.mode === 'meter') return
  const isDoubted = faults.some(({ kind }) => kind.startsWith('store-'))
  const lanes = new Map<string, Request>()
  const released = requests.filter(({ releasedAt, hasBooking }) => releasedAt !== undefined && !hasBooking)
  for (const request of released.sort((one, other) => one.releasedAt! - other.releasedAt!)) {
    const { instance, route, priority, keys } = request
    const lane = `${instance} ${route} ${priority} ${keys}`
    const last = lanes.get(lane)
    // One whose question the store had not answered is decided after it, which is open (seed 353, docs/lab/world.md).
    const wasAsked = last !== undefined && request.decide!.at >= last.releasedAt! && isDoubted
    if (last !== undefined && !wasAsked && request.at < last.at && request.releasedAt! > last.releasedAt!)
      problems.push({
        rule: 'order',
        text: `request ${request.request} of ${request.at} left at ${request.releasedAt}, after ${last.request} of ${last.at}`,
      })
    if (last === undefined || request.at > last.at) lanes.set(lane, request)
  }
}

/** Without the store each instance has a share, for up to two timeouts and a second more. */
const OUTAGE = { after: 3_500 }
const OUTAGES: Margins = { 'store-down': OUTAGE, 'store-silent': OUTAGE, 'store-cut': OUTAGE, 'store-slow': OUTAGE }
const CHANGES: Margins = {
  'store-clock': { after: 600 },
  reload: { after: 400 },
  override: { after: 400 },
  reset: { after: 300 },
}

/** "In any window of W seconds at most r * (W + g) and the cost of one request, or the burst": over instances, one for each. */
function withinRate(seen: Seen): void {
  const { assumed, problems } = seen
  const spans = calmSpans(seen, { ...OUTAGES, ...CHANGES, ...(assumed.hasStore && { crash: { after: 0 } }) })
  for (const bucket of seen.byBucket.values()) {
    for (const { from, to } of spans) {
      const left = releasesIn(bucket, { from, to })
      if (left.length === 0) continue
      const costs = left.map(({ cost }) => cost)
      const allowed = allowedIn(seen, bucket, from, Math.max(...costs))
      const times = left.map(({ at }) => at)
      const worst = worstBurst(times, limitsAt(bucket, from).rate, costs)
      if (worst <= allowed) continue
      const text = `${worst.toFixed(3)} above r * W in a window from ${from} to ${to}, allowed are ${allowed.toFixed(3)}`
      problems.push({ rule: 'rate', text: `${nameOf(bucket)}: ${text}` })
    }
  }
}

/** In the order of time, those at the end of the span not included. */
function releasesIn({ requests }: BucketSeen, { from, to }: Span): Sent[] {
  const found: Sent[] = []
  for (const { releasedAt, resentAt, cost } of requests)
    for (const at of [releasedAt ?? -1, ...resentAt]) if (at >= from && at < to) found.push({ at, cost })
  return found.sort((one, other) => one.at - other.at)
}

interface Sent {
  readonly at: number
  readonly cost: number
}

/**
 * Costs of a request. A lease that ends owing a part of a slot is not paid for by the other instances (seed 1948 and docs/lab/world.md,
 * which is open): so much more is let pass where costs differ.
 */
const OPEN_DEBT = 1

/** How much more than r * W a window may have. */
function allowedIn({ assumed, faults, most }: Seen, bucket: BucketSeen, at: number, largest: number): number {
  const { stack, hasStore, mode, lateness, far, jitter } = assumed
  const { rate, burst, capacity } = limitsAt(bucket, at)
  const late = rate * lateness + SAME
  if (mode === 'meter') {
    const stalls = faults.flatMap(({ kind, at, until }) => (kind === 'stall' ? [until - at] : []))
    // Some have room here already, and others hear of theirs later.
    return late + capacity + (hasStore ? rate * (10 + far + 2 * jitter + Math.max(0, ...stalls)) : 0)
  }
  const isLast = bucket.place === stack.length - 1
  const grace = Math.max((isLast ? 1 : 4) / rate, hasStore ? 10 : 5)
  const debt = hasStore && largest > 1 ? OPEN_DEBT * largest : 0
  return late + rate * grace + Math.max(burst, largest) + (most - 1) * largest + debt
}

/** ms: times that are told to the checker as the same are. */
const SAME = 1e-6

/**
 * "Admit if L + c <= b": one process without a store, each decision by a model of its own. The level is what waits, and what has left and
 * not drained.
 */
function exactCapacity(seen: Seen): void {
  const { assumed, faults, requests, problems } = seen
  const { hasStore, books, hasClasses, maxInFlight } = assumed
  // In a stack a bucket counts from when it could have sent, which nobody sees.
  if (hasStore || books || hasClasses || maxInFlight < Infinity || assumed.stack.length > 1) return
  if (faults.some(({ kind }) => kind !== 'pause')) return
  if (requests.some(({ maxWait }) => maxWait < Infinity)) return
  for (const request of requests) {
    const { decide, at } = request
    if (decide === undefined || (decide.reason ?? 'overflow') !== 'overflow') continue
    const rooms = assumed.stack.map((name, place) =>
      roomAt(seen.byBucket.get(`${name} ${request.keys[place]}`)!, request, assumed),
    )
    const fits = Math.min(...rooms) - request.cost
    const tolerance = 1e-9 + assumed.lateness * 2e-3 * limitsAt([...seen.byBucket.values()][0]!, at).rate
    if (Math.abs(fits) <= Math.max(tolerance, 1e-6)) continue
    if (fits > 0 !== (decide.verdict !== 'rejected'))
      problems.push({
        rule: 'capacity',
        text: `request ${request.request} at ${at} was ${decide.verdict} (${decide.reason}), and room was ${rooms.map(room => room.toFixed(3))}`,
      })
  }
}

/** Of so many rejections one is looked at. */
const LOOKED_AT = 2

/**
 * "A hang-up frees its place", "up to a frame's share of the room may stay unused": nobody is refused for an overflow while much more than that
 * is free in every bucket.
 */
function noneInVain(seen: Seen): void {
  const { assumed, requests, problems, most } = seen
  if (assumed.books || assumed.hasClasses) return
  const calm = calmSpans(seen, { ...DISTURBED, ...CHANGES })
  const largest = Math.max(...requests.map(({ cost }) => cost))
  for (const request of requests) {
    const { decide, at } = request
    if (decide?.reason !== 'overflow' || request.request % LOOKED_AT !== 0) continue
    if (!calm.some(({ from, to }) => at >= from + 1_000 && at < to) && seen.faults.length > 0) continue
    const left = assumed.stack.map((name, place) => {
      const bucket = seen.byBucket.get(`${name} ${request.keys[place]}`)!
      const { rate } = limitsAt(bucket, at)
      return roomAt(bucket, request, assumed) - request.cost - 3 * FRAME * rate - (2 * most + 4) * largest
    })
    if (Math.min(...left) <= 0) continue
    const text = `request ${request.request} at ${at} was refused, and in each bucket ${left.map(room => room.toFixed(2))} more than may be unused is free`
    problems.push({ rule: 'in vain', text })
  }
}

/** The room that a request found in a bucket. */
function roomAt(bucket: BucketSeen, newcomer: Request, { mode }: AssumedEntry): number {
  const { at } = newcomer
  const { rate, capacity } = limitsAt(bucket, at)
  let [held, before, queued] = [0, -Infinity, 0]
  const left = bucket.requests
    .filter(
      ({ request, releasedAt = Infinity }) => releasedAt < at || (releasedAt === at && request < newcomer.request),
    )
    .sort((one, other) => one.releasedAt! - other.releasedAt!)
  for (const { releasedAt, cost } of left) {
    held = Math.max(0, held - rate * (releasedAt! - before)) + cost
    before = releasedAt!
  }
  held = Math.max(0, held - rate * (at - before))
  if (mode === 'meter') return capacity - held
  for (const { request, decide, releasedAt = Infinity, end, cost } of bucket.requests) {
    if (request >= newcomer.request || decide?.verdict === 'rejected') continue
    if (releasedAt >= at && !left.some(each => each.request === request) && (end?.at ?? Infinity) > at) queued += cost
  }
  return capacity - held - queued
}

/**
 * "The level of a bucket is its real occupancy": never more than b waits. Not over a store: its level leaks while slots are not used, so
 * more may wait there (docs/lab/world.md).
 */
function neverAboveCapacity(seen: Seen): void {
  const { assumed, problems } = seen
  if (assumed.mode === 'meter' || assumed.hasStore) return
  const calm = calmSpans(seen, { reload: { after: Infinity }, reset: { after: Infinity } })
  for (const bucket of seen.byBucket.values()) {
    for (const { at, waits } of waitingIn(bucket)) {
      const { capacity } = limitsAt(bucket, at)
      if (waits <= capacity + SAME || !calm.some(({ from, to }) => at >= from && at < to)) continue
      problems.push({ rule: 'occupancy', text: `${nameOf(bucket)}: ${waits} wait at ${at}, b is ${capacity}` })
    }
  }
}

/** How much waits in a bucket, in cost units, when one more has come. */
function waitingIn({ requests }: BucketSeen): { readonly at: number; readonly waits: number }[] {
  const changes = requests.flatMap(({ decide, releasedAt, end, cost }) => {
    if (decide?.verdict !== 'queued') return []
    return [
      { at: decide.at, by: cost },
      { at: releasedAt ?? end?.at ?? Infinity, by: -cost },
    ]
  })
  // Who leaves at a moment makes room for who comes then.
  changes.sort((one, other) => one.at - other.at || one.by - other.by)
  let waits = 0
  const found: { readonly at: number; readonly waits: number }[] = []
  for (const { at, by } of changes) {
    waits += by
    if (by > 0) found.push({ at, waits })
  }
  return found
}

function nameOf({ name, key }: BucketSeen): string {
  return `${name} ${key}`
}

/** "Of b + 1 requests at once on an idle bucket, b are admitted": over all instances, where nobody has come before. */
function exactlyCapacityAtOnce(seen: Seen): void {
  const { assumed, faults, problems } = seen
  const { stack, maxInFlight, mode, far, jitter, lateness } = assumed
  if (stack.length > 1 || (mode === 'meter' && maxInFlight < Infinity)) return
  const until = 4 * (far + jitter) + 1
  for (const bucket of seen.byBucket.values()) {
    const { at } = bucket.requests[0]!
    if (faults.some(fault => fault.at - OUTAGE.after < at + until)) continue
    const { capacity, rate } = limitsAt(bucket, at)
    const crowd = bucket.requests.filter(request => request.at <= at + until)
    const { cost } = crowd[0]!
    const isPlain = crowd.every(
      each => each.cost === cost && each.maxWait === Infinity && each.end?.how !== 'hung-up' && !each.isBack,
    )
    if (!isPlain || crowd.some(each => each.at > at + 1 + lateness)) continue
    const admitted = crowd.filter(({ decide }) => decide?.verdict !== 'rejected').length
    const most = Math.floor((capacity + rate * until) / cost + SAME)
    const least = Math.min(crowd.length, Math.floor(capacity / cost + SAME))
    if (admitted < least || admitted > most)
      problems.push({
        rule: 'exactly b',
        text: `${nameOf(bucket)}: ${admitted} of ${crowd.length} at once at ${at} were admitted, b is ${capacity}, each costs ${cost}`,
      })
  }
}

const DISTURBED: Margins = {
  ...OUTAGES,
  ...CHANGES,
  stall: { after: 300 },
  crash: { after: 1_500 },
  leave: { before: 0, after: 1_500 },
  join: { after: 1_500 },
  pause: { after: 300 },
  // Its breaker keeps requests away for a while.
  upstream: { after: 12_000 },
}

/** Spans in which something waits in a bucket without a break. */
function waitingSpans({ requests }: BucketSeen): Span[] {
  const waits = requests
    .filter(({ decide }) => decide?.verdict === 'queued')
    .map(({ decide, releasedAt, end }) => ({ from: decide!.at, to: releasedAt ?? end?.at ?? Infinity }))
    .sort((one, other) => one.from - other.from)
  const spans: { from: number; to: number }[] = []
  for (const { from, to } of waits) {
    const last = spans.at(-1)
    // Who leaves and who comes at the same moment follow each other.
    if (last !== undefined && from <= last.to) last.to = Math.max(last.to, to)
    else spans.push({ from, to })
  }
  return spans
}

function overlaps(one: readonly Span[], other: readonly Span[]): Span[] {
  return one.flatMap(a =>
    other.flatMap(b => {
      const span = { from: Math.max(a.from, b.from), to: Math.min(a.to, b.to) }
      return span.to > span.from ? [span] : []
    }),
  )
}

/** ms that slots may take to come from the store: two frames, and the ways. */
function leasing({ hasStore, far, jitter, lateness }: AssumedEntry): number {
  return lateness + (hasStore ? 250 + 8 * (far + jitter) : 0)
}

/** "With somebody waiting and the upstream up the next slot is used": no gap above two periods of the slowest bucket. */
function noGap(seen: Seen): void {
  const { assumed } = seen
  if (assumed.maxInFlight < Infinity || assumed.mode === 'meter') return
  const calm = calmSpans(seen, DISTURBED)
  for (const bucket of seen.byBucket.values())
    for (const span of overlaps(waitingSpans(bucket), calm)) noGapIn(seen, bucket, span)
}

function noGapIn(seen: Seen, bucket: BucketSeen, span: Span): void {
  const { assumed, problems, requests } = seen
  // Before a shared bucket a client waits for its turn.
  const isBefore = bucket.place < assumed.stack.length - 1
  // Instances far from a store may wait long for a slot that others have (docs/scaling.md).
  if (isBefore && (assumed.hasClasses || (assumed.hasStore && seen.most > 1) || !isAloneIn(seen, bucket, span))) return
  const turns = isBefore ? new Set(requests.map(({ keys }) => keys[0])).size : 1
  const allowed = 2 * slowestOf(seen, bucket, span.from) * turns + leasing(assumed)
  let before = span.from
  for (const at of [...releasesIn(bucket, span).map(({ at }) => at), span.to]) {
    const text = `nothing left from ${before} to ${at}, allowed are ${allowed}`
    if (at - before > allowed + SAME) problems.push({ rule: 'gap', text: `${nameOf(bucket)}: ${text}` })
    before = at
  }
}

/** ms. The longest period of a request in any bucket of its stack. */
function slowestOf({ byBucket, assumed }: Seen, bucket: BucketSeen, at: number): number {
  const largest = Math.max(...bucket.requests.map(({ cost }) => cost))
  const others = [...byBucket.values()].filter(({ name }) => assumed.stack.includes(name))
  return Math.max(...others.map(other => largest / limitsAt(other, at).rate))
}

/**
 * "A client that always has requests waiting gets its own rate while the shared bucket has room": 99 %, over a store 97 %. So does all that
 * waits for a bucket that alone limits it.
 */
function wholeRate(seen: Seen): void {
  const { assumed, problems } = seen
  const { maxInFlight, mode, hasStore } = assumed
  if (maxInFlight < Infinity || mode === 'meter') return
  const calm = calmSpans(seen, DISTURBED)
  for (const bucket of seen.byBucket.values()) {
    for (const span of overlaps(waitingSpans(bucket), calm)) {
      const { rate } = limitsAt(bucket, span.from)
      const length = span.to - span.from
      if (rate * length < 20 || !isAloneIn(seen, bucket, span) || mayLose(seen, bucket, span)) continue
      const passed = passedIn(bucket, span)
      const largest = Math.max(...bucket.requests.map(({ cost }) => cost))
      const least = rate * (length - leasing(assumed)) * (hasStore ? 0.97 : 0.99) - 2 * largest
      if (passed < least)
        problems.push({
          rule: 'whole rate',
          text: `${nameOf(bucket)}: ${passed} left from ${span.from} to ${span.to}, r makes ${(rate * length).toFixed(2)}`,
        })
    }
  }
}

/**
 * Over a store: a stack loses slots that it cannot have of both buckets, a slot that is given back before the last one is lost, and of a burst
 * that is smaller than what two frames let through some room stays unused (seed 1901).
 */
function mayLose({ assumed }: Seen, bucket: BucketSeen, { from, to }: Span): boolean {
  if (!assumed.hasStore) return false
  const { rate, capacity, burst } = limitsAt(bucket, from)
  if (assumed.stack.length > 1 || (burst > 0 && capacity < (2 * FRAME + 4 * assumed.far) * rate)) return true
  return bucket.requests.some(
    ({ end, releasedAt }) =>
      end !== undefined && releasedAt === undefined && end.how !== 'rejected' && end.at >= from && end.at <= to,
  )
}

/** ms. Slots and room are leased for so long. */
const FRAME = 120

function passedIn({ requests }: BucketSeen, { from, to }: Span): number {
  return requests.reduce(
    (sum, { releasedAt = -1, cost }) => sum + (releasedAt >= from && releasedAt <= to ? cost : 0),
    0,
  )
}

/** Whether it binds: a shared bucket behind it has a tenth left, and the own buckets before it almost half. */
function isAloneIn({ byBucket, assumed }: Seen, bucket: BucketSeen, span: Span): boolean {
  for (const other of byBucket.values()) {
    const meets = other !== bucket && assumed.stack.includes(other.name)
    if (!meets || !other.requests.some(request => bucket.requests.includes(request))) continue
    const { rate } = limitsAt(other, span.from)
    const most = other.place > bucket.place ? 0.9 : 0.6
    if (passedIn(other, span) > most * rate * (span.to - span.from)) return false
  }
  return true
}

/**
 * "Who comes back when told fits if nobody else came, with appointments all": within 2 %, so it is counted. In a stack the other bucket may be
 * full when its client comes (seed 1366 and docs/lab/world.md, which is open).
 */
function told(seen: Seen): void {
  if (seen.assumed.stack.length > 1) return
  const calm = calmSpans(seen, DISTURBED)
  for (const { request, hasBooking, decide, at } of seen.requests) {
    if (!hasBooking || decide === undefined) continue
    if (!calm.some(({ from, to }) => at >= from + 4_000 && at <= to) && seen.faults.length > 0) continue
    seen.counted.returns += 1
    if (decide.verdict !== 'rejected') continue
    seen.counted.refusedReturns += 1
    seen.counted.refused.push(`request ${request} at ${at}: ${decide.reason}`)
  }
}

/** "Levels and counters are 0 at rest." */
function atRest(history: History): (seen: Seen) => void {
  return ({ problems }) => {
    for (const entry of history) {
      if (entry.what !== 'rest') continue
      for (const [name, left] of Object.entries(entry.left))
        if (Math.abs(left) > 1e-6)
          problems.push({ rule: 'rest', text: `${name} is ${left} at instance ${entry.instance}` })
    }
  }
}

/** The sums of metrics are those of the history. */
function metricsAgree(history: History): (seen: Seen) => void {
  return ({ requests, problems }) => {
    for (const entry of history) {
      if (entry.what !== 'metric') continue
      // Those that make room for others count as rejected.
      const isIt = (how: string | undefined): boolean =>
        how === entry.name || (how === 'evicted' && entry.name === 'rejected')
      const count = requests.filter(({ end }) => isIt(end?.how)).length
      if (count !== entry.sum)
        problems.push({ rule: 'metrics', text: `${entry.name} is ${entry.sum}, the history has ${count}` })
    }
  }
}
