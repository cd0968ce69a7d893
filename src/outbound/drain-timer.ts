import type { Clock } from '../core/clock.js'
import { mayEnd, stayAlive } from './process-clock.js'

/** Waits until the last call has ended, or until the shortest requested time is over. */
export class DrainTimer {
  /** Resolves when no call is left, or when the time is over. */
  readonly over: Promise<void>
  /** Call it when no call is left. */
  end!: () => void
  readonly #clock: Clock
  #due = Infinity
  #forget = (): void => undefined

  constructor(clock: Clock) {
    this.#clock = clock
    this.over = new Promise(resolve => {
      this.end = () => {
        this.#forget()
        this.#due = -Infinity
        resolve()
      }
    })
  }

  /** Waits for at most `ms` from now. The process stays alive for that long. */
  within(ms: number): void {
    const due = this.#clock.now() + ms
    if (due >= this.#due) return
    this.#forget()
    this.#due = due
    stayAlive()
    const cancel = this.#clock.at(due, this.end)
    this.#forget = () => {
      this.#forget = () => undefined
      cancel()
      mayEnd()
    }
  }
}
