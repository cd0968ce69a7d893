import type { Cancel, Clock } from '../../core/clock.js'

/** The part of its rate at which a bucket begins. */
const LEAST = 0.1

/** Each change plans the waiting requests anew, so there are only so many. */
const STEPS = 18

/** The part of its usual rate that an upstream gets after it has failed or paused: it climbs evenly from a tenth to all of it. */
export class WarmUp {
  /** From 0.1 to 1. */
  part = 1
  readonly #duration: number
  #clock: Clock | undefined
  #changed: () => void = () => undefined
  #cancel: Cancel = () => false

  /** @param duration ms */
  constructor(duration: number) {
    this.#duration = duration
  }

  /** @param changed called after `part` has changed */
  join(clock: Clock, changed: () => void): void {
    this.#clock = clock
    this.#changed = changed
  }

  /** @param from when it begins, in ms */
  begin(from = this.#clock!.now()): void {
    this.#cancel()
    if (from <= this.#clock!.now()) this.#take(from, 0)
    else this.#cancel = this.#clock!.at(from, () => this.#take(from, 0))
  }

  close(): void {
    this.#cancel()
  }

  #take(from: number, step: number): void {
    this.part = step === STEPS ? 1 : LEAST + ((1 - LEAST) * step) / STEPS
    if (step < STEPS) {
      const next = from + (this.#duration * (step + 1)) / STEPS
      this.#cancel = this.#clock!.at(next, () => this.#take(from, step + 1))
    }
    this.#changed()
  }
}
