/** What all calls of one shaper share: queues by key, buckets, pauses, and the store if there is one. */
import { quote } from '../config/messages.js'
import { periodAt, type QuotaSettings } from '../config/periods.js'
import { decide, timeUntilFit } from '../core/admission/decide.js'
import type { BucketLimits, QuotaPeriod } from '../core/bucket/limits.js'
import { pacedLimits } from '../core/bucket/pace.js'
import { BucketTable } from '../core/bucket-table.js'
import type { Clock } from '../core/clock.js'
import { type MaybePromise, when } from '../core/maybe-promise.js'
import { type Cost, costAt, type Demand, type Gate, GatePool, type SharedBucket } from '../core/queue/lane.js'
import { Shaper } from '../core/shaper.js'
import { ownValue } from '../core/structures/own-value.js'
import { Sharing } from '../sharing/sharing.js'
import { deferredStore } from '../stores/deferred.js'
import { openStore } from '../stores/open.js'
import type { BucketNames } from './calls/call-options.js'
import { type CallInFront, Credentials, type Front } from './credentials.js'
import { ClearedError, ClosedError, OverflowError } from './errors.js'
import type { EventReporter } from './events.js'
import { type KeyQueue, KeyQueues } from './key-queues.js'
import { LearnedRates, Resources } from './learned-rates.js'
import type { Changes, InFlight, RetryRule, ShaperSettings } from './options.js'
import { Pauses } from './pauses.js'
import { mayEnd, stayAlive } from './process-clock.js'
import { retryAfter } from './retry-after.js'
import { GRACE, SendOrder } from './send-order.js'

/** ms until a retry if a place is missing and not room in a bucket. */
export const RETRY_ADMISSION_MS = 1_000

export interface WaitingCall {
  readonly key: string
  readonly route: KeyQueue
  readonly origin: string
  /** It waits for a credential that pauses. */
  returnToFront(): void
  leaveFront(due: number): boolean
  expire(now: number): void
  apply(): void
  abandon(error: Error): void
}

export class CallContext {
  readonly clock: Clock
  readonly reporter: EventReporter
  readonly queues: KeyQueues
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  /** Waiting calls, in the order of arrival. */
  readonly waiting = new Set<WaitingCall>()
  running = 0
  calls = 0
  maxWait: number
  ready = true
  /** Why no call can ever be decided. */
  failure: Error | undefined
  /** `closed`: no new calls. `ended`: no call waits or runs any more. */
  closed = false
  ended = false
  readonly pauses: Pauses
  readonly sendOrder: SendOrder
  /** The names of its buckets, if there are several. */
  readonly names: BucketNames
  readonly retry: RetryRule | undefined
  readonly learned: LearnedRates
  readonly resources = new Resources()
  readonly credentials: Credentials | undefined
  /** Who waits for room. Called when the shaper has ended. */
  readonly roomWaits = new Set<() => void>()
  /** Who waits until no call waits or runs. */
  readonly #idleWaits: (() => void)[] = []
  #hasRoomNews = false
  #hasWarned = false
  readonly #pool = new GatePool()
  readonly #bucketTable: BucketTable
  #buckets: readonly BucketOfAll[]
  readonly #periods = new Map<QuotaSettings, QuotaPeriod>()
  /** The capacity is that of the queue in front of the credentials: one call at most waits for each of them. */
  readonly #isOpen: boolean
  /** Of credentials with a rate of their own, in cost units per ms. */
  readonly #rates: ReadonlyMap<string, number>
  readonly #ownLimits: ShaperSettings['limits']
  #drainTimer: DrainTimer | undefined
  #drained: Promise<void> | undefined

