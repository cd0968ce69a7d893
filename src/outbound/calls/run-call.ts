/**
 * Calls whose result settles a promise: `admit`, and a function that is called in its turn.
 *
 * Each try of the function is a `Run`. It ends once: with its result, with an error, or because its time is over. What comes later
 * of it does nothing, but for `charge`: the true cost may be known only when a stream has ended.
 */
import { quote } from '../../config/messages.js'
import type { Cancel } from '../../core/clock.js'
import { when } from '../../core/maybe-promise.js'
import { ownValue } from '../../core/structures/own-value.js'
import type { CallContext } from '../call-context.js'
import { TimeoutError } from '../errors.js'
import type { KeyQueue } from '../key-queues.js'
import type { CostOf, Costs } from '../options.js'
import { unwatch, watch } from './abort-signals.js'
import { Call } from './call.js'
import {
  type CallOptions,
  type CallSettings,
  checkCost,
  checkKey,
  type RunOptions,
  readCallOptions,
  readCosts,
  readMs,
  readRunOptions,
} from './call-options.js'

/** What `admit` resolves to. */
export interface Admitted {
  /** How long it waited, in ms. */
  readonly waitMs: number
}

abstract class PromisedCall<T> extends Call {
  protected readonly callerSignal: AbortSignal | undefined
  protected resolve: (value: T) => void = ignore
  protected fail: (error: unknown) => void = ignore

  constructor(context: CallContext, key: string, settings: CallSettings) {
    const { cost, costs, maxWait, priority, id } = settings
    super(context, { key: checkKey(key), cost, costs, maxWait, priority, id })
    this.callerSignal = settings.signal
  }

  begin(resolve: (value: T) => void, reject: (error: unknown) => void): void {
    this.resolve = resolve
    this.fail = reject
    const signal = this.callerSignal
    if (signal?.aborted) return reject(signal.reason)
    this.start()
    if (signal === undefined || !this.pending) return
    // `start` emits `queued`. A listener may have aborted the call.
    if (signal.aborted) this.cancel(signal.reason)
    else watch(signal, this)
  }

  protected override refuse(error: unknown): void {
    this.#unwatch()
    this.fail(error)
  }

  protected override go(waitMs: number): boolean {
    this.#unwatch()
    // Before the function runs: it may say at once what it really costs.
    this.context.sendOrder.count(this.route, this)
    return this.proceed(waitMs)
  }

  #unwatch(): void {
    if (this.callerSignal !== undefined) unwatch(this.callerSignal, this)
  }

  protected abstract proceed(waitMs: number): boolean
}

export class AdmitCall extends PromisedCall<Admitted> {
  constructor(context: CallContext, key: string, options: CallOptions | undefined) {
    super(context, key, readCallOptions(options, context.names))
  }

  protected override proceed(waitMs: number): boolean {
    this.resolve({ waitMs })
    return true
  }
}

function ignore(): void {}

/** What the function of `run` is called with. */
export interface RunContext<Name extends string = string> {
  /** The key of the call, or the name of the credential that it takes. */
  readonly key: string
  /** 1 for the first try. */
  readonly attempt: number
  /** Aborted at the `timeout`, or with the signal of the call. */
  readonly signal: AbortSignal
  /**
   * Tells what the call really costs, in place of what was reserved: the total in each bucket, or by name. The last one counts,
   * also after the end of the function. Those that wait move accordingly. A level does not rise above its capacity by it.
   *
   * @throws RangeError
   */
  charge(this: void, cost: CostOf<Name>): void
}

type Fn = (context: RunContext) => unknown

export class RunCall extends PromisedCall<unknown> {
  readonly #fn: Fn
  readonly #timeout: number | undefined
  #tries = 0
  /** Its function has returned no promise. */
  #returned: { readonly run: Run; readonly ms: number } | undefined

