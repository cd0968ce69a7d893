/** The programmatic shaper. Calls wait in the queue of their key and are released exactly at the rate. */
import { EventEmitter } from 'node:events'
import { either, quote } from '../config/messages.js'
import { CallContext, hasOwnKeys, RETRY_ADMISSION_MS } from './call-context.js'
import { isSignal, unwatch, watch } from './calls/abort-signals.js'
import {
  type CallOptions,
  checkKey,
  checkOptions,
  RUN_OPTIONS,
  type RunOptions,
  readCallOptions,
  readCost,
  readMs,
  readRunOptions,
} from './calls/call-options.js'
import { type MapOptions, mapInOrder } from './calls/map.js'
import { AdmitCall, type Admitted, RunCall, type RunContext } from './calls/run-call.js'
import { ClosedError, OverflowError } from './errors.js'
import type { EventReporter, OutboundEvents } from './events.js'
import {
  type CostOf,
  ONLY,
  readChanges,
  readShaperOptions,
  type ShaperOptions,
  type ShaperSettings,
  type UpdateOptions,
} from './options.js'
import { mayEnd, processClock, stayAlive } from './process-clock.js'
import { retryAfter } from './retry-after.js'

/** Options of `wrap`: those of `run`. `key` and `cost` may depend on the arguments of each call. */
export interface WrapOptions<Arguments extends unknown[], Name extends string = string>
  extends Omit<RunOptions<Name>, 'cost'> {
  /** The queue, or a function of the arguments. Default `''`. */
  readonly key?: string | ((...args: Arguments) => string)
  /** Cost units as in `CallOptions`, or a function of the arguments. Default 1. */
  readonly cost?: CostOf<Name> | ((...args: Arguments) => CostOf<Name>)
}

/**
 * Releases the calls of each key in order, at a rate. No two are closer than one period less 0.5 ms, even after a late
 * one. A leaky bucket as a queue: J. Turner, IEEE Communications Magazine, 1986.
 */
export class OutboundShaper<Name extends string = string> extends EventEmitter<OutboundEvents> {
  readonly #context: CallContext

