import type { Cancel, Clock } from '../clock.js'

/** Runs a function by the earliest time that was asked for. Only one timer is set at a time. */
export class WakeUp {
  readonly #clock: Clock
  readonly #run: () => void
  /** ms. -Infinity: closed. */
  #at = Infinity
  #cancel: Cancel = () => false

  constructor(clock: Clock, run: () => void) {
    this.#clock = clock
    this.#run = run
  }

  /** @param due ms. Infinity: not at all */
  by(due: number): void {
    if (due >= this.#at) return
    this.#cancel()
    this.#at = due
    this.#cancel = this.#clock.at(due, this.#wake)
  }

  close(): void {
    this.#cancel()
    this.#at = -Infinity
  }

  readonly #wake = (): void => {
    this.#at = Infinity
    this.#run()
  }
}
