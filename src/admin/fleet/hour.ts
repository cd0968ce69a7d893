/**
 * The last hour in steps of ten seconds: recorded by each process, shown to the other instances as parts, and put together to the hour of
 * all of them, also of those that have ended. It costs the same whatever the number of keys: figures are of a process and of its
 * buckets, never of a key.
 */
import { groupedBy } from '../../core/structures/maps.js'
import type { Board, View } from '../../sharing/board.js'
import { cpuSeconds } from '../counters/metrics.js'
import type { TrafficTally } from '../counters/traffic-tally.js'
import { passedOf } from './member.js'

/** ms */
export const STEP = 10_000
/** How many steps are kept: an hour. */
export const STEPS = 360
/** Buckets of one step. Of more, those with the most requests are kept. */
const MOST_BUCKETS = 32
const FIGURES = ['forwarded', 'rejected', 'errors', 'waiting', 'cpu'] as const
const BUCKET_FIGURES = ['offered', 'released', 'rejected', 'waiting'] as const

/** Counts since the start, and what waits now. `errors`: 5xx, and requests without an answer. `cpu`: seconds. */
export interface Totals extends Readonly<Record<(typeof FIGURES)[number], number>> {
  readonly buckets: ReadonlyMap<string, BucketTotals>
}

/** `waiting` is of requests, the others are cost units. */
type BucketTotals = Readonly<Record<(typeof BUCKET_FIGURES)[number], number>>

interface HourPoint extends Totals {
  /** Steps since 1970, by the clock of the process. */
  readonly step: number
}

const NOTHING: BucketTotals = { offered: 0, released: 0, rejected: 0, waiting: 0 }

export class HourRing {
  #points: HourPoint[] = []
  #last: Totals = { forwarded: 0, rejected: 0, errors: 0, waiting: 0, cpu: 0, buckets: new Map() }
  #next: number

  /** @param now ms since 1970. Nothing has been counted by then. */
  constructor(now: number) {
    this.#next = Math.floor(now / STEP)
  }

  get points(): readonly HourPoint[] {
    return this.#points
  }

  /** Ends the steps before `now`, in ms since 1970. After a stop for several steps they share what was counted evenly. */
  end(now: number, totals: Totals): void {
    const current = Math.floor(now / STEP)
    const ended = current - this.#next
    if (ended <= 0) return
    const point = difference(totals, this.#last, ended)
    for (let step = Math.max(this.#next, current - STEPS); step < current; step += 1)
      this.#points.push({ step, ...point })
    this.#points = this.#points.slice(-STEPS)
    this.#last = totals
    this.#next = current
  }
}

function difference(now: Totals, then: Totals, steps: number): Totals {
  const buckets = Array.from(now.buckets, ([name, bucket]) => {
    const old = then.buckets.get(name) ?? NOTHING
    const mean = byFigure(BUCKET_FIGURES, figure => Math.max(0, bucket[figure] - old[figure]) / steps)
    return [name, { ...mean, waiting: bucket.waiting }] as const
  })
  const busy = buckets
    .filter(([, { offered, released, waiting }]) => offered > 0 || released > 0 || waiting > 0)
    .sort(([, a], [, b]) => b.offered - a.offered)
    .slice(0, MOST_BUCKETS)
  const mean = byFigure(FIGURES, figure => (now[figure] - then[figure]) / steps)
  return { ...mean, waiting: now.waiting, buckets: new Map(busy) }
}

function byFigure<Figure extends string, T>(figures: readonly Figure[], of: (figure: Figure) => T): Record<Figure, T> {
  return Object.fromEntries(figures.map(figure => [figure, of(figure)])) as Record<Figure, T>
}

/** Instances of another version may show something else. */
const FORMAT = 1
/** Steps of one part: five minutes. So an instance writes a few hundred bytes every ten seconds and not its whole hour. */
const PART = 30
/** The ids of parts are used again after so many parts: an hour, and the part that is being filled. */
export const PARTS = STEPS / PART + 1
/** Bytes. A part leaves out the buckets with the fewest requests before it becomes larger. */
export const LARGEST_PART = 8 * 1_024
type Columns<Figure extends string> = Record<Figure, number[]>

interface PartText extends Columns<(typeof FIGURES)[number]> {
  readonly format: number
  readonly name: string
  /** ms since 1970 by the clock of the instance: when it wrote this. */
  readonly at: number
  readonly first: number
  readonly buckets: Record<string, Columns<(typeof BUCKET_FIGURES)[number]>>
}

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

type HourOwner = Pick<HourPart, 'id' | 'name'>

/** The parts of the last hour, oldest first. At most `PARTS`. */
export function writeHour({ id, name }: HourOwner, points: readonly HourPoint[], now: number): View[] {
  const parts = groupedBy(points, ({ step }) => Math.floor(step / PART))
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
  return byFigure(figures, figure => rows.map(row => rounded(row?.[figure] ?? 0)))
}

function rounded(value: number): number {
  return Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3))
}

/** Those that are of another version are left out. @param now ms since 1970, by our clock: when they were asked for */
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
        ...byFigure(FIGURES, figure => part[figure][index]!),
        buckets: new Map(
          Object.entries(buckets).map(([name, own]) => [name, byFigure(BUCKET_FIGURES, figure => own[figure][index]!)]),
        ),
      }),
    )
    return { id, instance: id.slice(0, id.lastIndexOf('/')), name, ahead: now - age - at, age, points }
  } catch {
    return undefined
  }
}

/** ms after the end of a step. A timer may be early by one. */
const LATER = 20

interface RecordingOptions extends HourOwner {
  /** ms since 1970. Its steps are even. */
  wallNow(): number
  /** Runs in `ms`. It may be early by a millisecond. */
  later(ms: number, run: () => void): void
  totals(): Totals
  readonly board: Board | undefined
}

