/**
 * One call, from its arrival to its one end.
 *
 * It is `new`, `waiting` (for the store's answer or for its turn), `running`, and `over`. Whoever has let it go or has given
 * up on it makes it `over`, and only once; what comes after that finds it so.
 */
import { AsyncResource } from 'node:async_hooks'
import { timeUntilFit } from '../../core/admission/decide.js'
import { type Rejection, type SharedBucket, Ticket } from '../../core/queue/lane.js'
import type { Arrival, Verdict } from '../../core/shaper.js'
import type { AdmissionCallbacks } from '../../core/shared-shaper.js'
import { StoreError } from '../../core/store.js'
import { type CallContext, RETRY_ADMISSION_MS, type Waiting } from '../call-context.js'
import { ClosedError, ExpiredError, OverflowError } from '../errors.js'
import type { KeyQueue } from '../key-queues.js'
import { mayEnd, stayAlive } from '../process-clock.js'
import { retryAfter } from '../retry-after.js'
import type { Passed } from '../send-order.js'

export abstract class Call implements Arrival, AdmissionCallbacks, Waiting, Passed {
  readonly traffic: CallContext
  readonly key: string
  readonly cost: number
  readonly arrivedAt: number
  /** Set while it counts. */
  route!: KeyQueue
  stack: readonly SharedBucket[] = []
  /** When it was let go last, in ms. */
  passedAt = 0
  #state: 'new' | 'waiting' | 'running' | 'over' = 'new'
  #ticket: Ticket | undefined
  readonly #maxWait: number | undefined
  /** The caller's async context. Only a call that waits has it: one that goes at once runs in it anyway. */
  #context: AsyncResource | undefined

  /** @param maxWait ms; the shaper's own where it is undefined */
  constructor(traffic: CallContext, key: string, cost: number, maxWait: number | undefined) {
    this.traffic = traffic
    this.key = key
    this.cost = cost
    this.#maxWait = maxWait
    this.arrivedAt = traffic.clock.now()
  }

  /** Goes, now. Must not throw. True: it has ended; else it calls `finish` when it does. */
  protected abstract go(waitMs: number): boolean
  /** Is not to go. Must not throw. */
  protected abstract refuse(error: unknown): void

  get maxWait(): number {
    return this.#maxWait ?? this.traffic.maxWait
  }

  /** Whether it has not been let go or given up yet. */
  get pending(): boolean {
    return this.#state === 'new' || this.#state === 'waiting'
  }

  get running(): boolean {
    return this.#state === 'running'
  }

  start(): void {
    const { traffic } = this
    if (traffic.closed) return this.#refused(new ClosedError())
    const line = traffic.line(this.key, this.arrivedAt)
    if (line === undefined) return this.#refused(new OverflowError('crowded', this.key, RETRY_ADMISSION_MS))
    this.route = line
    line.calls += 1
    traffic.calls += 1
    traffic.pauses.watch(line, this.arrivedAt)
    if (traffic.ready) this.apply()
    else this.#wait()
  }

