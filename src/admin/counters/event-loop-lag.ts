import { monitorEventLoopDelay } from 'node:perf_hooks'

/** How often the loop is looked at, in ms. */
const RESOLUTION = 20

/** The last minute, in pieces. `MS` is the length of one. */
const PIECES = 6
const MS = 10_000

/** How late the event loop comes to what is due. */
export class EventLoopLag {
  readonly #delays = monitorEventLoopDelay({ resolution: RESOLUTION })
  /** The longest of each past piece, in ns. */
  readonly #longest: number[] = []

  constructor() {
    this.#delays.enable()
    setInterval(() => {
      if (this.#longest.push(this.#delays.max) > PIECES) this.#longest.shift()
      this.#delays.reset()
    }, MS).unref()
  }

  /** The longest lag of the last minute, in ms. */
  get longest(): number {
    return Math.max(0, Math.max(this.#delays.max, ...this.#longest) / 1e6 - RESOLUTION)
  }
}
