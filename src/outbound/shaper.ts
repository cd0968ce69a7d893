/** The programmatic shaper: calls wait in the queue of their key, and are let go exactly at the rate. */
import { EventEmitter } from 'node:events'
import { quote } from '../config/messages.js'
import { CallContext } from './call-context.js'
import {
  CALL_OPTIONS,
  type CallOptions,
  checkCost,
  checkKey,
  checkOptions,
  readCallOptions,
  readMs,
} from './calls/call-options.js'
import { AdmitCall, type Admitted, RunCall } from './calls/promised-call.js'
import type { EventReporter, OutboundEvents } from './events.js'
import {
  readChanges,
  readShaperOptions,
  type ShaperOptions,
  type ShaperSettings,
  type UpdateOptions,
} from './options.js'
import { processClock } from './process-clock.js'
import { type KeyStatus, keyStatus, type ShaperStatus, shaperStatus } from './status.js'

export interface WrapOptions<Arguments extends unknown[]> {
  readonly key?: string | ((...args: Arguments) => string)
  readonly cost?: number | ((...args: Arguments) => number)
  readonly signal?: AbortSignal
  readonly maxWait?: string | number
}

/**
 * Lets calls through at a rate, one after another by key, and no two closer than one period less 0.5 ms, however late one
 * was. A leaky bucket as a queue: J. Turner, IEEE Communications Magazine, 1986.
 */
export class OutboundShaper extends EventEmitter<OutboundEvents> {
  readonly #context: CallContext

  /** @param connect told what the calls have in common */
  constructor(settings: ShaperSettings, connect?: (context: CallContext) => void) {
    super()
    this.#context = new CallContext(settings, settings.clock ?? processClock, this.#report())
    connect?.(this.#context)
  }

  /**
   * Resolves when a call may be made.
   *
   * @param key whose queue; `''` if absent
   * @throws (rejects with) OverflowError, ExpiredError, ClosedError; StoreError where a store does not answer and without it
   *   nothing goes; the signal's reason; RangeError or TypeError for arguments that are none
   */
  admit(key = '', options?: CallOptions): Promise<Admitted> {
    return new Promise((resolve, reject) => {
      const call = new AdmitCall(this.#context, key, options, resolve, reject)
      call.begin()
    })
  }

  /**
   * Calls `fn` in its turn, and answers with what becomes of that. The call counts as in flight until then.
   *
   * @throws (rejects) as `admit`, or with what `fn` throws
   */
  run<T>(fn: () => T, options?: CallOptions): Promise<Awaited<T>>
  run<T>(key: string, fn: () => T, options?: CallOptions): Promise<Awaited<T>>
  run<T>(first: string | (() => T), second?: CallOptions | (() => T), third?: CallOptions): Promise<Awaited<T>> {
    return new Promise((resolve, reject) => {
      const named = typeof first !== 'function'
      const fn = (named ? second : first) as () => T
      if (typeof fn !== 'function') throw new TypeError('run wants a function: run(fn) or run(key, fn)')
      const options = named ? third : (second as CallOptions | undefined)
      new RunCall(this.#context, named ? first : '', options, resolve as (value: unknown) => void, reject, fn).begin()
    })
  }

  /**
   * A function that does the same as `fn`, each call in its turn.
   *
   * @throws TypeError or RangeError for arguments that are none
   */
  wrap<This, Arguments extends unknown[], Result>(
    fn: (this: This, ...args: Arguments) => Result,
    options: WrapOptions<Arguments> = {},
  ): (this: This, ...args: Arguments) => Promise<Awaited<Result>> {
    if (typeof fn !== 'function') throw new TypeError(`wrap wants a function, not ${quote(fn)}`)
    checkOptions(options, ['key', ...CALL_OPTIONS], '{ key: user => user }')
    const { key = '', cost = 1, ...rest } = options
    if (typeof key !== 'function') checkKey(key)
    if (typeof cost !== 'function') checkCost(cost)
    readCallOptions(rest)
    const shaper = this
    return function (this: This, ...args) {
      try {
        const callKey = typeof key === 'function' ? key(...args) : key
        const callCost = typeof cost === 'function' ? cost(...args) : cost
        return shaper.run(callKey, () => fn.apply(this, args), { ...rest, cost: callCost })
      } catch (error) {
        return Promise.reject(error)
      }
    }
  }

  /**
   * Lets nothing go for so many ms from now; a longer pause that lasts already stays. Calls that would have to wait for longer
   * than they may expire at once. With a store all who share it keep to it.
   *
   * @param time `"10s"`, or ms
   * @param key only this one; if absent, all, those to come included
   * @throws RangeError or TypeError for arguments that are none; OverflowError for a new key where `maxKeys` are in use
   */
  pause(time: string | number, key?: string): void {
    this.#context.pause(readMs('pause', time), key === undefined ? undefined : checkKey(key))
  }

  /** Ends a pause before its time: that of one key, or all there are. With a store others go on keeping to it. */
  resume(key?: string): void {
    this.#context.resume(key)
  }

  /**
   * Changes limits; levels stay, and those who wait are planned anew.
   *
   * @throws RangeError as `createShaper`
   */
  update(options: UpdateOptions): void {
    this.#context.update(readChanges(options, this.#context.sharing !== undefined))
  }

  /**
   * Lets nobody in any more, and resolves when all who wait have gone and everything that runs has ended; after `timeout`
   * (`"10s"`, or ms) the rest are rejected with ClosedError. Then a store is closed, unless it was given as an object. Called
   * again it may shorten the time, but not lengthen it.
   *
   * @throws RangeError or TypeError for arguments that are none
   */
  drain(options: { readonly timeout?: string | number } = {}): Promise<void> {
    checkOptions(options, ['timeout'], '{ timeout: "10s" }')
    const { timeout } = options
    return this.#context.drain(timeout === undefined ? Infinity : readMs('timeout', timeout))
  }

  /** How things stand: with one key, or in all. */
  status(): ShaperStatus
  status(key: string): KeyStatus
  status(key?: string): ShaperStatus | KeyStatus {
    return key === undefined ? shaperStatus(this.#context) : keyStatus(this.#context, key)
  }

  #report(): EventReporter {
    return {
      wants: name => this.listenerCount(name) > 0,
      notify: (name, ...event) => {
        try {
          // The types of EventEmitter do not follow an event by a variable name.
          ;(this as EventEmitter).emit(name, ...event)
        } catch (error) {
          // What a listener throws is its own: reported as from any other callback, and no call suffers from it.
          process.nextTick(() => {
            throw error
          })
        }
      },
    }
  }
}

/**
 * @throws RangeError with everything that is wrong with the options, a line each; TypeError where they are none
 */
export function createShaper(options: ShaperOptions): OutboundShaper {
  return new OutboundShaper(readShaperOptions(options))
}
