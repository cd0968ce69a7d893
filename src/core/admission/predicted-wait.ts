/**
 * How long a newcomer would wait for its release if nobody else came and nobody left.
 *
 * At each bucket of its stack, from its own to everyone's, what leaves first is counted: the requests before it in its lane,
 * and of each other contender what its turns allow until the newcomer's turn (fair-queue.ts). With a deficit d and a grant g
 * for each turn, n turns allow d + (n - 1) * g, and no more than it has waiting or its own bucket lets pass in that time. Then
 *
 *     wait(bucket) = time until it is free + (cost in its lane + cost of the others) / rate,
 *
 * but no less than one turn of the others after it has passed the bucket before. The wait is the longest of these, and never
 * above the time in which the levels leave, which counts for a request that is alone on its buckets. Of the classes before the
 * newcomer's all goes first, and of those behind it their share. What waits in other instances takes turns, too, as far as it
 * is known (bucket/elsewhere.ts).
 *
 * This is exact where the requests of a shared bucket cost alike and are not delayed by buckets of their own, and for those
 * that wait longest for their own bucket. Elsewhere it may be late by a turn of the others. With more than `MOST_COMPARED`
 * contenders it is an upper bound. It takes about as long as a release, as the arrivals of a flood are to be judged by it. Who
 * has more time asks for the exact wait (look-ahead.ts). Where costs differ in the buckets of a stack: drain-time.ts.
 */
import { slackOf } from '../../decider/costs.js'
import { costElsewhere, costOfClasses, type Elsewhere } from '../bucket/elsewhere.js'
import { type BucketLimits, passedIn, timeToPass, timeUntilDrained } from '../bucket/limits.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { sourceBefore } from '../bucket/waiting.js'
import { DEFAULT_PRIORITY } from '../priority.js'
import { FairQueue, sentIn, type TurnsBefore } from '../queue/fair-queue.js'
import { type Arrival, type Gate, Lane, type SharedBucket, ShareNode, type Source } from '../queue/lane.js'
import { onlyLane, SAME_TIME } from '../queue/ready-lanes.js'
import { findLane, sourcesBelow } from '../queue/tree.js'
import { isMixed, waitOfMixed } from './drain-time.js'
import { type LookAhead, lookAhead, type Newcomer } from './look-ahead.js'

const MOST_COMPARED = 64
/** How often the time that others have to pass their own buckets is taken from the answer so far. */
const ROUNDS = 3
/** Requests that `exactWaits` copies at once, or for all newcomers together. */
const MOST_COPIED = 20_000
const RELEASES_AT_ONCE = 200

/** @param most the answer is exact if no more requests than this wait where it would @returns ms */
export function predictedWait(arrival: Arrival, now: number, pause: number, most = 0): number {
  if (most > 0 && meetsOthers(arrival) && !sharesTurns(arrival, now)) {
    const ahead = lookAhead([{ arrival, pause }], { now, most })
    while (ahead?.next());
    const [wait] = ahead?.waits ?? []
    if (wait !== undefined) return wait
  }
  return estimate(arrival, now, pause)
}

interface Present {
  settle(): number
  lookAhead(newcomers: readonly Newcomer[], most: number): LookAhead | undefined
}

/**
 * As `predictedWait`, of several newcomers, each as if it came alone. Exact, unless far too many requests wait. With many the
 * newcomers are looked at together, so they add weight to nodes that they share, and it may be a turn off.
 */
export function* exactWaits(newcomers: readonly Newcomer[], present: Present): Generator<void, number[]> {
  const now = present.settle()
  const isCopied = newcomers.map(({ arrival }) => meetsOthers(arrival) && !sharesTurns(arrival, now))
  const waits = newcomers.map(({ arrival, pause }) => {
    const between = meetsOthers(arrival) ? undefined : waitBetweenOthers(arrival, now)
    return Math.max(0, between === undefined ? estimate(arrival, now, pause) : Math.max(between, pause))
  })
  const places = newcomers.flatMap((_, place) => (isCopied[place] ? [place] : []))
  const waiting = Math.max(0, ...places.flatMap(place => newcomers[place]!.arrival.stack.map(({ waiting }) => waiting)))
  const each = waiting * places.length <= MOST_COPIED ? 1 : places.length
  for (let from = 0; from < places.length; from += each) {
    const some = places.slice(from, from + each)
    const ahead = present.lookAhead(
      some.map(place => newcomers[place]!),
      MOST_COPIED,
    )
    for (let releases = 1; ahead?.next(); releases += 1) if (releases % RELEASES_AT_ONCE === 0) yield
    for (const [index, place] of some.entries()) waits[place] = ahead?.waits[index] ?? waits[place]!
    yield
  }
  return waits
}

