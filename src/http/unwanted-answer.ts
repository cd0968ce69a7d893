import type { Cancel, Clock } from '../core/clock.js'

/** How much of an unwanted answer is read, and for how many ms, to save its connection. */
export const DISCARD_LIMIT = { bytes: 128 * 1_024, ms: 1_000 }

interface Abortable {
  abort(reason: Error): void
}

/**
 * An answer that nobody is to get. It is read to its end, so that its connection can be used again. An answer that is
 * too long or too slow is aborted.
 */
export class UnwantedAnswer {
  readonly #controller: Abortable
  readonly #disarm: Cancel
  #left = DISCARD_LIMIT.bytes
  #over = false

  constructor(clock: Clock, controller: Abortable) {
    this.#controller = controller
    this.#disarm = clock.at(clock.now() + DISCARD_LIMIT.ms, this.stop)
  }

  read(bytes: number): void {
    this.#left -= bytes
    if (this.#left < 0) this.stop()
  }

  /** The answer has ended or broken off, or it is wanted after all. */
  ended(): void {
    this.#over = true
    this.#disarm()
  }

  readonly stop = (): void => {
    if (this.#over) return
    this.ended()
    this.#controller.abort(new Error('the rest of the answer is not wanted'))
  }
}
