/** Counts events for metrics and snapshots. */
import type { BucketTable } from '../../core/bucket-table.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import { AGENT_CLASSES, type AgentClass, classifyAgent } from '../../http/agent-class.js'
import type {
  Decision,
  GivenUp,
  Observer,
  Outcome,
  PatienceSource,
  RejectionCause,
  RequestRecord,
} from '../../proxy/observe/observer.js'
import type { BucketRates, BucketSnapshot, DryRunSnapshot } from '../snapshot/snapshot.js'
import { Fullest } from './fullest.js'
import { SlidingQuantiles } from './sliding-quantiles.js'

type Figure = keyof BucketRates
/** Counts by the first digit of the status, which is the index. */
export type StatusCounts = [number, number, number, number, number, number]
type RejectionCounts = Map<string, Map<RejectionCause['reason'], number>>

export interface RouteTally {
  queued: number
  readonly outcomes: Record<Outcome, number>
  readonly rehearsed: Record<Decision, number>
  /** Requests that were not sent, because their clients would not have been there for the answer. */
  readonly givenUp: Record<GivenUp['at'], Record<PatienceSource, number>>
  /** Of the last minute. */
  readonly givenUpLately: RecentSum
  /** Rejected requests. Without a bucket: ''. */
  readonly rejections: RejectionCounts
  /** Answers to clients, and those among them that came from upstreams. */
  readonly responses: StatusCounts
  readonly upstreamResponses: StatusCounts
  /** Requests that waited on to see whether their clients did. */
  trials: number
  coalesced: number
}

/** The counts of all instances of a bucket, in cost units since the start. */
export interface BucketTally {
  offered: number
  released: number
  rejected: number
  /** The cost units and the requests in queues now. */
  queued: number
  waiting: number
  readonly lately: RecentRates
  readonly fullest: Fullest
  /** The instance that is watched where nobody has chosen a key; `since` is monotonic ms. */
  focus:
    | { readonly key: string; readonly bucket: SharedBucket; readonly since: number; readonly events: KeyEvents }
    | undefined
}

class OldestWaits {
  readonly #now: number
  readonly #since = new Map<SharedBucket | string | undefined, number>()

  /** @param waiting when each request came, in ms. It may be ten thousand of them */
  constructor(waiting: Iterable<[RequestRecord, number]>, now: number, instances: ReadonlySet<SharedBucket>) {
    this.#now = now
    for (const [{ stack }, since] of waiting) {
      this.#see(undefined, since)
      for (const bucket of stack) {
        this.#see(bucket.limits.name, since)
        if (instances.has(bucket)) this.#see(bucket, since)
      }
    }
  }