  constructor(context: CallContext, key: string, options: RunOptions | undefined, fn: Fn) {
    const settings = readRunOptions(options, context.names)
    super(context, key, settings)
    this.#fn = fn
    this.#timeout = settings.timeout
    // It may fail, or time out, in another one.
    if (context.retry !== undefined || this.#timeout !== undefined) this.keepAsyncContext()
  }

  protected override proceed(): boolean {
    this.#tries += 1
    const run = new Run(this, this.#tries, this.callerSignal)
    if (this.#timeout !== undefined) this.#timeOutIn(run, this.#timeout)
    try {
      const result = this.#fn(run)
      if (isThenable(result)) {
        result.then(
          value => this.#done(run, value),
          error => this.#failed(run, error),
        )
        return false
      }
      // Its place is free after the promise is settled.
      if (!run.end()) return false
      this.resolve(result)
      this.#returned = { run, ms: this.context.clock.now() - run.startedAt }
      return true
    } catch (error) {
      // Nothing of this try may be changed while it begins.
      queueMicrotask(() => this.#failed(run, error))
      return false
    }
  }

  protected override endedAtOnce(): void {
    if (this.#returned !== undefined) this.#tellDone(this.#returned)
  }

  #timeOutIn(run: Run, ms: number): void {
    const { clock } = this.context
    run.cancelTimeout = clock.at(clock.now() + ms, () => {
      this.inAsyncContext(() => {
        const error = new TimeoutError(this.key, ms)
        run.cancel(error)
        this.#failed(run, error)
      })
    })
  }

  #done(run: Run, value: unknown): void {
    if (!run.end()) return
    this.finish()
    this.resolve(value)
    this.#tellDone({ run, ms: this.context.clock.now() - run.startedAt })
  }

  #failed(run: Run, error: unknown): void {
    if (!run.end()) return
    let failure = error
    let retryMs: number | undefined
    try {
      retryMs = this.#retryMs(run, error)
    } catch (thrown) {
      failure = thrown
    }
    this.#tellFailed(run, failure, retryMs)
    if (retryMs !== undefined && !this.context.ended && this.callerSignal?.aborted !== true) {
      if (this.callerSignal !== undefined) watch(this.callerSignal, this)
      this.retryIn(retryMs, failure as Error)
      return
    }
    this.finish()
    this.fail(failure)
  }

  #retryMs(run: Run, error: unknown): number | undefined {
    let answer: unknown
    try {
      answer = this.context.retry?.(error, run.attempt)
    } catch (thrown) {
      const message = thrown instanceof Error ? thrown.message : String(thrown)
      throw new AggregateError([thrown, error], `retry has thrown: ${message}`, { cause: error })
    }
    if (answer === undefined || answer === null || answer === false) return undefined
    return readRetry(answer, error)
  }

  #tellDone({ run, ms }: { readonly run: Run; readonly ms: number }): void {
    const { reporter } = this.context
    if (reporter.wants('done')) reporter.notify('done', { ...this.told, attempt: run.attempt, ms })
  }

  #tellFailed(run: Run, error: unknown, retryMs: number | undefined): void {
    const { reporter, clock } = this.context
    if (!reporter.wants('failed')) return
    const ms = clock.now() - run.startedAt
    const retried = retryMs === undefined ? {} : { retryMs }
    reporter.notify('failed', { ...this.told, attempt: run.attempt, ms, error, ...retried })
  }
}

/** @param error of the function. It is the cause, so that it is not lost. @throws TypeError */
function readRetry(answer: unknown, error: unknown): number {
  const remedy = 'return e.g. 1000 or "1s", or undefined to give up'
  if (isThenable(answer)) {
    answer.then(undefined, () => undefined)
    throw new TypeError(`retry: a promise is not a time; it may not be async: ${remedy}`, { cause: error })
  }
  try {
    const ms = readMs('retry', answer)
    if (ms < Infinity) return ms
  } catch {
    // Said below.
  }
  throw new TypeError(`retry: ${quote(answer)} is not a time; ${remedy}`, { cause: error })
}

