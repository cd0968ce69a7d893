/**
 * Calls for the items of a list, with their results in order.
 *
 * One call waits in the queue at a time, so the rate is used and items are taken as late as can be. Results that nobody has asked
 * for yet are kept, up to `MOST_KEPT`: a consumer that is slow slows down the calls.
 */
import { checkKey, type RunOptions } from './call-options.js'
import type { RunContext } from './run-call.js'

/** Options of `map`: those of `run`, for each item. */
export interface MapOptions<Item, Name extends string = string> extends RunOptions<Name> {
  /** The queue, or a function of the item. Default `''`. */
  readonly key?: string | ((item: Item) => string)
}

interface Runner {
  run<T>(key: string, fn: (context: RunContext) => T, options: RunOptions): Promise<Awaited<T>>
}

/** Calls whose results have not been asked for. */
const MOST_KEPT = 1_000

interface Entry<Result> {
  readonly result: Promise<Awaited<Result>>
  /** Its function has been called, or never will be. */
  readonly left: Promise<void>
}

export async function* mapInOrder<Item, Result>(
  shaper: Runner,
  items: Iterable<Item> | AsyncIterable<Item>,
  fn: (item: Item, context: RunContext) => Result,
  { key = '', signal, ...options }: MapOptions<Item>,
): AsyncGenerator<Awaited<Result>, void, undefined> {
  const stop = new AbortController()
  const stopped = signal === undefined ? stop.signal : AbortSignal.any([signal, stop.signal])
  const source = iteratorOf(items)
  const entries: Entry<Result>[] = []
  const wake = (): void => {
    isDone = true
    told()
  }
  stopped.addEventListener('abort', wake)

  function start(item: Item): Entry<Result> {
    let leave!: () => void
    const left = new Promise<void>(resolve => {
      leave = resolve
    })
    const callKey = typeof key === 'function' ? checkKey(key(item)) : key
    const call = (context: RunContext): Result => {
      leave()
      return fn(item, context)
    }
    const result = shaper.run(callKey, call, { ...options, signal: stopped })
    // It is looked at in its turn.
    result.then(leave, leave)
    return { result, left }
  }

  let isDone = false
  let failure: { readonly error: unknown } | undefined
  let isTaking = false
  let told = (): void => {}

  /** Takes items, each when the one before it has left. */
  async function take(): Promise<void> {
    isTaking = true
    try {
      while (!isDone && entries.length < MOST_KEPT) {
        const next = await source.next()
        if (next.done || stopped.aborted) isDone = true
        else {
          const entry = start(next.value)
          entries.push(entry)
          told()
          await entry.left
        }
      }
    } catch (error) {
      isDone = true
      failure = { error }
    } finally {
      isTaking = false
      told()
    }
  }

  const isOver = (): boolean => stopped.aborted || (isDone && !isTaking)

  try {
    for (;;) {
      if (!isTaking && !isDone) void take()
      const first = entries.shift()
      if (first !== undefined) yield await first.result
      else if (isOver()) break
      else {
        await new Promise<void>(resolve => {
          told = resolve
        })
      }
    }
    if (failure !== undefined) throw failure.error
    signal?.throwIfAborted()
  } finally {
    isDone = true
    stopped.removeEventListener('abort', wake)
    stop.abort(new Error('the map has ended'))
    // A generator ends only after the item that it is asked for, which may never come.
    const ended = endSource(source)
    if (isTaking) ended.catch(() => {})
    else await ended
  }
}

async function endSource(source: AsyncIterator<unknown> | Iterator<unknown>): Promise<void> {
  await source.return?.()
}

function iteratorOf<Item>(items: Iterable<Item> | AsyncIterable<Item>): AsyncIterator<Item> | Iterator<Item> {
  // A string has an iterator, and `in` refuses it.
  if (typeof items !== 'string' && Symbol.asyncIterator in items) return items[Symbol.asyncIterator]()
  return items[Symbol.iterator]()
}
