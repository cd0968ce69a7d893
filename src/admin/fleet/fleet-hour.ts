/** The last hour of all instances as one, also of those that have ended. */
import { type HourPart, ourStep } from './hour-parts.js'
import { type HourPoint, STEP, STEPS } from './hour-ring.js'

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
  readonly figures: Readonly<Record<'forwarded' | 'rejected' | 'errors' | 'waiting' | 'cpu', HourList>>
  /** Of the busiest buckets. `waiting` is of requests, the others are cost units. */
  readonly buckets: Readonly<
    Record<string, Readonly<Record<'offered' | 'released' | 'rejected' | 'waiting', HourList>>>
  >
}

/**
 * @param parts of hours. If a part is there twice, the first counts.
 * @param now ms since 1970
 * @param name of the instance to show; undefined: all
 */
export function fleetHour(parts: readonly HourPart[], now: number, name?: string): Hour {
  const known = new Map<string, HourPart>()
  for (const part of parts) if (!known.has(part.id)) known.set(part.id, part)
  const last = Math.floor((now - SETTLED) / STEP) - 1
  const steps = new Steps(last)
  const since = new Map<string, number>()
  for (const own of byInstance([...known.values()])) {
    // All parts of an instance are moved alike, or two of its steps could become one.
    const youngest = own.reduce((a, b) => (b.age < a.age ? b : a))
    for (const point of own.flatMap(({ points }) => points)) {
      const step = ourStep(point.step, youngest.ahead)
      if (!steps.covers(step)) continue
      since.set(youngest.name, Math.min(since.get(youngest.name) ?? Infinity, step * STEP))
      if (name === undefined || name === youngest.name) steps.add(step, point)
    }
  }
  const instances = Array.from(since, ([each, from]) => ({ name: each, since: from }))
  return { ...steps.lists(), step: STEP, instances: instances.sort((a, b) => (a.name < b.name ? -1 : 1)) }
}

function byInstance(parts: readonly HourPart[]): HourPart[][] {
  const found = new Map<string, HourPart[]>()
  for (const part of parts) {
    const known = found.get(part.instance)
    if (known === undefined) found.set(part.instance, [part])
    else known.push(part)
  }
  return [...found.values()]
}

type BucketSum = Record<'offered' | 'released' | 'rejected' | 'waiting', number>
interface Sum {
  readonly figures: Record<keyof Hour['figures'], number>
  readonly buckets: Map<string, BucketSum>
}

/** The sums of the last `STEPS` steps. */
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

  /** From the first step that anybody knows. */
  lists(): Pick<Hour, 'from' | 'figures' | 'buckets'> {
    const first = Math.min(this.#last + 1, ...this.#sums.keys())
    const sums = Array.from({ length: this.#last + 1 - first }, (_, index) => this.#sums.get(first + index))
    const list = (of: (sum: Sum) => number): HourList => sums.map(sum => (sum === undefined ? null : of(sum)))
    const names = new Set(sums.flatMap(sum => (sum === undefined ? [] : [...sum.buckets.keys()])))
    const bucketLists = (name: string) => {
      const of = (figure: keyof BucketSum): HourList => list(({ buckets }) => buckets.get(name)?.[figure] ?? 0)
      return { offered: of('offered'), released: of('released'), rejected: of('rejected'), waiting: of('waiting') }
    }
    return {
      from: first * STEP,
      figures: {
        forwarded: list(({ figures }) => figures.forwarded),
        rejected: list(({ figures }) => figures.rejected),
        errors: list(({ figures }) => figures.errors),
        waiting: list(({ figures }) => figures.waiting),
        cpu: list(({ figures }) => figures.cpu),
      },
      buckets: Object.fromEntries(Array.from(names, name => [name, bucketLists(name)])),
    }
  }
}

function addTo<Figure extends string>(sum: Record<Figure, number>, more: Readonly<Record<Figure, number>>): void {
  for (const figure in more) sum[figure] += more[figure]
}
