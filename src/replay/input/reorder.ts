/**
 * Arrivals in the order of time, from lines in the order in which they were written.
 *
 * A line tells when its request ended, or began, in whole seconds or exactly, and perhaps how long it took. Lines of one
 * logged second are gathered until the log is `window` seconds further; then those that know seconds only are spread
 * within it (spread-in-second.ts), in their order, and how long each took is taken off. Where lines tell that, arrivals go through
 * a second window of the same length. What comes later than a window allows is late: it counts for the window's edge.
 */

import { type SecondGroup, SecondWindow } from './second-window.js'
import { spread } from './spread-in-second.js'

export interface ReorderOptions {
  /** Seconds of the log. */
  readonly window: number
  /** Of the spreading; undefined: whole seconds stay whole. */
  readonly seed: number | undefined
  /** Whether lines tell how long their requests took. */
  readonly timed: boolean
  /** Each arrival, in order: ms since the beginning of `origin`, and its tag. */
  readonly arrive: (at: number, tag: number) => void
}

export class Reorder {
  readonly #logged: SecondWindow
  readonly #begun: SecondWindow | undefined
  readonly #seed: number | undefined
  readonly #arrive: (at: number, tag: number) => void
  #origin = Number.NaN

  constructor({ window, seed, timed, arrive }: ReorderOptions) {
    this.#seed = seed
    this.#arrive = arrive
    this.#logged = new SecondWindow(window, group => this.#settle(group))
    this.#begun = timed
      ? new SecondWindow(window, group => {
          group.sort()
          for (let at = 0; at < group.size; at += 1)
            arrive(group.offsets[at]! + this.#base(group.second), group.tags[at]!)
        })
      : undefined
  }

  /** The second that times count from: the first one that was logged. */
  get origin(): number {
    return this.#origin
  }

  /** How many came later than the window allows. */
  get late(): number {
    return this.#logged.late + (this.#begun?.late ?? 0)
  }

  /** By how many seconds the latest of them did. */
  get latest(): number {
    return Math.max(this.#logged.latest, this.#begun?.latest ?? 0)
  }

  /**
   * @param second since 1970
   * @param fraction ms beyond; -1: not known
   * @param duration ms that it took until then
   * @param tag what is to be told with the arrival
   */
  push(second: number, fraction: number, duration: number, tag: number): void {
    if (Number.isNaN(this.#origin)) this.#origin = second
    this.#logged.push(second, fraction, duration, tag)
  }

  /** Lets go of what waits. */
  end(): void {
    this.#logged.end()
    this.#begun?.end()
  }

  #base(second: number): number {
    return (second - this.#origin) * 1_000
  }

  #settle(group: SecondGroup): void {
    const { second, size, tags, offsets, durations } = group
    let whole = 0
    for (let at = 0; at < size; at += 1) if (offsets[at]! < 0) whole += 1
    let nth = 0
    for (let at = 0; at < size; at += 1) {
      if (offsets[at]! >= 0) continue
      offsets[at] = this.#seed === undefined ? 0 : spread(this.#seed, second, nth, whole)
      nth += 1
    }
    const base = this.#base(second)
    const begun = this.#begun
    if (begun === undefined) {
      if (whole < size) group.sort()
      for (let at = 0; at < size; at += 1) this.#arrive(base + offsets[at]!, tags[at]!)
      return
    }
    begun.advance(second)
    for (let at = 0; at < size; at += 1) {
      const arrival = offsets[at]! - durations[at]!
      const seconds = Math.floor(arrival / 1_000)
      begun.push(second + seconds, arrival - seconds * 1_000, 0, tags[at]!)
    }
  }
}
