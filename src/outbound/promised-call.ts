/** Calls whose fate a promise tells. */
import { Call } from './call.js'
import { isCost } from './options.js'
import type { Traffic } from './traffic.js'

export interface CallOptions {
  /** What it adds to its bucket; 1 if absent. It holds it for cost / rate. */
  readonly cost?: number
  /** Takes it out of the queue; its place and its cost are free again. */
  readonly signal?: AbortSignal
  /** ms; instead of the shaper's own. */
  readonly maxWait?: number
}

/** A call that was let go. */
export interface Admitted {
  /** How long it has waited. */
  readonly waitMs: number
}

/** A call that a promise stands for. */
abstract class Promised extends Call {
  readonly #signal: AbortSignal | undefined
  protected readonly fail: (error: unknown) => void

  constructor(traffic: Traffic, key: string, options: CallOptions, reject: (error: unknown) => void) {
    const { cost = 1, maxWait, signal } = options
    if (typeof key !== 'string') throw new TypeError(`a key is a string, not ${typeof key}`)
    if (!isCost(cost)) throw new RangeError(`cost ${cost} is not a finite number of units, 0 or more`)
    if (maxWait !== undefined && !(maxWait >= 0)) throw new RangeError(`maxWait ${maxWait} is not a number of ms`)
    super(traffic, key, cost, maxWait)
    this.#signal = signal
    this.fail = reject
  }

  begin(): void {
    const signal = this.#signal
    if (signal?.aborted) return this.fail(signal.reason)
    this.start()
    if (this.pending) signal?.addEventListener('abort', this)
  }

  /** The signal's. */
  handleEvent(): void {
    this.cancel(this.#signal!.reason)
  }

  protected override refuse(error: unknown): void {
    this.#signal?.removeEventListener('abort', this)
    this.fail(error)
  }

  protected override go(waitMs: number): boolean {
    this.#signal?.removeEventListener('abort', this)
    return this.proceed(waitMs)
  }

  protected abstract proceed(waitMs: number): boolean
}

export class Admission extends Promised {
  readonly #resolve: (admitted: Admitted) => void

  constructor(
    traffic: Traffic,
    key: string,
    options: CallOptions,
    resolve: (admitted: Admitted) => void,
    reject: (error: unknown) => void,
  ) {
    super(traffic, key, options, reject)
    this.#resolve = resolve
  }

  protected override proceed(waitMs: number): boolean {
    this.#resolve({ waitMs })
    return true
  }
}

export class Run extends Promised {
  readonly #resolve: (value: unknown) => void
  readonly #fn: () => unknown

  constructor(
    traffic: Traffic,
    key: string,
    options: CallOptions,
    resolve: (value: unknown) => void,
    reject: (error: unknown) => void,
    fn: () => unknown,
  ) {
    super(traffic, key, options, reject)
    this.#resolve = resolve
    this.#fn = fn
  }

  protected override proceed(): boolean {
    try {
      const result = this.#fn()
      if (isThenable(result)) {
        result.then(
          value => {
            this.finish()
            this.#resolve(value)
          },
          error => {
            this.finish()
            this.fail(error)
          },
        )
        return false
      }
      this.#resolve(result)
    } catch (error) {
      this.fail(error)
    }
    return true
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function'
}