/** The bucket that adds most to a newcomer's wait, or the pause. Undefined: it does not wait. Nearly, as `predictedWait`. */
export function causeOfWait(arrival: Arrival, now: number, pause: number): SharedBucket | 'pause' | undefined {
  const { stack, cost } = arrival
  const times: number[] = []
  if (isMixed(arrival))
    for (const bucket of stack) times.push(levelWait(bucket, cost, { level: bucket.occupancy(now), now, pause: 0 }))
  else turnsWait(arrival, now + pause, times)
  let cause: SharedBucket | 'pause' | undefined = pause > SAME_TIME ? 'pause' : undefined
  let most = Math.max(pause, SAME_TIME)
  let before = 0
  for (const [place, bucket] of stack.entries()) {
    // Where others wait in other instances only, nobody has a turn here.
    const time = Math.max(times[place]!, bucket.waitBetweenOthers(cost, now, place) ?? 0)
    if (time - before > most) {
      most = time - before
      cause = bucket
    }
    before = Math.max(before, time)
  }
  return cause
}

/** How long the requests of other instances delay a newcomer, in ms. Undefined: none are known. */
function waitBetweenOthers({ stack, cost }: Arrival, now: number): number | undefined {
  let longest: number | undefined
  for (const [place, bucket] of stack.entries()) {
    const wait = bucket.waitBetweenOthers(cost, now, place)
    if (wait !== undefined && wait > (longest ?? 0)) longest = wait
  }
  return longest
}

/** Whether it has turns among requests of other instances. What waits there is known by class only. */
function sharesTurns({ stack }: Arrival, now: number): boolean {
  return stack.some((bucket, place) => (bucket.elsewhere(now, place)?.others.length ?? 0) > 0)
}

function meetsOthers({ stack }: Arrival): boolean {
  return stack.some(({ waiting }) => waiting > 0)
}

function estimate(arrival: Arrival, now: number, pause: number): number {
  if (isMixed(arrival)) return waitOfMixed(arrival, now, pause)
  const bound = longestWaitOf(arrival, now, pause)
  return bound <= 0 ? bound : Math.min(bound, pause + turnsWait(arrival, now + pause) - SAME_TIME)
}

/** ms in which the levels of its buckets leave, less what rounding may add. */
function longestWaitOf({ stack, cost }: Arrival, now: number, pause: number): number {
  let longest = pause
  for (const bucket of stack) {
    longest = Math.max(longest, levelWait(bucket, cost, { level: bucket.occupancy(now), now, pause }))
  }
  return longest
}

/** How long, in ms, the level of a bucket delays a request of this cost, less what rounding may add. */
export function levelWait({ limits, queued }: SharedBucket, cost: number, { level, now, pause }: LevelAt): number {
  const slack = slackOf(limits, cost)
  return timeToLeave(limits, { level: level - slack, now, pause }, queued - slack)
}

/** A level in cost units at a moment in ms, and the ms during which nothing leaves. */
interface LevelAt {
  readonly level: number
  readonly now: number
  readonly pause: number
}

/** ms in which a level leaves, of which `queued` waits, less what rounding may add. */
export function timeToLeave(limits: BucketLimits, { level, now, pause }: LevelAt, queued: number): number {
  if (pause === 0) return timeToPass(limits, level, now) - SAME_TIME
  // What has passed leaks during the pause. What is queued does not.
  const left = Math.max(Math.min(queued, level), level - passedIn(limits, now, now + pause))
  return pause + timeToPass(limits, Math.max(0, left), now + pause) - SAME_TIME
}

