import type { Clock } from '../core/clock.js'
import { mayEnd, stayAlive } from './process-clock.js'

/** Waiting for the last to go: for as long as it takes, or for the least time that anybody has asked for. */
export class DrainTimer {
  /** Nobody is left, or the time is over. */
  readonly over: Promise<void>
  /** Nobody is left. */
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

  /** Takes so many ms from now at most. The process stays for as long. */
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
