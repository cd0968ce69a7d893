/**
 * The last hour of an instance as texts for the other instances. Each is a part of it. So an instance writes a few hundred
 * bytes every ten seconds and not its whole hour.
 */
import type { View } from '../../core/board.js'
import { type HourPoint, STEP, STEPS } from './hour-ring.js'

/** Instances of another version may show something else. */
const FORMAT = 1

/** Steps of one part: five minutes. */
const PART = 30

/** The ids of parts are used again after so many parts: an hour, and the part that is being filled. */
export const PARTS = STEPS / PART + 1

/** Bytes. A part leaves out the buckets with the fewest requests before it becomes larger. */
export const LARGEST_PART = 8 * 1_024

const FIGURES = ['forwarded', 'rejected', 'errors', 'waiting', 'cpu'] as const
const BUCKET_FIGURES = ['offered', 'released', 'rejected', 'waiting'] as const

type Columns<Figure extends string> = Record<Figure, number[]>

interface PartText extends Columns<(typeof FIGURES)[number]> {
  readonly format: number
  /** The name of the instance. */
  readonly name: string
  /** ms since 1970 by the clock of the instance: when it wrote this. */
  readonly at: number
  /** The step of the first number of each list. */
  readonly first: number
  readonly buckets: Record<string, Columns<(typeof BUCKET_FIGURES)[number]>>
}

/** A part of the last hour of an instance. */
export interface HourPart {
  /** Unique among all parts of all instances. */
  readonly id: string
  readonly instance: string
  readonly name: string
  /** How far our clock is ahead of that of the instance, in ms. The younger the part, the more exact it is. */
  readonly ahead: number
  /** How old the part is, in ms. */
  readonly age: number
  readonly points: readonly HourPoint[]
}

export interface HourOwner {
  readonly id: string
  readonly name: string
}

/** The parts of the last hour, oldest first. At most `PARTS`. */
export function writeHour({ id, name }: HourOwner, points: readonly HourPoint[], now: number): View[] {
  const parts = new Map<number, HourPoint[]>()
  for (const point of points) {
    const part = Math.floor(point.step / PART)
    const known = parts.get(part)
    if (known === undefined) parts.set(part, [point])
    else known.push(point)
  }
  return Array.from(parts, ([part, own]) => ({ id: `${id}/${part % PARTS}`, text: writePart(name, own, now), age: 0 }))
}

function writePart(name: string, points: readonly HourPoint[], at: number): string {
  const [{ step: first }] = points as [HourPoint]
  const total = columns(FIGURES, points)
  const text: PartText = { format: FORMAT, name, at: Math.round(at), first, ...total, buckets: {} }
  const buckets: [string, PartText['buckets'][string]][] = []
  let size = Buffer.byteLength(JSON.stringify(text))
  for (const bucket of busiest(points)) {
    const own = columns(
      BUCKET_FIGURES,
      points.map(({ buckets }) => buckets.get(bucket)),
    )
    size += Buffer.byteLength(JSON.stringify({ [bucket]: own }))
    if (size > LARGEST_PART) break
    buckets.push([bucket, own])
  }
  return JSON.stringify({ ...text, buckets: Object.fromEntries(buckets) })
}

/** The names of the buckets, that with the most requests first. */
function busiest(points: readonly HourPoint[]): string[] {
  const sums = new Map<string, number>()
  for (const { buckets } of points)
    for (const [name, { offered }] of buckets) sums.set(name, (sums.get(name) ?? 0) + offered)
  return [...sums].sort(([, a], [, b]) => b - a).map(([name]) => name)
}

/** A list of numbers for each figure. Where there is no row it has a 0. */
function columns<Figure extends string>(
  figures: readonly Figure[],
  rows: readonly (Readonly<Record<Figure, number>> | undefined)[],
): Columns<Figure> {
  const all = figures.map(figure => [figure, rows.map(row => rounded(row?.[figure] ?? 0))] as const)
  return Object.fromEntries(all) as Columns<Figure>
}

/** To three digits: a picture shows no more. */
function rounded(value: number): number {
  return Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3))
}

/**
 * Those that are of another version are left out.
 *
 * @param now ms since 1970, by our clock: when they were asked for
 */
export function readHours(views: readonly View[], now: number): HourPart[] {
  return views.flatMap(view => readPart(view, now) ?? [])
}

function readPart({ id, text, age }: View, now: number): HourPart | undefined {
  try {
    const part = JSON.parse(text) as PartText
    if (part.format !== FORMAT) return undefined
    const { name, at, first, forwarded, buckets } = part
    const points = forwarded.map(
      (_, index): HourPoint => ({
        step: first + index,
        ...row(FIGURES, part, index),
        buckets: new Map(Object.entries(buckets).map(([bucket, own]) => [bucket, row(BUCKET_FIGURES, own, index)])),
      }),
    )
    return { id, instance: id.slice(0, id.lastIndexOf('/')), name, ahead: now - age - at, age, points }
  } catch {
    return undefined
  }
}

function row<Figure extends string>(figures: readonly Figure[], lists: Columns<Figure>, index: number) {
  return Object.fromEntries(figures.map(figure => [figure, lists[figure][index]!])) as Record<Figure, number>
}

/** The step of our clock that a step of theirs is. */
export function ourStep(step: number, ahead: number): number {
  return Math.round(step + ahead / STEP)
}
