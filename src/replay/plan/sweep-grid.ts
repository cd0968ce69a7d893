import { exactRate } from '../../config/read-values.js'
import { parseRate } from '../../core/units.js'
import type { Point } from '../runs/level-rows.js'

/** The default number of values of an axis. */
const STEPS = 8
/** The most values of an axis, and the most points. */
const MOST_POINTS = 1_024

export interface Grid {
  /** Cost units per ms, ascending. */
  readonly rates: readonly number[]
  readonly capacities: readonly number[]
}

/** The axes that are given. The others follow the traffic. */
export type GridRequest = Partial<Grid>

/**
 * Reads `rate=1/s..20/s,capacity=5..100`. Each axis is a range, with an optional number of steps (`1/s..20/s x5`), or a
 * list (`5|10|20`). Either axis may be left out.
 *
 * @throws RangeError naming what is wrong, and the forms that work
 */
export function parseGrid(text: string): GridRequest {
  const grid: { rates?: number[]; capacities?: number[] } = {}
  for (const part of text.split(',').filter(each => each.trim() !== '')) {
    const [, axis, values = ''] = /^\s*(rate|capacity)\s*=\s*(.+?)\s*$/.exec(part) ?? []
    if (axis === undefined) throw new RangeError(`${JSON.stringify(part)} is no axis; ${FORMS}`)
    const name = axis === 'rate' ? 'rates' : 'capacities'
    if (grid[name] !== undefined) throw new RangeError(`${axis} is given twice; remove one`)
    grid[name] = axisOf(values, axis === 'rate' ? RATES : CAPACITIES)
  }
  if ((grid.rates?.length ?? STEPS) * (grid.capacities?.length ?? STEPS) > MOST_POINTS) throw tooMany(text)
  return grid
}

const FORMS = 'use e.g. "rate=1/s..20/s,capacity=5..100" or "rate=1/s|2/s|5/s"'

/** How one kind of value is read, and rounded to a value that is easy to read. */
interface Axis {
  readonly parse: (text: string) => number
  readonly round: (value: number) => number
}

const RATES: Axis = { parse: parseRate, round: rate => parseRate(niceRate(rate)) }
const CAPACITIES: Axis = { parse: parseCapacity, round: capacity => Math.max(1, Math.round(capacity)) }

function axisOf(values: string, { parse, round }: Axis): number[] {
  const [, from, to, steps = String(STEPS)] = /^(.+?)\s*\.\.\s*(.+?)(?:\s*x\s*(\d+))?$/.exec(values) ?? []
  if (from === undefined || to === undefined) return listOf(values, parse)
  const [low, high] = [parse(from), parse(to)]
  const count = Number(steps)
  if (!(low < high) || count < 2) throw new RangeError(`${JSON.stringify(values)} is no range; ${FORMS}`)
  if (count > MOST_POINTS) throw tooMany(values)
  // A rounded value may lie outside a narrow range.
  const inside = (value: number): number => Math.min(high, Math.max(low, round(value)))
  return unique(spaced(low, high, count).map((value, at) => (at === 0 ? low : at === count - 1 ? high : inside(value))))
}

function listOf(values: string, parse: Axis['parse']): number[] {
  const texts = values.split('|').map(text => text.trim())
  const list = texts.map(parse)
  const twice = list.findIndex((value, at) => list.indexOf(value) < at)
  if (twice >= 0) throw new RangeError(`${JSON.stringify(texts[twice])} is listed twice; remove one`)
  return unique(list)
}

function tooMany(text: string): RangeError {
  return new RangeError(`${JSON.stringify(text)} has more than ${MOST_POINTS} points; use fewer steps`)
}

function parseCapacity(text: string): number {
  const capacity = /^(\d+\.?\d*|\.\d+)(e\d+)?$/i.test(text) ? Number(text) : Number.NaN
  if (!(capacity > 0 && capacity < Infinity)) throw new RangeError(`${JSON.stringify(text)} is no capacity; ${FORMS}`)
  return capacity
}

/**
 * A grid for the traffic of a log: rates from a fiftieth of the busiest client's peak up to the peak, capacities up to
 * five seconds of the peak, at least 50.
 *
 * @param perSecond the most requests of one client in a second
 */
export function gridForPeak(perSecond: number): Grid {
  const peak = Math.max(2, perSecond)
  const rates = spaced(peak / 50 / 1_000, peak / 1_000, STEPS).map(rate => parseRate(niceRate(rate)))
  const capacities = spaced(1, Math.max(50, 5 * peak), STEPS).map(niceCapacity)
  return { rates: unique(rates), capacities: unique(capacities) }
}

export function pointsOf({ rates, capacities }: Grid): Point[] {
  return rates.flatMap(rate => capacities.map(capacity => ({ rate, capacity })))
}

/** Values from `low` to `high` in equal ratios. */
function spaced(low: number, high: number, count: number): number[] {
  return Array.from({ length: count }, (_, at) => low * (high / low) ** (at / (count - 1)))
}

/** A rate rounded to two digits. @param perMs cost units per ms */
function niceRate(perMs: number): string {
  const [perUnit, unit] = perMs * 1_000 >= 0.1 ? [perMs * 1_000, 's'] : [perMs * 60_000, 'm']
  return `${Number(perUnit.toPrecision(2))}/${unit}`
}

/** A rate in two digits if that is exact, else as `exactRate` writes it. @param perMs cost units per ms */
export function rateText(perMs: number): string {
  const nice = niceRate(perMs)
  return parseRate(nice) === perMs ? nice : exactRate(perMs)
}

function niceCapacity(capacity: number): number {
  const step = 10 ** Math.max(0, Math.floor(Math.log10(capacity)) - 1)
  return Math.round(capacity / step) * step
}

function unique(values: readonly number[]): number[] {
  return [...new Set(values)].sort((a, b) => a - b)
}