  /** @internal @param connect receives the context that the calls share */
  constructor(settings: ShaperSettings, connect?: (context: CallContext) => void) {
    super()
    this.#context = new CallContext(settings, settings.clock ?? processClock, this.#report())
    connect?.(this.#context)
  }

  /**
   * Resolves when a call may be made.
   *
   * @param key the queue; default `''`
   * @throws (rejects with) OverflowError, ExpiredError or ClosedError; StoreError if the store does not answer and
   *   `onOutage` is `closed`; the signal's reason; RangeError or TypeError for invalid arguments
   */
  admit(key = '', options?: CallOptions<Name>): Promise<Admitted> {
    return new Promise((resolve, reject) => {
      new AdmitCall(this.#context, key, options).begin(resolve, reject)
    })
  }

  /**
   * Calls `fn` in its turn and returns its result. Without a store a call that may go at once calls `fn` before `run` returns. The
   * call counts as in flight until the result is there. After an error the `retry` of the shaper says whether `fn` is called again.
   *
   * @param key the queue; default `''`
   * @param fn gets `key`, `attempt`, `signal` and `charge`
   * @throws (rejects) as `admit`, with TimeoutError, or with the error of `fn`
   */
  run<T>(fn: (context: RunContext<Name>) => T, options?: RunOptions<Name>): Promise<Awaited<T>>
  run<T>(key: string, fn: (context: RunContext<Name>) => T, options?: RunOptions<Name>): Promise<Awaited<T>>
  run<T>(
    first: string | ((context: RunContext) => T),
    second?: RunOptions | ((context: RunContext) => T),
    third?: RunOptions,
  ): Promise<Awaited<T>> {
    return new Promise((resolve, reject) => {
      const named = typeof first !== 'function'
      const fn = (named ? second : first) as (context: RunContext) => T
      if (typeof fn !== 'function') throw new TypeError('run needs a function: use run(fn) or run(key, fn)')
      if (typeof first === 'object' && first !== null)
        throw new TypeError('run: options come last: use run(fn, options) or run(key, fn, options)')
      const options = named ? third : (second as RunOptions | undefined)
      const call = new RunCall(this.#context, named ? first : '', options, fn)
      call.begin(resolve as (value: unknown) => void, reject)
    })
  }

  /**
   * Returns a function that does the same as `fn`, each call in its turn, as `run`. `fn` gets its own arguments and no context.
   *
   * @throws TypeError or RangeError for invalid arguments
   */
  wrap<This, Arguments extends unknown[], Result>(
    fn: (this: This, ...args: Arguments) => Result,
    options: NoInfer<WrapOptions<Arguments, Name>> = {},
  ): (this: This, ...args: Arguments) => Promise<Awaited<Result>> {
    if (typeof fn !== 'function') throw new TypeError(`wrap needs a function, not ${quote(fn)}: use wrap(fn, options)`)
    checkOptions(options, ['key', ...RUN_OPTIONS], '{ key: user => user }')
    const { key = '', cost = 1, ...rest } = options
    if (typeof key !== 'function') checkKey(key)
    const { names } = this.#context
    if (typeof cost !== 'function') readCost(cost, names)
    readRunOptions(rest, names)
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
   * Releases nothing for this time. A longer pause that is running stays. Calls that would then wait longer than their
   * `maxWait` expire at once. With a store, the other instances pause too.
   *
   * @param time `"10s"`, or ms
   * @param key only this key; default: all keys, including new ones
   * @throws RangeError or TypeError for invalid arguments; OverflowError for a new key if `maxKeys` keys are in use
   */
  pause(time: string | number, key?: string): void {
    this.#context.pause(readMs('pause', time), this.#checkName(key))
  }

  /**
   * Ends a pause early: that of one key, or all pauses. With a store, the other instances keep theirs.
   *
   * @throws RangeError or TypeError for invalid arguments
   */
  resume(key?: string): void {
    this.#context.resume(this.#checkName(key))
  }

  /** A key, or with `credentials` the name of a credential. @throws RangeError or TypeError */
  #checkName(key: string | undefined): string | undefined {
    if (key === undefined) return undefined
    const { credentials } = this.#context
    checkKey(key)
    if (credentials !== undefined && !credentials.names.includes(key))
      throw new RangeError(`key: ${quote(key)} is not the name of a credential; use ${either(credentials.names)}`)
    return key
  }

  /**
   * Changes limits and bounds: `rate`, `capacity` and `burst`, or those of `buckets` by name. What is not named stays. Levels stay.
   * Waiting calls are planned anew; those that would then wait longer than a new `maxWait` expire.
   *
   * @throws RangeError as `createShaper`
   */
  update(options: UpdateOptions<Name>): void {
    const { sharing, names = [ONLY], quotas } = this.#context
    const areNamed = this.#context.names !== undefined
    this.#context.update(readChanges(options, { isShared: sharing !== undefined, areNamed, names, quotas }))
  }

  /**
   * Resolves when one more call would be admitted if no other came. It reserves nothing, so let one loop ask. Where `maxKeys` keys
   * are in use it looks again once a second.
   *
   * @param key default `''`
   * @throws (rejects with) ClosedError; OverflowError if the call can never be admitted; the signal's reason; RangeError or TypeError
   *   for invalid arguments
   */
  room(key = '', options?: RoomOptions<Name>): Promise<void> {
    const isRefused = this.#context.credentials !== undefined && key !== ''
    return isRefused ? Promise.reject(hasOwnKeys(key)) : untilRoom(this.#context, key, options)
  }

  /**
   * Calls `fn` for each item, each in its turn, and yields the results in the order of the items. An item is taken when the one
   * before it has left the queue. So no more than one waits, and any number of items will do. A call that fails ends it, with its
   * error, and what waits then is given up.
   *
   * @throws RangeError or TypeError for invalid arguments; else as `run`
   */
  map<Item, Result>(
    items: Iterable<Item> | AsyncIterable<Item>,
    fn: (item: Item, context: RunContext<Name>) => Result,
    options: NoInfer<MapOptions<Item, Name>> = {},
  ): AsyncGenerator<Awaited<Result>, void, undefined> {
    if (typeof fn !== 'function') throw new TypeError(`map needs a function, not ${quote(fn)}: use map(items, fn)`)
    if (!isIterable(items)) throw new TypeError(`map needs items, not ${quote(items)}: use e.g. map([1, 2], fn)`)
    checkOptions(options, ['key', ...RUN_OPTIONS], '{ key: item => item.user }')
    return mapInOrder(this, items, fn, options)
  }

  /**
   * Rejects the calls that wait, all or those of one key, with ClearedError. What runs goes on.
   *
   * @returns how many waited
   */
  async clear(key?: string): Promise<number> {
    if (key !== undefined && this.#context.credentials !== undefined) throw hasOwnKeys(key)
    return this.#context.clear(key === undefined ? undefined : checkKey(key))
  }

  /** Resolves when no call waits or runs: at once if none does. Calls may be made meanwhile and afterwards. */
  idle(): Promise<void> {
    return new Promise(resolve => this.#context.whenIdle(resolve))
  }

  /**
   * Accepts no more calls. Resolves when all have ended. After `timeout` (`"10s"`, or ms) the waiting ones are rejected
   * with ClosedError. Then closes the store, unless it was given as an object. A second call may shorten the time, but
   * not lengthen it.
   *
   * @throws RangeError or TypeError for invalid arguments
   */
  drain(options: { readonly timeout?: string | number } = {}): Promise<void> {
    checkOptions(options, ['timeout'], '{ timeout: "10s" }')
    const { timeout } = options
    return this.#context.drain(timeout === undefined ? Infinity : readMs('timeout', timeout))
  }

  /**
   * The status of one key, or of all. It changes nothing.
   *
   * @throws RangeError or TypeError for invalid arguments
   */
  status(): ShaperStatus
  status(key: string): KeyStatus
  status(key?: string): ShaperStatus | KeyStatus {
    const name = this.#checkName(key)
    return name === undefined ? shaperStatus(this.#context) : keyStatus(this.#context, name)
  }

  #report(): EventReporter {
    return {
      wants: name => this.listenerCount(name) > 0,
      notify: (name, ...event) => {
        try {
          // The types of EventEmitter do not follow an event by a variable name.
          ;(this as EventEmitter).emit(name, ...event)
        } catch (error) {
          // An error of a listener is reported like that of any other callback. It must not harm a call.
          process.nextTick(() => {
            throw error
          })
        }
      },
    }
  }
}

function isIterable(items: unknown): boolean {
  if (typeof items === 'string') return true
  return typeof items === 'object' && items !== null && (Symbol.iterator in items || Symbol.asyncIterator in items)
}

/**
 * Creates a shaper: calls wait in the queue of their key and leave at the rate.
 *
 * @example
 * const shaper = createShaper({ rate: '5/s', capacity: 100 })
 * const answer = await shaper.run('user_42', () => call())
 *
 * @throws RangeError with one line for each wrong option; TypeError if `options` is no object
 */
export function createShaper<Name extends string = never>(options: ShaperOptions<Name>): OutboundShaper<Name> {
  return new OutboundShaper(readShaperOptions(options))
}

const LISTED = 20

/** The status of one key. */
export interface KeyStatus {
  /** Its queue. */
  readonly key: string
  /** The level of its bucket, of several that of the last, in cost units: waiting calls, and what is left of released ones. */
  readonly level: number
  /** Of several buckets, the level of each by its name. */
  readonly levels?: Readonly<Record<string, number>>
  /** Waiting calls. */
  readonly queued: number
  /** Calls of `run`, `wrap` and requests of `shape` that have begun and not ended. */
  readonly inFlight: number
  /** ms; 0: not paused. */
  readonly pausedForMs: number
  /** ms until all its buckets let the next call pass, even if none waits. 0: at once. */
  readonly nextReleaseMs: number
}

/** The status of a shaper. */
export interface ShaperStatus {
  /** Waiting calls. */
  readonly queued: number
  /** Running calls, of `run` and of `shape`. */
  readonly inFlight: number
  /** Keys in use, now or recently. */
  readonly keys: number
  /** ms that the pause of all keys still lasts. 0: there is none. Pauses of single keys do not count. */
  readonly pausedForMs: number
  /** It has been drained, or drains now. */
  readonly closed: boolean
  /** The state of the store; absent without one. */
  readonly store?: 'shared' | 'doubtful' | 'alone' | 'returning'
  /** The 20 keys whose buckets are fullest. */
  readonly fullest: readonly KeyStatus[]
}

function keyStatus(context: CallContext, key: string): KeyStatus {
  const now = context.clock.now()
  const queue = context.queues.get(key)
  const stack = queue?.stack ?? []
  const releases = stack.map(bucket => bucket.freeFor(bucket.nextCost || 1) - now)
  const pausedForMs = queue?.gate.pausedFor(now) ?? context.pauses.allFor(now)
  return {
    key,
    level: stack.at(-1)?.level(now) ?? 0,
    ...(context.names && { levels: Object.fromEntries(stack.map(bucket => [bucket.limits.name, bucket.level(now)])) }),
    queued: queue?.waiting ?? 0,
    inFlight: queue?.running ?? 0,
    pausedForMs,
    nextReleaseMs: Math.max(0, pausedForMs, ...releases),
  }
}

function shaperStatus(context: CallContext): ShaperStatus {
  const now = context.clock.now()
  const levels = Array.from(context.queues, ({ name, stack }) => ({ name, level: stack.at(-1)?.level(now) ?? 0 }))
  const fullest = levels.sort((a, b) => b.level - a.level).slice(0, LISTED)
  return {
    queued: context.waiting.size,
    inFlight: context.running,
    keys: context.queues.size,
    pausedForMs: context.pauses.allFor(now),
    closed: context.closed,
    ...(context.sharing !== undefined && { store: context.sharing.state }),
    fullest: fullest.map(({ name }) => keyStatus(context, name)),
  }
}

/** Options of `room`: the cost of the call to come, and a signal that ends the wait. */
export type RoomOptions<Name extends string = string> = Pick<CallOptions<Name>, 'cost' | 'signal'>

/** Resolves when a call would be admitted. */
async function untilRoom(context: CallContext, key: string, options: RoomOptions = {}): Promise<void> {
  checkKey(key)
  checkOptions(options, ['cost', 'signal'], '{ cost: 2 }')
  const { signal, ...cost } = readCallOptions(options, context.names)
  for (;;) {
    if (context.closed) throw new ClosedError()
    if (isSignal(signal)) signal.throwIfAborted()
    const queue = context.queueOf(key, context.clock.now())
    const ms = queue === undefined ? RETRY_ADMISSION_MS : context.untilRoom(queue, cost)
    if (ms === 0) return
    if (ms === Infinity) throw new OverflowError('too-costly', key, Infinity)
    await passed(context, retryAfter(ms), signal)
  }
}

/** Resolves after this many ms, or when the shaper has ended, or the signal is aborted. */
function passed(context: CallContext, ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise(resolve => {
    const { clock, roomWaits } = context
    const waiter = { cancel: () => end() }
    const end = (): void => {
      if (!roomWaits.delete(end)) return
      cancel()
      if (signal !== undefined) unwatch(signal, waiter)
      mayEnd()
      resolve()
    }
    roomWaits.add(end)
    stayAlive()
    if (signal !== undefined) watch(signal, waiter)
    const cancel = clock.at(clock.now() + ms, end)
  })
}
