/**
 * The last hour of one process, in steps of ten seconds. It costs the same whatever the number of keys: figures are of the
 * process and of its buckets, never of a key.
 */

/** ms */
export const STEP = 10_000

/** How many steps are kept: an hour. */
export const STEPS = 360

/** Buckets of one step. Of more, those with the most requests are kept. */
const MOST_BUCKETS = 32

/** What a process has counted since its start, and what waits now. */
export interface Totals {
  readonly forwarded: number
  readonly rejected: number
  /** Answers of 5xx, and requests that failed without an answer. */
  readonly errors: number
  readonly waiting: number
  /** Seconds of CPU time. */
  readonly cpu: number
  readonly buckets: ReadonlyMap<string, BucketTotals>
}

/** `waiting` is of requests, the others are cost units. */
export interface BucketTotals {
  readonly offered: number
  readonly released: number
  readonly rejected: number
  readonly waiting: number
}

/** What has been counted in one step, and what waited at its end. */
export interface HourPoint extends Totals {
  /** Steps since 1970, by the clock of the process. */
  readonly step: number
}

const NOTHING: BucketTotals = { offered: 0, released: 0, rejected: 0, waiting: 0 }

export class HourRing {
  #points: HourPoint[] = []
  #last: Totals = { forwarded: 0, rejected: 0, errors: 0, waiting: 0, cpu: 0, buckets: new Map() }
  /** The next step that ends. */
  #next: number

  /** @param now ms since 1970. Nothing has been counted by then. */
  constructor(now: number) {
    this.#next = Math.floor(now / STEP)
  }

  /** Those that have ended, oldest first. */
  get points(): readonly HourPoint[] {
    return this.#points
  }

  /**
   * Ends the steps before `now`. A process that was stopped for several steps spreads what it has counted evenly over them.
   *
   * @param now ms since 1970
   */
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

/** The mean of `steps` steps. */
function difference(now: Totals, then: Totals, steps: number): Totals {
  const buckets = Array.from(now.buckets, ([name, bucket]) => {
    const old = then.buckets.get(name) ?? NOTHING
    const of = (figure: 'offered' | 'released' | 'rejected'): number =>
      Math.max(0, bucket[figure] - old[figure]) / steps
    return [
      name,
      { offered: of('offered'), released: of('released'), rejected: of('rejected'), waiting: bucket.waiting },
    ] as const
  })
  const busy = buckets
    .filter(([, { offered, released, waiting }]) => offered > 0 || released > 0 || waiting > 0)
    .sort(([, a], [, b]) => b.offered - a.offered)
    .slice(0, MOST_BUCKETS)
  const of = (figure: 'forwarded' | 'rejected' | 'errors' | 'cpu'): number => (now[figure] - then[figure]) / steps
  return {
    forwarded: of('forwarded'),
    rejected: of('rejected'),
    errors: of('errors'),
    waiting: now.waiting,
    cpu: of('cpu'),
    buckets: new Map(busy),
  }
}
