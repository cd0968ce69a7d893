/**
 * Finds the smallest limits that keep given bounds: first the smallest rate of two digits that keeps them with some whole
 * capacity, then the smallest such capacity.
 *
 * Why the result is exact:
 * - A higher rate never rejects more, so the lowest rate that can reject few enough is found by bisection.
 * - A higher rate may lengthen the quantiles of waits, because short waits vanish first. So every rate from there on is
 *   tried in turn.
 * - At one rate every count rises or falls with the capacity. So the counts at two capacities bound those between, and a
 *   gap is searched only if these bounds allow an answer in it (`mayKeep`).
 */

import type { Bound } from '../runs/bound-run.js'
import { keeps, mayKeep, type PointCounts } from '../runs/bound-run.js'
import type { Point } from '../runs/level-rows.js'
import type { Grid } from './sweep-grid.js'

/** How many points to count in one pass. Each keeps a level for each client. */
const BATCH = 64

/** How many rates to try together. */
const RATES = 16

/** Into how many steps a bisection divides its range. */
const STEPS = 8

/** Counts the outcomes of all arrivals at each point. */
export type Count = (points: readonly Point[]) => Promise<readonly PointCounts[]>

/**
 * @param within the rates and capacities to consider
 * @param cost of a request, in cost units
 * @returns undefined: no point keeps the bounds
 */
export async function findSmallest(
  bounds: readonly Bound[],
  within: Grid,
  cost: number,
  count: Count,
): Promise<Point | undefined> {
  const [least, most] = [Math.ceil(within.capacities[0]!), Math.floor(within.capacities.at(-1)!)]
  if (least > most) return undefined
  const rates = ratesBetween(within.rates[0]!, within.rates.at(-1)!)
  const rejects = bounds.filter(({ metric }) => metric === 'reject')
  /** The index of the first point that rejects few enough. Each point has to reject no more than the one before. */
  const first = (points: number, pointAt: (at: number) => Point) =>
    rejects.length === 0 ? 0 : firstThat(points, async tried => (await count(tried.map(pointAt))).map(isFew))
  const isFew = (counts: PointCounts): boolean => keeps(counts, rejects)

  const slowest = await first(rates.length, at => ({ rate: rates[at]!, capacity: most }))
  for (let from = slowest; from < rates.length; from += RATES) {
    const group = rates.slice(from, from + RATES)
    // A slower rate needs at least as much capacity as the fastest of the group.
    const room = least + (await first(most - least + 1, at => ({ rate: group.at(-1)!, capacity: least + at })))
    const searches = group.map(rate => new RateSearch({ rate, least: room, most, cost }, bounds))
    for (let open = stillOpen(searches); open.length > 0; open = stillOpen(searches)) {
      const wanted = open.map(search => search.wanted(BATCH / open.length))
      const counts = await inBatches(wanted.flat(), count)
      for (const [at, search] of open.entries()) search.take(counts.splice(0, wanted[at]!.length))
    }
    const found = searches.find(({ best }) => best !== undefined)
    if (found !== undefined) return { rate: found.rate, capacity: found.best! }
  }
  return undefined
}

/**
 * The first index with a property that all later indexes have, too; `many` when none has it.
 *
 * @param are tells which of the tried indexes have the property
 */
async function firstThat(
  many: number,
  are: (tried: readonly number[]) => Promise<readonly boolean[]>,
): Promise<number> {
  let [low, high] = [0, many]
  while (low < high) {
    const tried = spaced(low, high - 1, STEPS)
    const first = (await are(tried)).indexOf(true)
    low = first === 0 ? low : tried.at(first < 0 ? -1 : first - 1)! + 1
    if (first >= 0) high = tried[first]!
  }
  return low
}

/** The searches that may still change the answer: undecided ones, at rates no higher than the lowest one found. */
function stillOpen(searches: readonly RateSearch[]): RateSearch[] {
  const found = searches.findIndex(({ best }) => best !== undefined)
  return searches.filter((search, at) => search.open && (found < 0 || at <= found))
}

