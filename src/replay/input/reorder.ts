/**
 * Puts arrivals in the order of time, from lines in the order in which they were written.
 *
 * 1. The lines of one logged second are collected until the log is `window` seconds further. By then all of them are there.
 * 2. Requests with whole seconds only are spread within their second, in file order (spread-in-second.ts).
 * 3. If lines tell durations, each is subtracted. That changes the order, so arrivals pass a second window.
 *
 * A line that is later than a window allows counts at the edge of the window.
 */

import { type SecondGroup, SecondWindow } from './second-window.js'

interface ReorderOptions {
  readonly window: number
  /** The seed for spreading; undefined: whole seconds stay whole. */
  readonly seed: number | undefined
  /** Whether lines tell the duration of their requests. */
  readonly timed: boolean
  readonly arrive: (at: number, tag: number) => void
}

export class Reorder {
  readonly #logged: SecondWindow
  readonly #begun: SecondWindow | undefined
  readonly #seed: number | undefined
  readonly #arrive: (at: number, tag: number) => void
  /** The second that times count from: the first logged second, since 1970. */
  origin = Number.NaN

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

  get late(): number {
    return this.#logged.late + (this.#begun?.late ?? 0)
  }

  /** How late the latest of them was, in seconds. */
  get latest(): number {
    return Math.max(this.#logged.latest, this.#begun?.latest ?? 0)
  }

  /**
   * @param second since 1970
   * @param fraction ms after it; -1: not known
   * @param duration of the request until that time, in ms
   * @param tag passed on with the arrival
   */
  push(second: number, fraction: number, duration: number, tag: number): void {
    if (Number.isNaN(this.origin)) this.origin = second
    this.#logged.push(second, fraction, duration, tag)
  }

  end(): void {
    this.#logged.end()
    this.#begun?.end()
  }

  #base(second: number): number {
    return (second - this.origin) * 1_000
  }

  #settle(group: SecondGroup): void {
    const { second, size, tags, offsets, durations } = group
    let whole = 0
    for (let at = 0; at < size; at += 1) if (offsets[at]! < 0) whole += 1
    let nth = 0
    for (let at = 0; at < size; at += 1) {
      if (offsets[at]! >= 0) continue
      offsets[at] = this.#seed === undefined ? 0 : timeInSecond(this.#seed, second, nth, whole)
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

/**
 * The assumed time of a request within its second, for logs with whole seconds. The k-th of n requests (from 0, in log
 * order) lies in the k-th of n equal parts, at a place given by a hash of the seed, the second and k.
 *
 * @param seed a whole number
 * @param second since 1970
 * @returns ms since the beginning of the second, at least 0 and below 1000
 */
export function timeInSecond(seed: number, second: number, k: number, n: number): number {
  let x = seed ^ Math.imul(second, 0x9e3779b1) ^ Math.imul(k + 1, 0x85ebca6b)
  x = Math.imul(x ^ (x >>> 16), 0x21f0aaad)
  x = Math.imul(x ^ (x >>> 15), 0x735a2d97)
  x ^= x >>> 15
  return (1_000 * (k + (x >>> 0) / 2 ** 32)) / n
}