  apply(): void {
    const { traffic } = this
    const now = traffic.clock.now()
    const stack = traffic.stack(this.route, now)
    if (stack === undefined) return this.#giveUp(new OverflowError('crowded', this.key, RETRY_ADMISSION_MS))
    this.stack = stack
    const { sharing, shaper } = traffic
    if (sharing === undefined) return this.decided(shaper.admit(this, this, this.maxWait, this.arrivedAt))
    const left = this.arrivedAt + this.maxWait - now
    if (left < 0) return this.expire(now)
    sharing.shaper.admit(this, this, left)
    if (this.#state === 'new') this.#wait()
  }

  decided(verdict: Verdict): void {
    if (verdict instanceof Ticket) {
      this.#ticket = verdict
      if (this.#state === 'over') this.traffic.shaper.cancel(verdict)
      if (!this.pending) return
      this.#wait()
      const { report } = this.traffic
      if (report.wants('queued')) {
        report.tell('queued', { key: this.key, cost: this.cost, queued: this.route.waiting })
      }
    } else if (verdict !== 'released') {
      this.reject(verdict)
    } else if (this.pending) {
      // Where it was decided at once it has not waited.
      const passedAt = this.#state === 'new' ? this.arrivedAt : this.traffic.clock.now()
      this.#go(passedAt)
      this.traffic.wire.sent(this.route, this)
    } else {
      this.traffic.leave(this.route)
    }
  }

  release(_slot: number, now: number): void {
    const { traffic, route } = this
    if (!this.pending) return this.#notNeeded()
    if (route.gate.closed || route.gate.paused) return this.#requeueBehindWriter(now)
    const early = traffic.wire.msTooEarly(route, now)
    if (early > 0) return traffic.wire.delay(route, this, early)
    this.#go(now)
    // The engine sees to it where slots are its own.
    if (traffic.shaper.releaseMode === 'claimed') traffic.wire.sent(route, this)
  }

  /** It was given up while its release was on the way. */
  #notNeeded(): void {
    this.route.gate.leave()
    if (this.#ticket?.slot !== undefined) this.traffic.shaper.giveBack(this.#ticket)
    else this.traffic.shaper.wake(this.route.gate)
  }

  expire(now: number): void {
    if (!this.pending) return
    const pause = this.route.gate.pausedFor(now)
    const retry = retryAfter(timeUntilFit(this.stack, this.cost, this.maxWait, now, pause))
    this.#giveUp(new ExpiredError(this.key, retry))
  }

  reject({ reason, retryAfterMs }: Rejection): void {
    if (!this.pending) return
    if (reason === 'unavailable') return this.#giveUp(new StoreError('the store does not answer'))
    const unknown = reason === 'crowded' ? RETRY_ADMISSION_MS : Infinity
    const retry = retryAfterMs === undefined ? unknown : retryAfter(retryAfterMs)
    this.#giveUp(new OverflowError(reason, this.key, retry))
  }

  /** Gives up while it waits; those behind move up. False: it does not wait. */
  cancel(reason: unknown): boolean {
    if (this.#state !== 'waiting') return false
    const waitMs = this.traffic.clock.now() - this.arrivedAt
    this.#withdraw()
    this.#over()
    this.#inContext(this.#tellCancelled, waitMs, reason)
    this.#ended()
    return true
  }

  abandon(error: Error): void {
    if (this.#state !== 'waiting') return
    this.#withdraw()
    this.#giveUp(error)
  }

  /** It has run. */
  protected finish(): void {
    if (this.#state !== 'running') return
    this.#state = 'over'
    this.cease()
    this.#ended()
  }

  /** What was begun has ended. */
  protected cease(): void {
    const { traffic, route } = this
    traffic.running -= 1
    route.running -= 1
    traffic.leave(route)
  }

  /**
   * Waits to be sent once more before all others; its place in flight stays taken until it `ceases`. False: it would have to
   * wait for too long.
   */
  protected again(): boolean {
    const { traffic, route, key, cost } = this
    const stack = traffic.ended ? undefined : traffic.stack(route, traffic.clock.now())
    if (stack === undefined) return false
    this.stack = stack
    const ticket = traffic.shaper.requeue(this, this, this.maxWait, this.arrivedAt)
    if (ticket === undefined) return false
    this.#ticket = ticket
    this.#wait()
    if (traffic.report.wants('queued')) traffic.report.tell('queued', { key, cost, queued: route.waiting })
    traffic.shaper.wake()
    return true
  }

  /** Who went before it is not on the wire yet, though a store had a slot for it. It waits for its turn anew. */
  #requeueBehindWriter(now: number): void {
    const { shaper } = this.traffic
    this.route.gate.leave()
    if (this.#ticket?.slot !== undefined) shaper.giveBack(this.#ticket)
    this.#ticket = shaper.requeue(this, this, this.maxWait, this.arrivedAt)
    if (this.#ticket === undefined) this.expire(now)
  }

  #go(now: number): void {
    const { traffic, route } = this
    this.passedAt = now
    this.#waitNoMore()
    this.#state = 'running'
    traffic.running += 1
    route.running += 1
    if (this.#inContext(this.#goAndTell, now - this.arrivedAt)) this.finish()
  }

  #goAndTell(waitMs: number): boolean {
    const { key, cost } = this
    const { report } = this.traffic
    const ended = this.go(waitMs)
    if (report.wants('released')) report.tell('released', { key, cost, waitMs })
    return ended
  }

  #refused(error: Error): void {
    this.#state = 'over'
    this.#tellRefusal(error)
  }

  #giveUp(error: Error): void {
    this.#over()
    this.#inContext(this.#tellRefusal, error)
    this.#ended()
  }

  #tellCancelled(waitMs: number, reason: unknown): void {
    const { key, cost } = this
    const { report } = this.traffic
    this.refuse(reason)
    if (report.wants('cancelled')) report.tell('cancelled', { key, cost, waitMs, reason })
  }

  #tellRefusal(error: Error): void {
    const { report, clock } = this.traffic
    const { key, cost } = this
    this.refuse(error)
    if (!(error instanceof ExpiredError)) {
      if (report.wants('rejected')) report.tell('rejected', { key, cost, error })
    } else if (report.wants('expired')) {
      report.tell('expired', { key, cost, waitMs: clock.now() - this.arrivedAt, error })
    }
  }

  #withdraw(): void {
    if (this.#ticket !== undefined) this.traffic.shaper.cancel(this.#ticket)
  }

  #over(): void {
    this.#waitNoMore()
    this.#state = 'over'
  }

  #ended(): void {
    this.route.calls -= 1
    this.traffic.calls -= 1
    if (this.traffic.calls === 0) this.traffic.idle()
  }

  #wait(): void {
    if (this.#state === 'waiting') return
    this.#state = 'waiting'
    this.#context ??= new AsyncResource('ShaperCall')
    this.route.waiting += 1
    this.traffic.waiting.add(this)
    stayAlive()
  }

  #waitNoMore(): void {
    if (this.#state !== 'waiting') return
    this.route.waiting -= 1
    this.traffic.waiting.delete(this)
    mayEnd()
  }
  #inContext<Given extends unknown[], Result>(step: (...given: Given) => Result, ...given: Given): Result {
    if (this.#context === undefined) return step.apply(this, given)
    return this.#context.runInAsyncScope(step, this, ...given)
  }
}