/** ms, from `now` on, until all that goes first has left. `times` is given the time after each bucket. */
function turnsWait(arrival: Arrival, now: number, times?: number[]): number {
  const { route, stack, priority = DEFAULT_PRIORITY } = arrival
  const lane = findLane(arrival)
  const path = sourcesOn(route.gate.rootOf(priority), stack)
  let before: Passed = { own: lane?.queued ?? 0, child: lane, time: 0 }
  for (const [place, source] of path.entries()) {
    before = passNext({ arrival, lane, place, source, now }, before)
    times?.push(before.time)
  }
  return before.time
}

interface Meeting {
  readonly arrival: Arrival
  readonly lane: Lane | undefined
  readonly place: number
  /** Of what waits there, as in `Contention`. Undefined: nothing. */
  readonly source: Source | undefined
  readonly now: number
}

interface Passed {
  /** Cost units here that go first, of its lane and of others. */
  readonly own: number
  readonly child: Source | undefined
  /** ms from now. */
  readonly time: number
}

function passNext(meeting: Meeting, { own, child, time }: Passed): Passed {
  const { arrival, lane, place, source, now } = meeting
  const { route, stack, cost, weight = 1, priority = DEFAULT_PRIORITY } = arrival
  const bucket = stack[place]!
  const { limits } = bucket
  const elsewhere = elsewhereOf(meeting)
  const start = startOf(bucket, place, elsewhere, now)
  const added = lane === undefined ? weight : 0
  let others = 0
  let turn = 0
  if (source !== undefined && source !== lane) {
    const contention = { source, bucket, child, weight: (child?.weight ?? 0) + added, cost, now }
    others = costOfOthers(contention, { ahead: own, start })
    // It contends anew when it has passed the bucket before.
    if (time > 0) turn = costOfOthers(contention, { ahead: 0, start: time })
  }
  others += costOfOtherTrees(bucket, { gate: route.gate, priority }, own + others + cost)
  const slack = slackOf(limits, cost)
  let until = start + timeToPass(limits, own + others - slack, now + start)
  if (elsewhere !== undefined) {
    const here = { priority, weight: (child?.weight ?? 0) + added, cost }
    until = waitAmong(elsewhere, { ...here, own, before: own + others }, limits, now)
    if (time > 0) turn += costElsewhere(elsewhere.others, { ...here, all: cost + turn }, limits)
  }
  return {
    own: own + others,
    child: source,
    time: Math.max(until, time + timeToPass(limits, Math.max(0, turn - slack), now + time)),
  }
}

function elsewhereOf({ arrival, lane, place, source, now }: Meeting): Elsewhere | undefined {
  const isAlone = source === undefined || (lane !== undefined && onlyLane(source) === lane)
  return arrival.stack[place]!.elsewhere(now, place, isAlone ? arrival : undefined)
}

/** When a bucket is free for what waits here, in ms from now. */
function startOf(bucket: SharedBucket, place: number, elsewhere: Elsewhere | undefined, now: number): number {
  if (elsewhere !== undefined) return Math.max(0, elsewhere.until - now)
  const before = timeToPass(bucket.limits, bucket.aheadElsewhere(now, place), now)
  return Math.max(0, timeUntilDrained(bucket, now), before)
}

interface Ahead {
  readonly priority: number
  /** Of the contender here to which it belongs. */
  readonly weight: number
  /** Its own, in cost units. */
  readonly cost: number
  /** Cost units here that go first, of that contender and of all. */
  readonly own: number
  readonly before: number
}

/** ms until it has its slot. */
function waitAmong(elsewhere: Elsewhere, ahead: Ahead, limits: BucketLimits, now: number): number {
  const { own, before, cost } = ahead
  const all = before + cost - elsewhere.covered
  if (all <= LEVEL_TOLERANCE) return elsewhere.slotAfter(before) - now
  // Slots that are there serve its contender and the others alike.
  const part = Math.min(1, all / (before + cost))
  const others = costElsewhere(elsewhere.others, { ...ahead, cost: (own + cost) * part, all }, limits)
  const start = Math.max(0, elsewhere.until - now)
  const first = Math.max(0, before - elsewhere.covered) + others - slackOf(limits, cost)
  return start + timeToPass(limits, Math.max(0, first), now + start)
}

