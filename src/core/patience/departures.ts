/**
 * How long clients wait before they hang up, estimated from those that were served and those that left.
 *
 * A client that was answered after t has shown that its patience is longer than t, and no more. So the estimate is the
 * product-limit one (Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958): at each moment at
 * which somebody left, the part of those still waiting that stays. The product of these parts up to t is the part of all
 * clients whose patience lasts until t.
 *
 * Where few still waited, a single one of them would decide. There the estimate goes no further.
 */

/** One wait, from the arrival to its end. */
export interface Wait {
  /** ms */
  readonly ms: number
  /** Its client left. False: it was answered. */
  readonly left: boolean
  /** How many waits it stands for. */
  readonly weight: number
}

/** With fewer waits than these at a moment nothing is known of later ones. */
const LEAST_AT_RISK = 5

export class Departures {
  /** When somebody left, in ms, ascending. */
  readonly #times: number[] = []
  /** The part of all that stays at that moment. */
  readonly #staying: number[] = []

  /** @param waits in any order. They are sorted in place */
  constructor(waits: Wait[]) {
    waits.sort((a, b) => a.ms - b.ms || Number(b.left) - Number(a.left))
    let atRisk = 0
    for (const { weight } of waits) atRisk += weight
    let staying = 1
    for (const [place, { ms, left, weight }] of waits.entries()) {
      if (waits.length - place < LEAST_AT_RISK) return
      if (left) {
        staying *= atRisk - weight > 0 ? (atRisk - weight) / atRisk : 0
        this.#add(ms, staying)
      }
      atRisk -= weight
    }
  }

  #add(ms: number, staying: number): void {
    if (this.#times.at(-1) === ms) {
      this.#staying[this.#staying.length - 1] = staying
      return
    }
    this.#times.push(ms)
    this.#staying.push(staying)
  }

  /** The part of those that wait at `waited` ms that leave before `until` ms. */
  leaving(waited: number, until: number): number {
    const now = this.#stayingUntil(waited)
    return now === 0 ? 1 : 1 - this.#stayingUntil(until) / now
  }

  /** ms after which most have left. Undefined: later than is known. */
  get median(): number | undefined {
    const at = this.#staying.findIndex(staying => staying < 0.5 - 1e-9)
    return at < 0 ? undefined : this.#times[at]
  }

  /** ms. Nothing is known of later departures. Undefined: nobody left. */
  get last(): number | undefined {
    return this.#times.at(-1)
  }

  /**
   * After how many ms a client leaves that has waited for `waited` ms.
   *
   * @param part 0 to 1: how many of such clients stay longer
   * @returns undefined: later than is known
   */
  timeOf(waited: number, part: number): number | undefined {
    const target = this.#stayingUntil(waited) * part
    for (let at = this.#firstFrom(waited); at < this.#times.length; at += 1) {
      if (this.#staying[at]! <= target) return this.#times[at]
    }
    return undefined
  }

  /** The part of all whose patience lasts until then, in ms. */
  #stayingUntil(ms: number): number {
    const at = this.#firstFrom(ms)
    return at === 0 ? 1 : this.#staying[at - 1]!
  }

  /** The place of the first time that is not before `ms`. */
  #firstFrom(ms: number): number {
    let low = 0
    let high = this.#times.length
    while (low < high) {
      const middle = (low + high) >>> 1
      if (this.#times[middle]! < ms) low = middle + 1
      else high = middle
    }
    return low
  }
}
