/**
 * One call, from its arrival to its end.
 *
 * It is `new`, `waiting` (for the store's answer or for its turn), `running`, or `over`. Only one step makes it `over`;
 * whatever comes later does nothing.
 */
import { AsyncResource } from 'node:async_hooks'
import type { Cancel } from '../../core/clock.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { type Cost, type Rejection, type SharedBucket, Ticket } from '../../core/queue/lane.js'
import type { AdmissionCallbacks, Arrival, Verdict } from '../../core/shaper.js'
import { StoreError } from '../../sharing/store.js'
import { type CallContext, RETRY_ADMISSION_MS, type WaitingCall } from '../call-context.js'
import type { Credentials } from '../credentials.js'
import { ClosedError, ExpiredError, OverflowError, type OverflowReason } from '../errors.js'
import type { CallEvent } from '../events.js'
import type { KeyQueue, ReleasedCost } from '../key-queues.js'
import { mayEnd, stayAlive } from '../process-clock.js'
import { retryAfter } from '../retry-after.js'

/** ms that a call may wait longer than its `maxWait` once it is admitted. `retryAfterMs` has as much. */
const TOLERANCE = 1
const NONE: readonly KeyQueue[] = []

export interface CallFacts extends Cost {
  readonly key: string
  /** ms; undefined: the shaper's own */
  readonly maxWait?: number | undefined
  readonly priority?: number
  /** Of a request. Default: empty. */
  readonly origin?: string
  readonly id?: string | undefined
}

export abstract class Call implements Arrival, AdmissionCallbacks, WaitingCall, ReleasedCost {
  readonly context: CallContext
  readonly key: string
  readonly cost: number
  readonly costs: readonly number[] | undefined
  readonly priority: number
  readonly origin: string
  refusedBy: readonly KeyQueue[] = NONE
  readonly arrivedAt: number
  route!: KeyQueue
  stack: readonly SharedBucket[] = []
  releasedAt = 0
  #state: 'new' | 'waiting' | 'running' | 'over' = 'new'
  #ticket: Ticket | undefined
  readonly #id: string | undefined
  readonly #maxWait: number | undefined
  /** Calls off the next try. */
  #cancelRetry: Cancel | undefined
  /** Calls off its end in front. */
  #cancelExpiry: Cancel | undefined
  /** The caller's async context. A call that waits or may be tried again needs it: others run in it anyway. */
  #asyncContext: AsyncResource | undefined

  constructor(context: CallContext, { key, cost, costs, priority, origin, maxWait, id }: CallFacts) {
    this.context = context
    this.key = key
    this.cost = cost
    this.costs = costs
    this.priority = priority ?? DEFAULT_PRIORITY
    this.origin = origin ?? ''
    this.#maxWait = maxWait
    this.#id = id
    this.arrivedAt = context.clock.now()
  }

  /** Runs the call now. Must not throw. @returns true if it has ended; else it calls `finish` at its end */
  protected abstract go(waitMs: number): boolean
  protected abstract refuse(error: unknown): void

  protected get told(): CallEvent {
    const { key, cost, costs } = this
    return {
      key: this.route?.name ?? key,
      cost,
      ...(costs && { costs }),
      ...(this.#id !== undefined && { id: this.#id }),
    }
  }

  get maxWait(): number {
    return this.#maxWait ?? this.context.maxWait
  }

  /** A longer predicted wait is rejected. */
  get patience(): number {
    return this.maxWait
  }

  /** When it expires, in ms after its arrival. The tolerance allows for calls before it that are sent late and so move its slot. */
  get #longestWait(): number {
    return this.maxWait > 0 ? this.maxWait + TOLERANCE : 0
  }

  get hasOwnMaxWait(): boolean {
    return this.#maxWait !== undefined
  }

  get pending(): boolean {
    return this.#state === 'new' || this.#state === 'waiting'
  }