export function recordHour({ id, name, wallNow, later, totals, board }: RecordingOptions): () => View[] {
  const ring = new HourRing(wallNow())
  const parts = (): View[] => writeHour({ id, name }, ring.points, wallNow())
  let turn = 0
  const show = async (): Promise<void> => {
    if (board === undefined) return
    const all = parts()
    const latest = all.at(-1)
    if (latest === undefined) return
    // One of the others each time, in turn. So a store that has lost them has all of them again after two minutes.
    turn = (turn + 1) % all.length
    const due = new Set([latest, all[turn]!])
    await Promise.all(Array.from(due, ({ id, text }) => board.show('hour', id, text)))
  }
  const step = (): void => {
    ring.end(wallNow(), totals())
    // Without an answer the store is away, and it is shown later.
    show().catch(() => undefined)
    plan()
  }
  const plan = (): void => later(STEP - (wallNow() % STEP) + LATER, step)
  plan()
  return parts
}

/** A step is shown this long after its end, in ms. Then all instances have reported it, even if their clocks differ a little. */
const SETTLED = 5_000
/** One number for each step; null: nobody knows. */
export type HourList = readonly (number | null)[]

/** `waiting` is what waited at the end of a step, `cpu` the seconds of CPU time in it. All others are counts. */
export interface Hour {
  /** ms since 1970: when the first step begins. */
  readonly from: number
  /** ms */
  readonly step: number
  /** The instances of this hour: since when something is known of each, in ms since 1970. */
  readonly instances: readonly { readonly name: string; readonly since: number }[]
  readonly figures: Readonly<Record<(typeof FIGURES)[number], HourList>>
  /** Of the busiest buckets. `waiting` is of requests, the others are cost units. */
  readonly buckets: Readonly<Record<string, Readonly<Record<(typeof BUCKET_FIGURES)[number], HourList>>>>
}

/** @param parts if one is there twice, the first counts. @param now ms since 1970. @param name undefined: all instances */
export function fleetHour(parts: readonly HourPart[], now: number, name?: string): Hour {
  const known = new Map<string, HourPart>()
  for (const part of parts) if (!known.has(part.id)) known.set(part.id, part)
  const last = Math.floor((now - SETTLED) / STEP) - 1
  const steps = new Steps(last)
  const since = new Map<string, number>()
  for (const own of groupedBy(known.values(), ({ instance }) => instance).values()) {
    // All parts of an instance are moved alike, or two of its steps could become one.
    const youngest = own.reduce((a, b) => (b.age < a.age ? b : a))
    for (const point of own.flatMap(({ points }) => points)) {
      const step = Math.round(point.step + youngest.ahead / STEP)
      if (!steps.covers(step)) continue
      since.set(youngest.name, Math.min(since.get(youngest.name) ?? Infinity, step * STEP))
      if (name === undefined || name === youngest.name) steps.add(step, point)
    }
  }
  const instances = Array.from(since, ([each, from]) => ({ name: each, since: from }))
  return { ...steps.lists(), step: STEP, instances: instances.sort((a, b) => (a.name < b.name ? -1 : 1)) }
}

type BucketSum = Record<(typeof BUCKET_FIGURES)[number], number>
interface Sum {
  readonly figures: Record<keyof Hour['figures'], number>
  readonly buckets: Map<string, BucketSum>
}

class Steps {
  readonly #sums = new Map<number, Sum>()
  readonly #last: number

  constructor(last: number) {
    this.#last = last
  }

  covers(step: number): boolean {
    return step <= this.#last && step > this.#last - STEPS
  }

  add(step: number, { step: _theirs, buckets, ...figures }: HourPoint): void {
    const sum = this.#sums.get(step)
    if (sum === undefined) {
      const own = Array.from(buckets, ([name, bucket]) => [name, { ...bucket }] as const)
      this.#sums.set(step, { figures, buckets: new Map(own) })
      return
    }
    addTo(sum.figures, figures)
    for (const [name, bucket] of buckets) {
      const known = sum.buckets.get(name)
      if (known === undefined) sum.buckets.set(name, { ...bucket })
      else addTo(known, bucket)
    }
  }

  lists(): Pick<Hour, 'from' | 'figures' | 'buckets'> {
    const first = Math.min(this.#last + 1, ...this.#sums.keys())
    const sums = Array.from({ length: this.#last + 1 - first }, (_, index) => this.#sums.get(first + index))
    const list = (of: (sum: Sum) => number): HourList => sums.map(sum => (sum === undefined ? null : of(sum)))
    const names = new Set(sums.flatMap(sum => (sum === undefined ? [] : [...sum.buckets.keys()])))
    return {
      from: first * STEP,
      figures: byFigure(FIGURES, figure => list(({ figures }) => figures[figure])),
      buckets: Object.fromEntries(
        Array.from(names, name => {
          return [name, byFigure(BUCKET_FIGURES, figure => list(({ buckets }) => buckets.get(name)?.[figure] ?? 0))]
        }),
      ),
    }
  }
}

function addTo<Figure extends string>(sum: Record<Figure, number>, more: Readonly<Record<Figure, number>>): void {
  for (const figure in more) sum[figure] += more[figure]
}

export function totalsOf({ routes, buckets }: TrafficTally): Totals {
  let waiting = 0
  for (const { queued } of routes.values()) waiting += queued
  return {
    ...passedOf(routes.values(), ({ upstreamResponses }) => upstreamResponses[5]),
    waiting,
    cpu: cpuSeconds(),
    buckets: new Map(
      Array.from(buckets, ([name, { offered, released, rejected, waiting }]) => {
        return [name, { offered, released, rejected, waiting }]
      }),
    ),
  }
}