async function inBatches(points: readonly Point[], count: Count): Promise<PointCounts[]> {
  const counts: PointCounts[] = []
  for (let from = 0; from < points.length; from += BATCH)
    counts.push(...(await count(points.slice(from, from + BATCH))))
  return counts
}

/** Capacities that may hold the answer: `low + step * n` up to `high`. After the first round both ends are counted. */
interface Gap {
  readonly low: number
  readonly high: number
}

/** One rate, and the whole capacities from `least` to `most`. */
interface RateRange {
  readonly rate: number
  readonly least: number
  readonly most: number
  /** Of a request. */
  readonly cost: number
}

/** The smallest capacity that keeps the bounds at one rate. */
class RateSearch {
  readonly rate: number
  /** The smallest known capacity that keeps the bounds. */
  best: number | undefined
  readonly #bounds: readonly Bound[]
  /** Counts are monotonic only between capacities that differ by at least the cost. */
  readonly #step: number
  #gaps: readonly Gap[]
  /** The capacities asked for in the last round, by gap. */
  #asked: readonly (readonly number[])[] = []
  readonly #known = new Map<number, PointCounts>()

  constructor({ rate, least, most, cost }: RateRange, bounds: readonly Bound[]) {
    this.rate = rate
    this.#bounds = bounds
    const step = Math.ceil(cost)
    this.#step = step
    this.#gaps = Array.from({ length: Math.min(step, most - least + 1) }, (_, at) => ({
      low: least + at,
      high: least + at + step * Math.floor((most - least - at) / step),
    }))
  }

  get open(): boolean {
    return this.#gaps.length > 0
  }

  /** The points to count next. @param most about how many; each gap gets some in any case */
  wanted(most: number): Point[] {
    // The two ends usually show that there is no answer between them.
    const marks = this.#known.size === 0 ? 2 : Math.max(3, Math.floor(most / this.#gaps.length))
    this.#asked = this.#gaps.map(({ low, high }) =>
      spaced(0, (high - low) / this.#step, marks).map(at => low + at * this.#step),
    )
    const unknown = this.#asked.flat().filter(capacity => !this.#known.has(capacity))
    return unknown.map(capacity => ({ rate: this.rate, capacity }))
  }

  /** @param counts of the wanted points */
  take(counts: readonly PointCounts[]): void {
    for (const each of counts) {
      this.#known.set(each.capacity, each)
      if (keeps(each, this.#bounds) && each.capacity < (this.best ?? Infinity)) this.best = each.capacity
    }
    this.#gaps = this.#asked.flatMap(capacities =>
      capacities
        .slice(1)
        .map((high, at) => ({ low: capacities[at]!, high }))
        .filter(gap => this.#mayHold(gap)),
    )
  }

  /** Whether a smaller answer may lie between the two ends. */
  #mayHold({ low, high }: Gap): boolean {
    if (high - low <= this.#step || low >= (this.best ?? Infinity)) return false
    return mayKeep(this.#known.get(low)!, this.#known.get(high)!, this.#bounds)
  }
}

/** Up to `most` whole numbers from `low` to `high`, with both ends. */
function spaced(low: number, high: number, most: number): number[] {
  const count = Math.min(Math.floor(most), high - low + 1)
  if (count === 1) return [low]
  return Array.from({ length: count }, (_, at) => Math.round(low + ((high - low) * at) / (count - 1)))
}

/** Every rate of two digits, per second, or per minute if the lowest is below 0.1/s. */
function ratesBetween(low: number, high: number): number[] {
  const rates: number[] = []
  const unit = low * 1_000 >= 0.1 ? 1_000 : 60_000
  for (let exponent = -9; exponent < 9; exponent += 1) {
    for (let digits = 10; digits < 100; digits += 1) {
      const perUnit = Number(`${digits}e${exponent}`)
      if (perUnit / unit >= low * (1 - 1e-9) && perUnit / unit <= high * (1 + 1e-9)) rates.push(perUnit / unit)
    }
  }
  return rates
}
