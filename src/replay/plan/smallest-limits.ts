/**
 * Finds the smallest limits that keep given bounds: first the smallest rate that keeps them with some capacity, then the
 * smallest such capacity. Rates are those of two digits and those of the sweep; capacities are whole ones and those of the
 * sweep.
 *
 * What is found keeps the bounds, because every count is exact (`BoundRun`). It is the smallest, because only limits that
 * cannot keep them are left out. Why they cannot: take two limits that see the same requests of one client, each of cost c.
 * L, N and b are the level, the number of admitted requests and the capacity of the tighter one, L', N' and b' those of
 * the other.
 *
 * 1. A higher rate, a larger capacity, or both never reject more. Always L' - L <= c (N' - N) and N' >= N. At the beginning all
 *    are 0. While L' > 0 it falls at least as fast as L; at L' = 0 the left side is not positive. A request that only one of
 *    them admits changes both sides by the same c. If that is the tighter one, L' > L, so N' > N before it. Hence bisection
 *    finds the lowest rate that can reject few enough.
 * 2. A higher rate may lengthen the quantiles of waits: short waits vanish first, and only delayed requests count. So every
 *    rate from there on is tried in turn.
 * 3. At one rate, a capacity b' >= b + c delays no fewer requests for longer than any wait. Always L' >= L: a request that only
 *    the tighter one admits finds L + c <= b <= b' - c < L'. Let N and N' count only the admitted requests that found a
 *    level above w, and D = L' - max(L, w). Always D <= c (N' - N) + c and N' >= N: draining does not raise D. A request that the
 *    larger one admits raises D by c at most, and counts if L' > w; else D <= c after it. One that only the tighter one
 *    admits lowers both sides by c if it counts, and then L' - L > c, so N' > N before it. Hence the counts at two
 *    capacities bound those between, and a gap is searched only if these bounds allow an answer in it (`mayKeep`).
 *
 * Time: each pass over the requests tries up to 64 points, in O(64 x requests). For R rates and B capacities it takes
 * O(log R) passes to find where to begin, then for each 16 rates O(log B) passes to find where rejections become few, c / 2
 * passes for the ends of the gaps, and those for gaps that stay open: at most B / 4.
 */
import { type Bound, keeps, mayKeep, type Point, type PointCounts } from '../runs/level-rows.js'
import type { Grid } from './sweep-grid.js'

/** How many points to count in one pass. Each keeps a level for each client. */
const BATCH = 64
/** How many rates to try together. */
const RATES = 16
/** Into how many steps a bisection divides its range. */
const STEPS = 8
/** Rates that differ by less, relatively, are the same. */
const ROUNDING = 1e-9
/** Counts the outcomes of all arrivals at each point. */
type Count = (points: readonly Point[]) => Promise<readonly PointCounts[]>

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
  const [smallest, largest] = [within.capacities[0]!, within.capacities.at(-1)!]
  const [least, most] = [Math.ceil(smallest), Math.floor(largest)]
  const others = within.capacities.filter(capacity => !Number.isInteger(capacity))
  const rates = ratesOf(within)
  const rejects = bounds.filter(({ metric }) => metric === 'reject')
  /** The index of the first point that rejects few enough. Each point has to reject no more than the one before. */
  const first = (points: number, pointAt: (at: number) => Point) =>
    rejects.length === 0 ? 0 : firstThat(points, async tried => (await count(tried.map(pointAt))).map(isFew))
  const isFew = (counts: PointCounts): boolean => keeps(counts, rejects)

  const slowest = await first(rates.length, at => ({ rate: rates[at]!, capacity: largest }))
  for (let from = slowest; from < rates.length; from += RATES) {
    const group = rates.slice(from, from + RATES)
    // A slower rate needs at least as much capacity as the fastest of the group.
    const room = least + (await first(most - least + 1, at => ({ rate: group.at(-1)!, capacity: least + at })))
    const between = others.filter(capacity => capacity > room - 1)
    const searches = group.map(rate => new RateSearch({ rate, least: room, most, others: between, cost }, bounds))
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

/** One rate, the whole capacities from `least` to `most`, and other ones. */
interface RateRange {
  readonly rate: number
  readonly least: number
  readonly most: number
  readonly others: readonly number[]
  readonly cost: number
}

/** The smallest capacity that keeps the bounds at one rate. */
class RateSearch {
  readonly rate: number
  best: number | undefined
  readonly #bounds: readonly Bound[]
  /** Counts are monotonic only between capacities that differ by at least the cost. */
  readonly #step: number
  #gaps: readonly Gap[]
  #asked: readonly (readonly number[])[] = []
  readonly #known = new Map<number, PointCounts>()

  constructor({ rate, least, most, others, cost }: RateRange, bounds: readonly Bound[]) {
    this.rate = rate
    this.#bounds = bounds
    const step = Math.ceil(cost)
    this.#step = step
    const whole = Array.from({ length: Math.min(step, most - least + 1) }, (_, at) => {
      return { low: least + at, high: least + at + step * Math.floor((most - least - at) / step) }
    })
    this.#gaps = [...whole, ...others.map(capacity => ({ low: capacity, high: capacity }))]
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

/** Every rate of two digits, per second, or per minute if the lowest is below 0.1/s, and those of the sweep. */
function ratesOf({ rates: given }: Grid): number[] {
  const [low, high] = [given[0]!, given.at(-1)!]
  const rates: number[] = []
  const unit = low * 1_000 >= 0.1 ? 1_000 : 60_000
  for (let exponent = -9; exponent < 9; exponent += 1) {
    for (let digits = 10; digits < 100; digits += 1) {
      const perUnit = Number(`${digits}e${exponent}`)
      if (perUnit / unit >= low * (1 - ROUNDING) && perUnit / unit <= high * (1 + ROUNDING)) rates.push(perUnit / unit)
    }
  }
  const others = given.filter(rate => !rates.some(other => Math.abs(other - rate) <= rate * ROUNDING))
  return [...rates, ...others].sort((a, b) => a - b)
}