  get running(): boolean {
    return this.#state === 'running'
  }

  start(): void {
    const { context } = this
    if (context.closed) return this.#refused(new ClosedError())
    if (context.failure !== undefined) return this.#refused(context.failure)
    const refusal = context.credentials === undefined ? undefined : context.refusalInFront(this)
    if (refusal !== undefined) return this.#refused(refusal)
    let queue: KeyQueue | undefined
    try {
      queue = context.queueOf(this.key, this.arrivedAt)
    } catch (error) {
      // The limits of its key are wrong.
      return this.#refused(error as Error)
    }
    if (queue === undefined) return this.#refused(new OverflowError('crowded', this.key, RETRY_ADMISSION_MS))
    this.route = queue
    queue.calls += 1
    context.calls += 1
    if (context.credentials !== undefined) return this.#waitInFront(context.credentials)
    context.pauses.watch(queue, this.arrivedAt)
    if (context.ready) this.apply()
    else this.#wait()
  }

  #waitInFront(credentials: Credentials): void {
    const { clock } = this.context
    credentials.add(this)
    if (!this.pending) return
    this.#wait()
    this.#tellQueued()
    if (this.maxWait < Infinity)
      this.#cancelExpiry = clock.at(this.arrivedAt + this.maxWait, () => this.#expireInFront())
  }

  #expireInFront(): void {
    if (this.pending && this.context.credentials?.remove(this)) this.expire(this.context.clock.now())
  }

  leaveFront(due: number): boolean {
    return this.arrivedAt + this.maxWait < due && this.context.credentials!.remove(this)
  }

  giveTo(queue: KeyQueue): void {
    this.#moveTo(queue)
    this.context.pauses.watch(queue, this.arrivedAt)
    this.apply()
  }

  /** Its credential pauses, or is refused: it waits in front again. One that waits for its next try does not. */
  returnToFront(): void {
    const { context } = this
    if (this.#cancelRetry !== undefined) return
    this.#withdraw()
    this.#ticket = undefined
    this.#wait()
    this.#moveTo(context.queueOf(this.key, context.clock.now())!)
    context.credentials!.putBack(this)
  }

  /** From now on it waits in this queue. It has waited in another one, or was in flight and is not any more. */
  protected joinQueue(queue: KeyQueue): void {
    if (this.#cancelRetry !== undefined) return this.#moveTo(queue)
    this.#withdraw()
    this.#ticket = undefined
    this.#wait()
    this.giveTo(queue)
  }

  #moveTo(queue: KeyQueue): void {
    const waits = this.#state === 'waiting' ? 1 : 0
    this.route.calls -= 1
    this.route.waiting -= waits
    this.route = queue
    queue.calls += 1
    queue.waiting += waits
  }

  apply(): void {
    const { context } = this
    const now = context.clock.now()
    const stack = context.stackOf(this.route, now)
    if (stack === undefined) return this.#giveUp(new OverflowError('crowded', this.key, RETRY_ADMISSION_MS))
    this.stack = stack
    const { sharing, shaper } = context
    if (sharing === undefined) return this.decided(shaper.admit(this, this, this.#longestWait, this.arrivedAt))
    const left = this.arrivedAt + this.#longestWait - now
    if (left < 0) return this.expire(now)
    shaper.arrive(this, this, 'shape', left)
    if (this.#state === 'new') this.#wait()
  }

  decided(verdict: Verdict): void {
    if (verdict instanceof Ticket) {
      this.#ticket = verdict
      if (this.#state === 'over') this.context.shaper.cancel(verdict)
      if (!this.pending) return
      this.#wait()
      if (this.context.credentials === undefined) this.#tellQueued()
    } else if (verdict !== 'released') {
      this.reject(verdict)
    } else if (this.pending) {
      // A call that was released at once has not waited.
      const releasedAt = this.#state === 'new' ? this.arrivedAt : this.context.clock.now()
      this.#go(releasedAt)
      this.context.sendOrder.releasedAtOnce(this.route, this)
    } else {
      this.context.leave(this.route, this.cost)
    }
  }

  release(_slot: number, now: number): void {
    const { context, route } = this
    if (!this.pending) return this.#returnSlot()
    if (route.gate.closed || route.gate.paused) return this.#requeueBehindWriter(now)
    const early = context.sendOrder.msTooEarly(route, this, now)
    if (early > 0) return context.sendOrder.delay(route, this, early)
    this.#go(now)
    // Where slots are the engine's own, it does this.
    if (context.shaper.engine.releaseModeOf(route.stack) === 'claimed') context.sendOrder.sent(route, this)
  }

  #tellQueued(): void {
    const { reporter, credentials, waiting } = this.context
    if (!reporter.wants('queued')) return
    const queued = credentials === undefined ? this.route.waiting : waiting.size
    this.inAsyncContext(() => reporter.notify('queued', { ...this.told, queued }))
  }

  /** Gives back the slot of a call that was given up while its release was on the way. */
  #returnSlot(): void {
    this.context.leave(this.route, this.cost)
    if (this.#ticket?.slot !== undefined) this.context.shaper.giveBack(this.#ticket)
    else this.context.shaper.wake(this.route.gate)
  }

  expire(now: number): void {
    if (!this.pending) return
    this.#giveUp(new ExpiredError(this.key, retryAfter(this.context.timeUntilAdmitted(this, now))))
  }

  reject({ reason, buckets, retryAfterMs }: Rejection): void {
    if (!this.pending) return
    if (reason === 'unavailable') return this.#giveUp(new StoreError('the store does not answer'))
    const unknown = reason === 'crowded' ? RETRY_ADMISSION_MS : Infinity
    const retry = retryAfterMs === undefined ? unknown : retryAfter(retryAfterMs)
    // `paused` is an answer of `meter`, and calls are never metered.
    const bucket = this.context.names && buckets[0]?.limits.name
    this.#giveUp(new OverflowError(reason as OverflowReason, this.key, retry, bucket))
  }

  /** Gives up while it waits. The calls behind it move up. @returns false if it does not wait */
  cancel(reason: unknown): boolean {
    if (this.#state !== 'waiting') return false
    const waitMs = this.context.clock.now() - this.arrivedAt
    this.#withdraw()
    this.#end(() => this.#notifyCancelled(waitMs, reason))
    return true
  }

  abandon(error: Error): void {
    if (this.#state !== 'waiting') return
    this.#withdraw()
    this.#giveUp(error)
  }

  protected finish(): void {
    if (this.#state !== 'running') return
    this.#state = 'over'
    this.leaveFlight()
    this.#ended()
  }

  protected leaveFlight(): void {
    const { context, route } = this
    context.running -= 1
    route.running -= 1
    context.leave(route, this.cost)
  }

  /** Back to the head of its queue. It keeps its place in flight until `leaveFlight`. False: that would take too long. */
  protected requeue(): boolean {
    return this.#rejoin(this.maxWait)
  }

  /** As `requeue` after `ms`, with its place in flight free. It fails with `error` if its `maxWait` would be exceeded. */
  protected retryIn(ms: number, error: Error): void {
    const { clock } = this.context
    this.leaveFlight()
    this.#wait()
    this.#cancelRetry = clock.at(clock.now() + ms, () => {
      this.#cancelRetry = undefined
      if (this.pending && !this.#rejoin(this.maxWait + clock.now() - this.arrivedAt)) this.#giveUp(error)
    })
  }

  /** @param maxWait ms since its arrival */
  #rejoin(maxWait: number): boolean {
    const { context, route } = this
    const stack = context.ended ? undefined : context.stackOf(route, context.clock.now())
    if (stack === undefined) return false
    this.stack = stack
    const ticket = context.shaper.requeue(this, this, maxWait, this.arrivedAt)
    if (ticket === undefined) return false
    this.#ticket = ticket
    this.#wait()
    this.#tellQueued()
    context.shaper.wake()
    return true
  }

  /** The call before it is not sent yet, although the store has granted this slot. Puts it back into its queue. */
  #requeueBehindWriter(now: number): void {
    this.route.gate.leave(this.cost)
    this.#ticket = this.context.shaper.putBack(this.#ticket!, this, this.maxWait, this.arrivedAt)
    if (this.#ticket === undefined) this.expire(now)
  }

  #go(now: number): void {
    const { context, route } = this
    this.releasedAt = now
    this.#cancelExpiry?.()
    this.#waitNoMore()
    this.#state = 'running'
    context.running += 1
    route.running += 1
    if (this.inAsyncContext(this.#goAndNotify, now - this.arrivedAt)) this.finish()
    // The credential has nobody who waits now.
    context.credentials?.give()
  }

  #goAndNotify(waitMs: number): boolean {
    const { reporter } = this.context
    const ended = this.go(waitMs)
    if (reporter.wants('released')) reporter.notify('released', { ...this.told, waitMs })
    if (ended) this.endedAtOnce()
    return ended
  }

  /** It has ended with `go`, and its release has been told. */
  protected endedAtOnce(): void {}

  #refused(error: Error): void {
    this.#state = 'over'
    this.#notifyRefused(error)
  }

  #giveUp(error: Error): void {
    this.#end(() => this.#notifyRefused(error))
  }

  /** It has not run, or does not run again. */
  #end(notify: () => void): void {
    this.#cancelRetry?.()
    this.#cancelExpiry?.()
    this.#waitNoMore()
    this.#state = 'over'
    this.inAsyncContext(notify)
    this.#ended()
    this.context.madeRoom()
  }

  #notifyCancelled(waitMs: number, reason: unknown): void {
    const { reporter } = this.context
    this.refuse(reason)
    if (reporter.wants('cancelled')) reporter.notify('cancelled', { ...this.told, waitMs, reason })
  }

  #notifyRefused(error: Error): void {
    const { reporter, clock, sendOrder } = this.context
    sendOrder.rejected()
    this.refuse(error)
    if (!(error instanceof ExpiredError)) {
      if (reporter.wants('rejected')) reporter.notify('rejected', { ...this.told, error })
    } else if (reporter.wants('expired')) {
      reporter.notify('expired', { ...this.told, waitMs: clock.now() - this.arrivedAt, error })
    }
  }

  #withdraw(): void {
    this.context.credentials?.remove(this)
    if (this.#ticket !== undefined) this.context.shaper.cancel(this.#ticket)
  }

  #ended(): void {
    this.route.calls -= 1
    this.context.calls -= 1
    if (this.context.calls === 0) this.context.allEnded()
  }

  #wait(): void {
    if (this.#state === 'waiting') return
    this.#state = 'waiting'
    this.keepAsyncContext()
    this.route.waiting += 1
    this.context.waiting.add(this)
    stayAlive()
  }

  #waitNoMore(): void {
    if (this.#state !== 'waiting') return
    this.route.waiting -= 1
    this.context.waiting.delete(this)
    // When a place among `maxQueued` becomes free is not known before.
    if (this.context.shaper.maxQueued < Infinity) this.context.madeRoom()
    mayEnd()
  }

  /** What happens later happens in the present async context. To be called while that is the caller's. */
  protected keepAsyncContext(): void {
    this.#asyncContext ??= new AsyncResource('ShaperCall')
  }

  /** Runs a step in the caller's async context. */
  protected inAsyncContext<Given extends unknown[], Result>(
    step: (...given: Given) => Result,
    ...given: Given
  ): Result {
    if (this.#asyncContext === undefined) return step.apply(this, given)
    return this.#asyncContext.runInAsyncScope(step, this, ...given)
  }
}
