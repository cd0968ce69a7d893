/**
 * A call of a function in its turn.
 *
 * Each try of the function is a `Run`. It ends once: with its result, with an error, or because its time is over. What comes later
 * of it does nothing, but for `charge`: the true cost may be known only when a stream has ended.
 */
import { quote } from '../../config/messages.js'
import type { Cancel } from '../../core/clock.js'
import type { CallContext } from '../call-context.js'
import { TimeoutError } from '../errors.js'
import type { CostOf, Costs } from '../options.js'
import { unwatch, watch } from './abort-signals.js'
import { type RunOptions, readMs, readRunOptions } from './call-options.js'
import { Charge } from './charge.js'
import { PromisedCall } from './promised-call.js'

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
        run.abort(error)
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
    const retried = retryMs === undefined ? {} : { retryMs }
    reporter.notify('failed', {
      ...{ ...this.told, attempt: run.attempt, ms: clock.now() - run.startedAt, error },
      ...retried,
    })
  }
}

/**
 * @param error of the function. It is the cause, so that it is not lost
 * @throws TypeError
 */
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

/** One try of the function. */
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

  /** The signal of the call has been aborted. */
  cancel(reason: unknown): void {
    this.abort(reason)
  }

  abort(reason: unknown): void {
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