  constructor(settings: ShaperSettings, clock: Clock, reporter: EventReporter) {
    const { buckets, areNamed, maxWait, maxInFlight, maxInFlightAll, maxKeys, maxQueued, retry, store, credentials } =
      settings
    this.clock = clock
    this.reporter = reporter
    this.maxWait = maxWait
    this.retry = retry
    this.#ownLimits = settings.limits
    const names = buckets.map(({ name }) => name)
    const changed = (queue: KeyQueue): void => this.#relimit([queue.name])
    this.learned = new LearnedRates({ clock, names, usual: areNamed ? [] : names, changed })
    this.credentials = credentials && new Credentials(this, credentials, buckets.length)
    this.#rates = new Map(credentials?.flatMap(({ name, rate }) => (rate === undefined ? [] : [[name, rate]])))
    this.names = areNamed ? names : undefined
    this.#isOpen = credentials !== undefined && store === undefined
    this.#buckets = buckets.map(({ isCommon, counts, ...limits }) => {
      return { limits: { ...limits, ...(counts === undefined && { grace: GRACE }) }, isCommon, counts }
    })
    bound(this.#pool, maxInFlightAll)
    const queues = new KeyQueues(maxKeys, maxInFlight, this.#pool)
    this.queues = queues
    const onPause = {
      pausing: () => this.#returnToFront(),
      paused: (ms: number) => this.#giveDuringPause(ms),
      resumed: () => {
        this.#giveAnew()
        this.madeRoom()
      },
    }
    // The rate of a key that is forgotten too early is lost.
    const inUse = (key: string, bucket: SharedBucket, now: number): boolean => {
      return !bucket.idle(now) || (queues.get(key)?.calls ?? 0) > 0
    }
    const deferred = store && deferredStore('own' in store ? store.own : undefined)
    this.sharing =
      store &&
      new Sharing({
        store: deferred!,
        onOutage: 'own' in store ? 'local' : store.onOutage,
        clock,
        // Loaded here: an import of the library would take a tenth longer.
        id: process.getBuiltinModule('node:crypto').randomUUID(),
        least: { assumed: 'own' in store ? undefined : store.instances },
      })
    const { sharing } = this
    this.shaper = new Shaper({ clock, maxQueued, ...(sharing && { share: sharing.shareBy(clock) }) })
    this.sendOrder = new SendOrder(clock, this.shaper)
    this.pauses = new Pauses({ control: this.shaper.engine, clock, queues, reporter, store: deferred, ...onPause })
    const create = sharing && ((limits: BucketLimits, key: string) => sharing.createBucket(limits, key))
    this.#bucketTable = new BucketTable(maxKeys * buckets.length, create, inUse)
    if (store === undefined || sharing === undefined) return
    this.ready = false
    void this.#join(sharing, async () => {
      if ('own' in store) return
      await deferred!.opened(await openStore(store, clock, error => this.#complain(error)))
    })
  }

  async #join(sharing: Sharing, open: () => Promise<void>): Promise<void> {
    await open().catch((error: Error) => this.#fail(error))
    // Drained meanwhile: nothing would leave the registry again.
    if (this.ended || this.failure !== undefined) return
    const { shaper, clock } = this
    await sharing.join({
      shaper,
      clock,
      buckets: () => this.#bucketTable.all(),
      peek: (name, key) => this.#bucketTable.peek(name, key),
      gates: () => Array.from(this.queues, queue => queue.gate),
    })
    this.ready = true
    if (this.credentials !== undefined) this.credentials.give()
    else for (const call of [...this.waiting]) call.apply()
  }

  /** There will be no store: its client is not installed, or cannot be loaded. */
  #fail(error: Error): void {
    this.failure = error
    this.#complain(error)
    for (const call of [...this.waiting]) call.abandon(error)
  }

  #complain(error: Error): void {
    if (this.reporter.wants('error')) this.reporter.notify('error', error)
  }

  /** Reports an answer that is not as expected. Without a listener the first one is a warning of the process. */
  complainOfAnswer(error: Error): void {
    if (this.reporter.wants('error')) return this.reporter.notify('error', error)
    if (!this.#hasWarned) process.emitWarning(error.message, 'ShaperWarning')
    this.#hasWarned = true
  }

  /** The limits of a bucket of a key; with a store this instance's share of them. */
  #limitsOf({ limits: usual, isCommon, counts }: BucketOfAll, key: string): BucketLimits {
    const rate = counts === undefined ? this.#rates.get(key) : undefined
    const own = isCommon ? undefined : this.queues.get(key)?.limits
    const limits = {
      ...usual,
      ...(own && ownValue(own, usual.name)),
      ...(rate !== undefined && { rate }),
      ...(this.#isOpen && counts === undefined && { capacity: Infinity }),
      ...(counts && { quota: this.#periodOf(counts) }),
    }
    // A store has one rate for all processes.
    if (this.sharing !== undefined) return this.sharing.limitsOf(limits, key)
    const learned = this.learned.rateOf(this.queues.get(key), limits.name)
    return learned < limits.rate ? { ...limits, rate: learned } : limits
  }

  /** The present period of a quota. It is looked up once for each period. */
  #periodOf(counts: QuotaSettings): QuotaPeriod {
    const now = this.clock.now()
    const known = this.#periods.get(counts)
    if (known !== undefined && now < known.until) return known
    const period = periodAt(counts, { wall: this.clock.wallNow?.() ?? Date.now(), now })
    this.#periods.set(counts, period)
    return period
  }

  #relimit(keys: Iterable<string>): void {
    for (const key of keys) {
      for (const bucket of this.#buckets) {
        const instance = this.#bucketTable.peek(bucket.limits.name, bucket.isCommon ? '' : key)
        if (instance !== undefined) this.shaper.engine.setLimits(instance, this.#limitsOf(bucket, key))
      }
    }
  }

  /** Why a call may not wait in front of the credentials. Undefined: it may. */
  refusalInFront(call: Omit<CallInFront, 'priority' | 'refusedBy' | 'giveTo'>): Error | undefined {
    const { key, maxWait, origin } = call
    const front = this.credentials!.frontOf(origin)!
    if (key !== '') return hasOwnKeys(key)
    if (this.waiting.size >= this.shaper.maxQueued) return new OverflowError('crowded', key, RETRY_ADMISSION_MS)
    let untilFit = 0
    for (const [place, bucket] of this.#buckets.entries()) {
      const keys = keysInFront(bucket, front)
      const rate = keys.reduce((sum, name) => sum + this.#limitsOf(bucket, name).rate, 0)
      const excess = this.#costInFront(place, front) + costAt(call, place) - bucket.limits.capacity * keys.length
      untilFit = Math.max(untilFit, excess / rate)
    }
    if (untilFit > 0) return new OverflowError('overflow', key, retryAfter(untilFit))
    const wait = this.#waitInFront(front, this.clock.now())
    return wait > maxWait ? new OverflowError('max-wait', key, retryAfter(wait - maxWait)) : undefined
  }

  #costInFront(place: number, { costs }: Front): number {
    if (!this.#buckets[place]!.isCommon) return costs[place]!
    return this.credentials!.fronts.reduce((sum, front) => sum + front.costs[place]!, 0)
  }

  /** ms until the credentials have taken what waits in front, and one of them does not pause, if no other call comes. */
  #waitInFront(front: Front, now: number): number {
    const pauses = front.names.map(name => this.#pauseOf(name, now))
    const waits = this.#buckets.map((bucket, place) => {
      const begins = bucket.isCommon ? [Math.min(...pauses)] : pauses
      const keys = keysInFront(bucket, front)
      const drains = keys.map((name, index) => ({ rate: this.#limitsOf(bucket, name).rate, pause: begins[index]! }))
      return timeToDrain(this.#costInFront(place, front), drains)
    })
    return Math.max(...waits)
  }

  #pauseOf(name: string, now: number): number {
    return this.queues.get(name)?.gate.pausedFor(now) ?? this.pauses.allFor(now)
  }

  /** ms until a call like one that expires would be admitted if no other came. */
  timeUntilAdmitted(call: Demand & WaitingCall & { readonly maxWait: number }, now: number): number {
    const { credentials } = this
    if (credentials === undefined) return timeUntilFit(call, call.maxWait, now, call.route.gate.pausedFor(now))
    const { cost, costs, maxWait, origin } = call
    const front = credentials.frontOf(origin)!
    const times = front.names.map(name => {
      const queue = this.queueOf(name, now)
      const stack = queue && this.stackOf(queue, now)
      return stack === undefined ? 0 : timeUntilFit({ stack, cost, costs }, maxWait, now, this.#pauseOf(name, now))
    })
    return Math.max(this.#waitInFront(front, now) - maxWait, ...times.sort((one, other) => one - other).slice(0, 1))
  }

  /** Those in front are given to credentials that do not pause, and anew at the end of the pause. */
  #giveDuringPause(ms: number): void {
    const { clock, credentials } = this
    if (credentials === undefined) return
    const now = clock.now()
    clock.at(now + ms, () => this.#giveAnew())
    credentials.give()
    const pauses = new Map(
      credentials.fronts.map(front => [front, Math.min(...front.names.map(name => this.#pauseOf(name, now)))]),
    )
    // All leave before one expires: their errors must not count each other as waiting.
    const late = [...this.waiting].filter(call => {
      const pause = pauses.get(credentials.frontOf(call.origin)!)!
      return pause > 0 && call.leaveFront(now + pause)
    })
    for (const call of late) call.expire(now)
  }

  #giveAnew(): void {
    this.#returnToFront()
    this.credentials?.give()
  }

  /** All that wait for a credential go back to the front, so that they stay in order. */
  #returnToFront(): void {
    const { credentials, waiting } = this
    if (credentials === undefined) return
    for (const call of waiting) if (credentials.of(call.route) !== undefined) call.returnToFront()
  }

  /** The names of those buckets that are quotas. */
  get quotas(): readonly string[] {
    return this.#buckets.flatMap(({ limits: { name }, counts }) => (counts === undefined ? [] : [name]))
  }

  /** The queue of a key. Undefined: too many keys are in use. */
  queueOf(key: string, now: number): KeyQueue | undefined {
    return this.queues.open(key, now, this.#opened)
  }

  readonly #opened = (queue: KeyQueue): void => {
    queue.limits = this.#ownLimits?.(queue.name)
    queue.isLasting = this.credentials?.of(queue) !== undefined
    this.pauses.opened(queue)
  }

  /** The stack of a queue. Undefined: too many keys are in use. */
  stackOf(queue: KeyQueue, now: number): readonly SharedBucket[] | undefined {
    const stack: SharedBucket[] = []
    for (const bucket of this.#buckets) {
      const key = bucket.isCommon ? '' : queue.name
      const { paces, name } = bucket.limits
      const usual = this.#limitsOf(bucket, key)
      const limits = paces ? pacedLimits(usual, stack.at(-1)!, this.#bucketTable.peek(name, key), now) : usual
      const found = this.#bucketTable.find(limits, key, now, stack)
      if (found === undefined) return undefined
      stack.push(found)
      const { quota } = found.limits
      // What is left has changed, or a count starts anew.
      const isOther = paces ? found.limits !== limits : quota !== undefined && quota.until <= now
      if (isOther) this.shaper.engine.setLimits(found, limits)
    }
    if (stack.some((bucket, place) => queue.stack[place] !== bucket)) {
      queue.stack = stack
      queue.own = stack.filter((_, place) => !this.#buckets[place]!.isCommon)
    }
    return queue.stack
  }

  /** A call has ended: frees its place in the gate. */
  leave({ gate }: KeyQueue, cost: number): void {
    gate.leave(cost)
    this.#pool.wake(this.#wakeGate)
    if (gate.awaited) this.shaper.wake(gate)
    this.credentials?.give()
  }

  readonly #wakeGate = (gate: Gate): void => this.shaper.wake(gate)

  /** ms until a call would be admitted if no other came. 0: now. Infinity: never. */
  untilRoom(queue: KeyQueue, cost: Cost): number {
    if (this.credentials !== undefined) {
      const refusal = this.refusalInFront({ key: queue.name, maxWait: this.maxWait, origin: '', ...cost })
      return refusal instanceof OverflowError ? refusal.retryAfterMs : 0
    }
    const now = this.clock.now()
    const stack = this.stackOf(queue, now)
    if (stack === undefined || this.shaper.queued >= this.shaper.maxQueued) return RETRY_ADMISSION_MS
    const rejection = decide({ route: queue, stack, ...cost }, this.maxWait, now, queue.gate.pausedFor(now))
    return rejection === undefined ? 0 : (rejection.retryAfterMs ?? Infinity)
  }

  /** There is room before its time: those who wait for it look again, once in this turn of the event loop. */
  madeRoom(): void {
    if (this.#hasRoomNews || this.roomWaits.size === 0) return
    this.#hasRoomNews = true
    queueMicrotask(() => {
      this.#hasRoomNews = false
      for (const look of [...this.roomWaits]) look()
    })
  }

  /** What a call has cost turns out to be another: costs by bucket. @returns what has really been added or taken out */
  settle(queue: KeyQueue, differences: readonly number[]): MaybePromise<readonly number[]> {
    const stack = this.stackOf(queue, this.clock.now())
    if (stack === undefined || differences.every(difference => difference === 0)) return differences.map(() => 0)
    this.sendOrder.settle(queue, differences)
    const [difference] = differences as [number]
    const changes = this.shaper.engine.settleCost(
      stack.length === 1 ? { stack, cost: difference } : { stack, cost: 1, costs: differences },
    )
    when(changes, () => this.madeRoom())
    return changes
  }

  allEnded(): void {
    if (this.reporter.wants('idle')) this.reporter.notify('idle')
    for (const then of this.#idleWaits.splice(0)) then()
  }

  whenIdle(then: () => void): void {
    if (this.calls === 0) then()
    else this.#idleWaits.push(then)
  }

  /** @param key undefined: all keys, including new ones. @throws OverflowError if it is new and too many are in use */
  pause(ms: number, key: string | undefined): void {
    if (key === undefined) return this.pauses.pauseAll(ms)
    const queue = this.queueOf(key, this.clock.now())
    if (queue === undefined) throw new OverflowError('crowded', key, RETRY_ADMISSION_MS)
    this.pauses.pause(queue, ms)
  }

  resume(key: string | undefined): void {
    if (key === undefined) return this.pauses.resumeAll()
    const queue = this.queues.get(key)
    if (queue !== undefined) this.pauses.resume(queue)
  }

  /**
   * Changes limits. Levels stay. Waiting calls leave at the new rate. A call that would then wait too long expires at
   * once. A new `maxWait` does not apply to waiting calls that have their own.
   */
  update({ buckets, maxWait, maxKeys, maxQueued, maxInFlight, maxInFlightAll }: Changes): void {
    const limits = Array.from(this.queues, queue => [queue, this.#ownLimits?.(queue.name)] as const)
    for (const [queue, own] of limits) queue.limits = own
    this.#buckets = this.#buckets.map(bucket => {
      return { ...bucket, limits: { ...bucket.limits, ...ownValue(buckets, bucket.limits.name) } }
    })
    this.maxWait = maxWait ?? this.maxWait
    this.shaper.maxQueued = maxQueued ?? this.shaper.maxQueued
    this.queues.maxKeys = maxKeys ?? this.queues.maxKeys
    this.#bucketTable.maxKeys = this.queues.maxKeys * this.#buckets.length
    const { engine } = this.shaper
    for (const bucket of this.#buckets) {
      for (const [key, instance] of this.#bucketTable.entries(bucket.limits.name))
        engine.setLimits(instance, this.#limitsOf(bucket, key))
    }
    if (maxInFlight !== undefined) this.#boundQueues(maxInFlight)
    if (maxInFlightAll !== undefined) bound(this.#pool, maxInFlightAll)
    if (maxInFlightAll !== undefined) this.#pool.wake(this.#wakeGate)
    this.credentials?.give()
    engine.replan(
      Array.from(this.queues, queue => queue.gate),
      (_, { hasOwnMaxWait }) => (hasOwnMaxWait ? Infinity : (maxWait ?? Infinity)),
    )
    this.madeRoom()
  }

  #boundQueues(maxInFlight: InFlight): void {
    this.queues.maxInFlight = maxInFlight
    for (const { gate } of this.queues) {
      bound(gate, maxInFlight)
      if (gate.awaited) this.shaper.wake(gate)
    }
  }

  /** Rejects all that wait, or those of a key. Returns how many. */
  clear(key: string | undefined): number {
    const gone = [...this.waiting].filter(call => key === undefined || call.route.name === key)
    for (const call of gone) call.abandon(new ClearedError())
    return gone.length
  }

  drain(timeout: number): Promise<void> {
    this.closed = true
    this.#drained ??= this.#drain()
    this.#drainTimer!.within(timeout)
    return this.#drained
  }

  async #drain(): Promise<void> {
    this.#drainTimer = new DrainTimer(this.clock)
    this.whenIdle(this.#drainTimer.end)
    await this.#drainTimer.over
    this.ended = true
    for (const call of [...this.waiting]) call.abandon(new ClosedError())
    for (const end of [...this.roomWaits]) end()
    this.pauses.close()
    await this.sharing?.close()
  }
}

export function hasOwnKeys(key: unknown): TypeError {
  return new TypeError(`key: ${quote(key)} is given, but the shaper has credentials: leave it out`)
}

/** The keys of a bucket whose rates those in front share. */
function keysInFront({ isCommon }: BucketOfAll, { names }: Front): readonly string[] {
  return isCommon ? [''] : names
}

interface BucketOfAll {
  readonly limits: BucketLimits
  readonly isCommon: boolean
  /** Of a quota. */
  readonly counts: QuotaSettings | undefined
}

function bound(at: Gate | GatePool, { most, by }: InFlight): void {
  at.maxInFlight = most
  at.byCost = by === 'cost'
}

/** ms until `cost` has been taken by drains that begin after their pauses, and one of them does not pause. */
function timeToDrain(cost: number, drains: readonly { readonly rate: number; readonly pause: number }[]): number {
  const all = [...drains].sort((one, other) => one.pause - other.pause)
  let left = cost
  let rate = 0
  let time = all[0]!.pause
  for (const drain of all) {
    if (left <= rate * (drain.pause - time)) break
    if (rate > 0) left -= rate * (drain.pause - time)
    time = drain.pause
    rate += drain.rate
  }
  return left > 0 && time < Infinity ? time + left / rate : time
}

/** Waits until the last call has ended, or until the shortest requested time is over. */
class DrainTimer {
  /** Resolves when no call is left, or when the time is over. */
  readonly over: Promise<void>
  end!: () => void
  readonly #clock: Clock
  #due = Infinity
  #forget = (): void => undefined

  constructor(clock: Clock) {
    this.#clock = clock
    this.over = new Promise(resolve => {
      this.end = () => {
        this.#forget()
        this.#due = -Infinity
        resolve()
      }
    })
  }

  /** Waits for at most `ms` from now. The process stays alive for that long. */
  within(ms: number): void {
    const due = this.#clock.now() + ms
    if (due >= this.#due) return
    this.#forget()
    this.#due = due
    stayAlive()
    const cancel = this.#clock.at(due, this.end)
    this.#forget = () => {
      this.#forget = () => undefined
      cancel()
      mayEnd()
    }
  }
}