class Run implements RunContext {
  readonly key: string
  readonly attempt: number
  readonly startedAt: number
  cancelTimeout: Cancel | undefined
  readonly #charge: Charge
  readonly #callerSignal: AbortSignal | undefined
  #controller: AbortController | undefined
  #isOver = false

  constructor(call: RunCall, attempt: number, callerSignal: AbortSignal | undefined) {
    this.key = call.route.name
    this.attempt = attempt
    this.startedAt = call.context.clock.now()
    this.#charge = new Charge(call)
    this.#callerSignal = callerSignal
  }

  get signal(): AbortSignal {
    if (this.#controller !== undefined) return this.#controller.signal
    this.#controller = new AbortController()
    const caller = this.#callerSignal
    if (caller?.aborted) this.#controller.abort(caller.reason)
    else if (caller !== undefined && !this.#isOver) watch(caller, this)
    return this.#controller.signal
  }

  readonly charge = (cost: number | Costs): void => {
    this.#charge.change(cost)
  }

  cancel(reason: unknown): void {
    this.#controller?.abort(reason)
  }

  /** False: it has ended before. */
  end(): boolean {
    if (this.#isOver) return false
    this.#isOver = true
    this.cancelTimeout?.()
    if (this.#callerSignal !== undefined && this.#controller !== undefined) unwatch(this.#callerSignal, this)
    return true
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  const mayBe = (typeof value === 'object' && value !== null) || typeof value === 'function'
  return mayBe && 'then' in value && typeof value.then === 'function'
}

/**
 * What a released call counts as in its buckets, from its release on.
 *
 * A bucket may add or take out less than it is asked to: a debt above its capacity is forgotten, and what has drained is lost. So
 * beside what was told last there is what really counts. What was forgotten is not taken out later, and what was lost is not added
 * again.
 */
export class Charge {
  readonly #call: Call
  readonly #route: KeyQueue
  /** By bucket, what was told last. At first what was reserved. */
  #told: readonly number[]
  /** What the buckets were asked to change to last, and what counts in them by their answers. */
  #asked: readonly number[]
  #counted: readonly number[]
  #isAsking = false

  /** @param call at its release or while it runs */
  constructor(call: Call) {
    this.#call = call
    this.#route = call.route
    this.#told = call.costs ?? call.stack.map(() => call.cost)
    this.#asked = this.#told
    this.#counted = this.#told
  }

  /** @param cost in each bucket, or by name: a bucket that is not named stays as it is. @throws RangeError */
  change(cost: number | Costs): void {
    this.#told = this.#read(cost)
    this.#settle()
  }

  /** A store answers later. Of the changes that are told meanwhile only the last is passed on, after the answer. */
  #settle(): void {
    if (this.#isAsking || this.#asked === this.#told) return
    const differences = this.#told.map((to, place) => differenceTo(to, this.#asked[place]!, this.#counted[place]!))
    this.#asked = this.#told
    this.#isAsking = true
    when(this.#call.context.settle(this.#route, differences), changes => {
      this.#isAsking = false
      this.#counted = this.#counted.map((counted, place) => counted + changes[place]!)
      this.#settle()
    })
  }

  #read(cost: number | Costs): readonly number[] {
    if (typeof cost !== 'object' || cost === null) {
      const all = checkCost(cost, 'charge')
      return this.#told.map(() => all)
    }
    const { names } = this.#call.context
    const costs = readCosts(cost, names, 'charge')
    return this.#told.map((before, place) => ownValue(costs, names![place]!) ?? before)
  }
}

/** What a bucket is asked to add, or to take out if it is negative, where so much counts in it now. */
function differenceTo(to: number, from: number, counted: number): number {
  return to > from ? Math.max(0, to - Math.max(from, counted)) : Math.min(0, to - Math.min(from, counted))
}
