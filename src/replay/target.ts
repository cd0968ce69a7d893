/** The smallest limits that keep what was asked for. */
import { parseDuration } from '../core/rate.js'
import { type Grid, rateText } from './grid.js'
import type { Point, PointOutcome } from './sweep-run.js'

const METRICS = ['reject', 'delay', 'p50', 'p90', 'p99', 'max'] as const
type Metric = (typeof METRICS)[number]

/** Shares are from 0 to 1, waits in ms. */
export interface Bound {
  readonly metric: Metric
  readonly most: number
}

const FORMS = 'use e.g. "reject<=0.1%,p99<=2s"; there are reject and delay in %, and p50, p90, p99 and max'

/** @throws RangeError naming what is wrong, and the forms that work */
export function parseTarget(text: string): Bound[] {
  const bounds = text.split(',').map((part): Bound => {
    const [, metric = '', value = ''] = /^\s*(\w+)\s*<=?\s*(\S+)\s*$/.exec(part) ?? []
    if (!METRICS.includes(metric as Metric)) throw new RangeError(`${JSON.stringify(part)} is no target; ${FORMS}`)
    if (metric !== 'reject' && metric !== 'delay') return { metric: metric as Metric, most: parseDuration(value) }
    const [, percent] = /^(\d+(?:\.\d+)?)%$/.exec(value) ?? []
    if (percent === undefined) throw new RangeError(`${JSON.stringify(value)} is no share; ${FORMS}`)
    return { metric, most: Number(percent) / 100 }
  })
  return bounds
}

export function meets(outcome: PointOutcome, bounds: readonly Bound[]): boolean {
  return bounds.every(({ metric, most }) => figure(outcome, metric) <= most)
}

function figure({ requests, rejected, delayed, wait }: PointOutcome, metric: Metric): number {
  if (metric === 'reject') return requests === 0 ? 0 : rejected / requests
  if (metric === 'delay') return requests === 0 ? 0 : delayed / requests
  return wait[metric]
}

/** How many points are put through at once. */
const BATCH = 16

/** Tries points on all arrivals. */
export type Evaluate = (points: readonly Point[]) => Promise<readonly PointOutcome[]>

/**
 * The smallest rate, of two digits, with which some capacity meets the bounds, and the smallest such capacity, whole. More
 * rate never rejects or delays more; at one rate more capacity rejects less and lets wait longer: so at each rate it is
 * the smallest capacity that rejects little enough, if any, and both are found by halving.
 *
 * @param within the rates and capacities that are considered
 * @returns undefined: none meets them
 */
export async function findSmallest(
  bounds: readonly Bound[],
  within: Grid,
  evaluate: Evaluate,
): Promise<PointOutcome | undefined> {
  const rejects = bounds.filter(({ metric }) => metric === 'reject')
  const best = async (rate: number): Promise<PointOutcome | undefined> => {
    let [low, high] = [Math.ceil(within.capacities[0]!), Math.floor(within.capacities.at(-1)!)]
    let found: PointOutcome | undefined
    while (low <= high) {
      const tried = steps(low, high)
      const outcomes = await evaluate(tried.map(capacity => ({ rate, capacity })))
      const first = outcomes.findIndex(outcome => meets(outcome, rejects))
      if (first < 0) break
      found = outcomes[first]!
      high = tried[first]! - 1
      low = first === 0 ? high + 1 : tried[first - 1]! + 1
    }
    return found !== undefined && meets(found, bounds) ? found : undefined
  }
  const rates = ratesBetween(within.rates[0]!, within.rates.at(-1)!)
  let [low, high] = [0, rates.length - 1]
  let found: PointOutcome | undefined
  while (low <= high) {
    const middle = (low + high) >> 1
    const outcome = await best(rates[middle]!)
    if (outcome === undefined) low = middle + 1
    else {
      found = outcome
      high = middle - 1
    }
  }
  return found
}

/** Up to so many whole numbers, with both ends. */
function steps(low: number, high: number): number[] {
  const count = Math.min(BATCH, high - low + 1)
  if (count === 1) return [low]
  return Array.from({ length: count }, (_, at) => Math.round(low + ((high - low) * at) / (count - 1)))
}

/** Every rate that is written with two digits. */
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

/** The lines of a configuration. */
export function configLines(point: Point, key: string): string {
  const { rate, capacity } = point
  return `"buckets": { "client": { "key": ${JSON.stringify(key)}, "rate": "${rateText(rate)}", "capacity": ${capacity} } }`
}