/** Cost units that sources in other trees send before a source of this tree has sent `cost`. Upstreams take turns. */
function costOfOtherTrees(bucket: SharedBucket, { gate, priority }: Tree, cost: number): number {
  const { otherSources } = bucket.extras ?? {}
  if (bucket.source === undefined || otherSources === undefined) return 0
  let alike = 0
  let before = 0
  let behind = 0
  for (const other of [bucket.source, ...otherSources]) {
    if (other.priority < priority) before += other.queued
    else if (other.priority > priority) behind += other.queued
    else if (other.gate !== gate) alike += Math.min(other.queued, cost)
  }
  return costOfClasses({ alike, before, behind }, cost, bucket.limits)
}

interface Tree {
  readonly gate: Gate
  readonly priority: number
}

/** The sources of the buckets of a stack on the way to a gate, as far as they exist. */
function sourcesOn(root: ShareNode, stack: readonly SharedBucket[]): (Source | undefined)[] {
  const path: (Source | undefined)[] = stack.map(() => undefined)
  let node = root
  for (let place = stack.length - 1; place >= 0; place -= 1) {
    const source = sourceBefore(stack[place]!, node)
    path[place] = source
    if (!(source instanceof ShareNode)) break
    node = source
  }
  return path
}

interface Contention {
  readonly source: Source
  readonly bucket: SharedBucket
  readonly child: Source | undefined
  /** With the newcomer. */
  readonly weight: number
  readonly cost: number
  readonly now: number
}

/** Cost units of others that leave first. `ahead`: those before it in its own lane. `start`: ms from now. */
function costOfOthers(contention: Contention, { ahead, start }: { ahead: number; start: number }): number {
  const { source, bucket, child, weight, cost, now } = contention
  const all = Math.min(source.queued, Math.max(0, bucket.queued - ahead))
  const queue = source instanceof Lane ? new FairQueue() : source.fairQueue
  const turns = queue.turnsBefore({ contender: child, weight, cost, ahead })
  if (source instanceof ShareNode && source.count > MOST_COMPARED) {
    const { quantum, largest, alike } = turns
    const rest = alike ? 0 : source.count * largest
    return Math.min(all, turns.turns * quantum * Math.max(0, source.weight - (child?.weight ?? 0)) + rest)
  }
  const others = source instanceof Lane ? [aloneUntilNow(source, turns)] : contendersOf(source, child, turns)
  let sum = Math.min(all, total(others.map(({ most }) => most)))
  for (let round = 0; round < ROUNDS; round += 1) {
    const until = now + start + timeToPass(bucket.limits, ahead + sum, now + start)
    sum = Math.min(
      sum,
      total(others.map(({ source, most }) => Math.min(most, passedBy(source, until, now, turns.largest)))),
    )
  }
  return sum
}

interface Other {
  readonly source: Source
  readonly most: number
}

function contendersOf(node: ShareNode, child: Source | undefined, turns: TurnsBefore): Other[] {
  const allowances = node.fairQueue.allowances(child, turns)
  const others: Other[] = []
  for (const source of sourcesBelow(node)) {
    if (source === child) continue
    // One whose own bucket has to drain gets its turns later.
    const allowed = allowances.get(source) ?? sentIn(turns.turns, source, turns)
    others.push({ source, most: Math.min(allowed, source.queued) })
  }
  return others
}

/** Its first turn will be as long as its own requests ask for. */
function aloneUntilNow(source: Lane, turns: TurnsBefore): Other {
  const { weight, queued, tickets } = source
  const allowed = sentIn(turns.turns - 1, { deficit: tickets.first?.cost ?? 0, weight }, turns)
  return { source, most: Math.min(allowed, queued) }
}

/** Cost units that the buckets before a source let pass until then, at most. Times are in ms. */
function passedBy({ bucket }: Source, until: number, now: number, largest: number): number {
  if (bucket === undefined) return Infinity
  const { limits } = bucket
  const { burst = 0 } = limits
  const drained = passedIn(limits, now + Math.max(0, timeUntilDrained(bucket, now)), until)
  // Without a burst nothing passes before it has drained.
  return burst === 0 && drained < -LEVEL_TOLERANCE ? 0 : Math.max(0, Math.max(burst, largest) + drained)
}

function total(costs: readonly number[]): number {
  return costs.reduce((sum, cost) => sum + cost, 0)
}
