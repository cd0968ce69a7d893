import type { Dispatcher } from 'undici'

type Raw = Dispatcher.DispatchController['rawHeaders']

/**
 * What a request's handler holds on to from the beginning: while the request waits it stands alone, then it passes on what
 * it is told to the connection's own controller.
 */
export class HeldController implements Dispatcher.DispatchController {
  readonly #aborted: (reason: Error) => void
  #real: Dispatcher.DispatchController | undefined
  #reason: Error | null = null
  #paused = false

  /** @param aborted called once, while there is no connection */
  constructor(aborted: (reason: Error) => void) {
    this.#aborted = aborted
  }

  /** The request is on a connection now, whose controller this is; undefined: it is on none any more. */
  attach(real: Dispatcher.DispatchController | undefined): void {
    this.#real = real
    if (real !== undefined && this.#paused) real.pause()
  }

  abort(reason?: Error): void {
    if (this.aborted) return
    this.#reason = reason ?? new DOMException('This operation was aborted', 'AbortError')
    if (this.#real !== undefined) this.#real.abort(this.#reason)
    else this.#aborted(this.#reason)
  }

  pause(): void {
    this.#paused = true
    this.#real?.pause()
  }

  resume(): void {
    this.#paused = false
    this.#real?.resume()
  }

  get aborted(): boolean {
    return this.#reason !== null || (this.#real?.aborted ?? false)
  }

  get reason(): Error | null {
    return this.#reason ?? this.#real?.reason ?? null
  }

  get paused(): boolean {
    return this.#real?.paused ?? this.#paused
  }

  get rawHeaders(): NonNullable<Raw> | null {
    return this.#real?.rawHeaders ?? null
  }

  get rawTrailers(): NonNullable<Raw> | null {
    return this.#real?.rawTrailers ?? null
  }
}