  #see(whose: SharedBucket | string | undefined, since: number): void {
    const known = this.#since.get(whose)
    if (known === undefined || since < known) this.#since.set(whose, since)
  }

  /** Of an instance, of all instances of a bucket, or of all buckets. */
  of(whose?: SharedBucket | string): { readonly oldestMs?: number } {
    const since = this.#since.get(whose)
    return since === undefined ? {} : { oldestMs: Math.max(0, this.#now - since) }
  }
}

interface TallyOptions {
  /** Monotonic ms. */
  now(): number
  /** ms since 1970, as fine as `now`. */
  wallNow(): number
}

export class TrafficTally implements Required<Pick<Observer, Counted>> {
  inFlight = 0
  readonly routes = new Map<string, RouteTally>()
  readonly buckets = new Map<string, BucketTally>()
  readonly waits = new SlidingQuantiles()
  readonly lateness = new SlidingQuantiles()
  readonly dryRuns: DryRunTally
  readonly watched = new WatchedKeys()
  readonly #options: TallyOptions
  readonly #since: number
  readonly #waiting = new Map<RequestRecord, number>()
  #bucketTable: BucketTable | undefined

  constructor(options: TallyOptions) {
    this.#options = options
    this.#since = options.now()
    this.dryRuns = new DryRunTally(options.wallNow())
  }

  /** Sets the table of buckets. Call it before the first request. */
  join(bucketTable: BucketTable): void {
    this.#bucketTable = bucketTable
  }

  route(name: string): RouteTally {
    let found = this.routes.get(name)
    if (found === undefined) {
      found = {
        queued: 0,
        outcomes: { forwarded: 0, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0, accepted: 0 },
        rehearsed: { would_reject: 0, would_delay: 0 },
        givenUp: { arrival: { known: 0, learnt: 0 }, release: { known: 0, learnt: 0 } },
        givenUpLately: new RecentSum(60),
        rejections: new Map(),
        responses: [0, 0, 0, 0, 0, 0],
        upstreamResponses: [0, 0, 0, 0, 0, 0],
        trials: 0,
        coalesced: 0,
      }
      this.routes.set(name, found)
    }
    return found
  }

  bucket(name: string): BucketTally {
    let found = this.buckets.get(name)
    if (found === undefined) {
      found = {
        offered: 0,
        released: 0,
        rejected: 0,
        queued: 0,
        waiting: 0,
        lately: new RecentRates(this.#since),
        fullest: new Fullest(name, this.#bucketTable!),
        focus: undefined,
      }
      this.buckets.set(name, found)
    }
    return found
  }

  /** Keeps the single events of another instance of a bucket. */
  focus(tally: BucketTally, key: string, bucket: SharedBucket): void {
    const known = this.#bucketTable?.peek(bucket.limits.name, key) ?? bucket
    if (tally.focus?.bucket === known) return
    this.#bucketTable?.hold(known)
    if (tally.focus !== undefined) this.#bucketTable?.rest(tally.focus.bucket)
    tally.focus = { key, bucket: known, since: this.#options.now(), events: new KeyEvents() }
  }

  arrived({ stack, keys, cost }: RequestRecord): void {
    for (const [place, bucket] of stack.entries()) this.#count('offered', bucket, keys[place]!, cost)
  }

  oldestWaits(instances: Iterable<SharedBucket>): OldestWaits {
    return new OldestWaits(this.#waiting, this.#options.now(), new Set(instances))
  }

  queued(request: RequestRecord): void {
    const { route, stack, keys, cost } = request
    // One that is sent again came earlier.
    this.#waiting.set(request, this.#options.now() - request.wait)
    this.route(route).queued += 1
    for (const [place, bucket] of stack.entries()) {
      const tally = this.bucket(bucket.limits.name)
      tally.waiting += 1
      tally.queued = tally.waiting === 1 ? cost : tally.queued + cost
      tally.fullest.hint(keys[place]!)
    }
  }

  unqueued(request: RequestRecord): void {
    const { route, stack, cost } = request
    this.#waiting.delete(request)
    this.route(route).queued -= 1
    for (const { limits } of stack) {
      const tally = this.bucket(limits.name)
      tally.waiting -= 1
      // Resets the rounding errors of fractional costs.
      tally.queued = tally.waiting === 0 ? 0 : tally.queued - cost
    }
  }

  released({ wait }: RequestRecord, lateness: number): void {
    const now = this.#options.now()
    this.waits.add(wait, now)
    this.lateness.add(lateness, now)
  }

  sent({ stack, keys, cost }: RequestRecord): void {
    this.inFlight += 1
    for (const [place, bucket] of stack.entries()) this.#count('released', bucket, keys[place]!, cost)
  }

  retried(): void {
    this.inFlight -= 1
  }

  finished(request: RequestRecord, outcome: Outcome, status: number): void {
    const { route, stack, keys, cost, inFlight, rejection, givenUp, onTrial, coalesced } = request
    const own = this.route(route)
    own.outcomes[outcome] += 1
    if (outcome !== 'cancelled') countStatus(own.responses, status)
    if (outcome === 'forwarded' && !coalesced) countStatus(own.upstreamResponses, status)
    if (onTrial) own.trials += 1
    if (coalesced) own.coalesced += 1
    if (givenUp !== undefined) {
      own.givenUp[givenUp.at][givenUp.source] += 1
      own.givenUpLately.add(this.#options.now())
    }
    if (inFlight) this.inFlight -= 1
    if (outcome !== 'rejected') return
    if (rejection !== undefined) countRejection(own.rejections, rejection)
    for (const [place, bucket] of stack.entries()) {
      this.bucket(bucket.limits.name).fullest.hint(keys[place]!)
      this.#count('rejected', bucket, keys[place]!, cost)
    }
  }

  #count(figure: Figure, bucket: SharedBucket, key: string, cost: number): void {
    const { name } = bucket.limits
    const tally = this.bucket(name)
    tally[figure] += cost
    tally.lately[figure].add(this.#options.now(), cost)
    if (tally.focus?.bucket === bucket) tally.focus.events.add(figure, cost, this.#options.wallNow())
    this.watched.find(name, key)?.add(figure, cost, this.#options.wallNow())
  }

  rehearsed(request: RequestRecord, decision: Decision, bucket: string, wait: number): void {
    this.route(request.route).rehearsed[decision] += 1
    this.dryRuns.add(request, decision, bucket, wait)
  }
}

/** An unknown class is taken for 5xx (RFC 9110 15). */
function countStatus(counts: StatusCounts, status: number): void {
  counts[Math.min(5, Math.floor(status / 100)) as 1]! += 1
}

function countRejection(rejections: RejectionCounts, { bucket, reason }: RejectionCause): void {
  const reasons = rejections.get(bucket) ?? new Map<RejectionCause['reason'], number>()
  rejections.set(bucket, reasons)
  reasons.set(reason, (reasons.get(reason) ?? 0) + 1)
}

type Counted = 'arrived' | 'queued' | 'unqueued' | 'released' | 'sent' | 'retried' | 'finished' | 'rehearsed'

/** When the requests of one key came, left and were rejected, and their cost since somebody began to watch it. */
class KeyEvents {
  offered = 0
  released = 0
  rejected = 0
  readonly #times = { offered: new RecentTimes(), released: new RecentTimes(), rejected: new RecentTimes() }

  /** @param at ms since 1970 */
  add(figure: Figure, cost: number, at: number): void {
    this[figure] += cost
    this.#times[figure].add(at)
  }

  focus(key: string): NonNullable<BucketSnapshot['focus']> {
    const { offered, released, rejected } = this.#times
    return { key, watchers: 1, arrivals: offered.list(), releases: released.list(), rejections: rejected.list() }
  }
}

/** More than the admin server has streams. */
const MOST_WATCHED = 32
/** ms. A key is watched for this long after the last stream has asked for it. The slowest stream asks every 10 s. */
const UNASKED = 30_000

interface WatchedKey {
  readonly bucket: string
  readonly key: string
  readonly events: KeyEvents
  askedAt: number
}

export class WatchedKeys {
  #watched: WatchedKey[] = []

  /** What has happened to a key since it was asked for first. @param now monotonic ms */
  ask(bucket: string, key: string, now: number): KeyEvents {
    this.#watched = this.#watched.filter(({ askedAt }) => now - askedAt < UNASKED)
    let found = this.#watched.find(each => each.bucket === bucket && each.key === key)
    if (found === undefined) {
      found = { bucket, key, events: new KeyEvents(), askedAt: now }
      this.#watched.push(found)
      if (this.#watched.length > MOST_WATCHED) this.#watched.sort((a, b) => b.askedAt - a.askedAt).pop()
    }
    found.askedAt = now
    return found.events
  }

  find(bucket: string, key: string): KeyEvents | undefined {
    for (const each of this.#watched) if (each.key === key && each.bucket === bucket) return each.events
    return undefined
  }
}

/** The present second and the four before it, so that a burst of a fraction of a second is seen by who looks right after it. */
const SECONDS = 5
/** ms. What has begun just now is not taken for a high rate. */
const LEAST = 1_000

/** What arrived at a bucket, left it and was rejected in the latest seconds. Times in ms. */
export class RecentRates {
  readonly offered = new RecentSum(SECONDS)
  readonly released = new RecentSum(SECONDS)
  readonly rejected = new RecentSum(SECONDS)
  readonly #since: number

  /** @param since nothing happened before */
  constructor(since: number) {
    this.#since = since
  }

  rates(now: number): BucketRates {
    const seconds = Math.max(LEAST, Math.min(now - this.#since, this.offered.span(now))) / 1_000
    const rate = (sum: RecentSum): number => Math.round((sum.sum(now) / seconds) * 1_000) / 1_000
    return { offered: rate(this.offered), released: rate(this.released), rejected: rate(this.rejected) }
  }
}

/** Keeps the latest 256 times of an event. */
const KEPT = 256

export class RecentTimes {
  #times: number[] = []

  add(time: number): void {
    this.#times.push(time)
    // Dropping many at once keeps the cost per event low.
    if (this.#times.length >= 2 * KEPT) this.#times = this.#times.slice(-KEPT)
  }

  list(): number[] {
    return this.#times.slice(-KEPT)
  }
}

/** How many keys to count, and how many to list. */
const MOST_KEYS = 2_000
const LISTED = 50

type Listed = DryRunSnapshot['keys'][number]
type Hit = { -readonly [Name in keyof Listed]: Listed[Name] }

/** What dry runs would have done, by key and by class of user agent. */
export class DryRunTally {
  readonly #since: number
  readonly #hits = new Map<string, Hit>()
  readonly #agents = Object.fromEntries(
    AGENT_CLASSES.map(name => [name, { would_reject: 0, would_delay: 0 }]),
  ) as DryRunSnapshot['agents'] & Record<AgentClass, Record<Decision, number>>

  constructor(since: number) {
    this.#since = since
  }

  add(request: RequestRecord, decision: Decision, bucket: string, wait: number): void {
    const agent = classifyAgent(request.header('user-agent'))
    this.#agents[agent][decision] += 1
    const { route, stack, keys } = request
    const place = stack.findIndex(({ limits }) => limits.name === bucket)
    const key = keys[Math.max(0, place)] ?? ''
    const id = JSON.stringify([route, bucket, key, agent])
    let hit = this.#hits.get(id)
    if (hit === undefined) {
      if (this.#hits.size >= MOST_KEYS) this.#forget()
      hit = { route, bucket, key, agent, wouldReject: 0, wouldDelay: 0, longestWait: 0 }
      this.#hits.set(id, hit)
    }
    if (decision === 'would_reject') hit.wouldReject += 1
    else hit.wouldDelay += 1
    hit.longestWait = Math.max(hit.longestWait, wait)
  }

  snapshot(): DryRunSnapshot {
    return { since: this.#since, keys: this.#ranked().slice(0, LISTED), agents: structuredClone(this.#agents) }
  }

  /** Drops the half that was hit least, so that a flood of new keys does not push out those hit most. */
  #forget(): void {
    const ranked = this.#ranked()
    this.#hits.clear()
    for (const hit of ranked.slice(0, MOST_KEYS / 2))
      this.#hits.set(JSON.stringify([hit.route, hit.bucket, hit.key, hit.agent]), hit)
  }

  #ranked(): Hit[] {
    return [...this.#hits.values()].sort((a, b) => b.wouldReject - a.wouldReject || b.wouldDelay - a.wouldDelay)
  }
}

/** Sums up what happens in the latest seconds: the present one, and as many whole ones before it. */
export class RecentSum {
  readonly #sums: Float64Array
  /** The latest second in which something happened, since the origin of the clock. */
  #latest = -Infinity

  constructor(seconds: number) {
    this.#sums = new Float64Array(seconds)
  }

  add(now: number, amount = 1): void {
    this.#advance(now)
    this.#sums[this.#placeOf(this.#latest)]! += amount
  }

  sum(now: number): number {
    this.#advance(now)
    return this.#sums.reduce((total, sum) => total + sum, 0)
  }

  /** Of how many ms the sum is. */
  span(now: number): number {
    return now - (Math.floor(now / 1_000) + 1 - this.#sums.length) * 1_000
  }

  #advance(now: number): void {
    const second = Math.floor(now / 1_000)
    const passed = Math.min(this.#sums.length, second - this.#latest)
    for (let back = 0; back < passed; back += 1) this.#sums[this.#placeOf(second - back)] = 0
    this.#latest = Math.max(second, this.#latest)
  }

  #placeOf(second: number): number {
    const { length } = this.#sums
    return ((second % length) + length) % length
  }
}
