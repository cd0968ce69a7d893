/** Waiting calls by their abort signal. Each signal has one listener, however many calls use it. */

interface Abortable {
  /** Gives up with this reason. */
  cancel(reason: unknown): unknown
}

class Watch {
  readonly calls = new Set<Abortable>()
  readonly #signal: AbortSignal

  constructor(signal: AbortSignal) {
    this.#signal = signal
  }

  handleEvent(): void {
    for (const call of this.calls) call.cancel(this.#signal.reason)
  }
}

const watches = new WeakMap<AbortSignal, Watch>()

/** Cancels a call when its signal is aborted. */
export function watch(signal: AbortSignal, call: Abortable): void {
  let watch = watches.get(signal)
  if (watch === undefined) {
    watch = new Watch(signal)
    watches.set(signal, watch)
    signal.addEventListener('abort', watch)
  }
  watch.calls.add(call)
}

export function unwatch(signal: AbortSignal, call: Abortable): void {
  const watch = watches.get(signal)
  if (watch === undefined || !watch.calls.delete(call) || watch.calls.size > 0) return
  watches.delete(signal)
  signal.removeEventListener('abort', watch)
}

/** Also true for a signal of another realm. */
export function isSignal(input: unknown): input is AbortSignal {
  return input instanceof AbortSignal || Object.prototype.toString.call(input) === '[object AbortSignal]'
}
