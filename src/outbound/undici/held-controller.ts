import type { Dispatcher } from 'undici'

type Raw = Dispatcher.DispatchController['rawHeaders']

/**
 * The controller that a request's handler gets at the beginning. While the request waits it works alone. Later it
 * passes everything on to the connection's own controller.
 */
export class HeldController implements Dispatcher.DispatchController {
  readonly #aborted: (reason: Error) => void
  #real: Dispatcher.DispatchController | undefined
  #reason: Error | null = null
  #paused = false

  /** @param aborted called once if `abort` comes while there is no connection */
  constructor(aborted: (reason: Error) => void) {
    this.#aborted = aborted
  }

  /** @param real the controller of the request's connection; undefined: it has none any more */
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
