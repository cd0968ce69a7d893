/** Counts events for metrics and snapshots. */
import type { BucketTable } from '../../core/bucket-table.js'
import type { SharedBucket } from '../../core/queue/lane.js'
import type {
  Decision,
  GivenUp,
  Observer,
  Outcome,
  PatienceSource,
  RejectionCause,
  RequestRecord,
} from '../../proxy/observe/observer.js'
import { DryRunTally } from './dry-run-tally.js'
import { Fullest } from './fullest.js'
import { KeyEvents, WatchedKeys } from './key-events.js'
import { RecentRates } from './recent-rates.js'
import { RecentSum } from './recent-sum.js'
import { SlidingQuantiles } from './sliding-quantiles.js'

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
  /** Requests that were answered with the answer to another one. */
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

/** How long the oldest requests in queues have waited. */
export class OldestWaits {
  readonly #now: number
  /** When they came, in ms: the oldest of all, of each bucket by its name, and of some instances. */
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

export interface TallyOptions {
  /** Monotonic ms. */
  now(): number
  /** ms since 1970, as fine as `now`. */
  wallNow(): number
}

/** An observer of the proxy. */
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
  /** When each request in a queue came, in ms. */
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
        outcomes: { forwarded: 0, rejected: 0, cancelled: 0, expired: 0, failed: 0, refused: 0 },
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
    const now = this.#options.now()
    for (const [place, bucket] of stack.entries()) {
      const tally = this.bucket(bucket.limits.name)
      tally.offered += cost
      tally.lately.offered.add(now, cost)
      if (tally.focus?.bucket === bucket) tally.focus.events.arrived(cost, this.#options.wallNow())
      this.watched.find(bucket.limits.name, keys[place]!)?.arrived(cost, this.#options.wallNow())
    }
  }

  /** @param instances those that are told */
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
    const now = this.#options.now()
    for (const [place, bucket] of stack.entries()) {
      const tally = this.bucket(bucket.limits.name)
      tally.released += cost
      tally.lately.released.add(now, cost)
      if (tally.focus?.bucket === bucket) tally.focus.events.sent(cost, this.#options.wallNow())
      this.watched.find(bucket.limits.name, keys[place]!)?.sent(cost, this.#options.wallNow())
    }
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
    const now = this.#options.now()
    if (rejection !== undefined) countRejection(own.rejections, rejection)
    for (const [place, bucket] of stack.entries()) {
      const tally = this.bucket(bucket.limits.name)
      tally.rejected += cost
      tally.lately.rejected.add(now, cost)
      tally.fullest.hint(keys[place]!)
      if (tally.focus?.bucket === bucket) tally.focus.events.turnedAway(cost, this.#options.wallNow())
      this.watched.find(bucket.limits.name, keys[place]!)?.turnedAway(cost, this.#options.wallNow())
    }
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
