/** Arrivals, releases and rejections by second, merged into fewer points as the log gets longer. */

/** The most points. */
const POINTS = 1_000

/** A busy second, counted from the beginning of the log. */
export interface Peak {
  readonly second: number
  readonly arrivals: number
  readonly releases: number
  readonly rejected: number
}

const NO_PEAK: Peak = { second: 0, arrivals: 0, releases: 0, rejected: 0 }

/** Points of `width` seconds each. The first begins at second `first`. */
export interface SeriesPoints {
  readonly first: number
  readonly width: number
  readonly arrivals: readonly number[]
  readonly releases: readonly number[]
  readonly rejected: readonly number[]
  /** The most in a single second of each point. */
  readonly peakArrivals: readonly number[]
  readonly peakReleases: readonly number[]
}

export class Series {
  busiest = NO_PEAK
  /** The second with the most releases. */
  fullest = NO_PEAK
  #first = Number.NaN
  #now = -Infinity
  #arrivals = 0
  #releases = 0
  #rejected = 0
  /** Releases in future seconds. */
  readonly #coming = new Map<number, number>()
  #width = 1
  #points = 0
  readonly #sums = [new Float64Array(POINTS), new Float64Array(POINTS), new Float64Array(POINTS)] as const
  readonly #peaks = [new Float64Array(POINTS), new Float64Array(POINTS)] as const

  /** @param second never before that of the last call */
  arrive(second: number): void {
    if (second !== this.#now) this.#advance(second)
    this.#arrivals += 1
  }

  reject(): void {
    this.#rejected += 1
  }

  /** @param second of the last arrival, or later */
  release(second: number): void {
    if (second === this.#now) this.#releases += 1
    else this.#coming.set(second, (this.#coming.get(second) ?? 0) + 1)
  }

  end(): void {
    if (Number.isNaN(this.#first)) return
    this.#close()
    for (const second of [...this.#coming.keys()].sort((a, b) => a - b)) {
      this.#now = second
      this.#releases = this.#coming.get(second)!
      this.#close()
    }
    this.#coming.clear()
  }

  toPoints(): SeriesPoints {
    const [arrivals, releases, rejected] = this.#sums.map(sums => [...sums.subarray(0, this.#points)])
    const [peakArrivals, peakReleases] = this.#peaks.map(peaks => [...peaks.subarray(0, this.#points)])
    return {
      first: Number.isNaN(this.#first) ? 0 : this.#first,
      width: this.#width,
      arrivals: arrivals!,
      releases: releases!,
      rejected: rejected!,
      peakArrivals: peakArrivals!,
      peakReleases: peakReleases!,
    }
  }

  #advance(second: number): void {
    if (Number.isNaN(this.#first)) this.#first = second
    else this.#close()
    while (this.#coming.size > 0) {
      this.#now += 1
      const releases = this.#coming.get(this.#now)
      if (releases !== undefined) {
        this.#coming.delete(this.#now)
        this.#releases = releases
      }
      if (this.#now >= second) return
      if (releases !== undefined) this.#close()
    }
    this.#now = second
  }

  /** Adds the current second to its point. */
  #close(): void {
    const peak = {
      second: this.#now,
      arrivals: this.#arrivals,
      releases: this.#releases,
      rejected: this.#rejected,
    }
    if (peak.arrivals > this.busiest.arrivals) this.busiest = peak
    if (peak.releases > this.fullest.releases) this.fullest = peak
    while ((this.#now - this.#first) / this.#width >= POINTS) this.#fold()
    const at = Math.floor((this.#now - this.#first) / this.#width)
    this.#points = Math.max(this.#points, at + 1)
    this.#sums[0][at]! += peak.arrivals
    this.#sums[1][at]! += peak.releases
    this.#sums[2][at]! += peak.rejected
    this.#peaks[0][at] = Math.max(this.#peaks[0][at]!, peak.arrivals)
    this.#peaks[1][at] = Math.max(this.#peaks[1][at]!, peak.releases)
    this.#arrivals = 0
    this.#releases = 0
    this.#rejected = 0
  }

  /** Merges each two points into one. */
  #fold(): void {
    this.#width *= 2
    this.#points = Math.ceil(this.#points / 2)
    const halve = (values: Float64Array, join: (a: number, b: number) => number): void => {
      for (let at = 0; at < POINTS / 2; at += 1) values[at] = join(values[2 * at]!, values[2 * at + 1]!)
      values.fill(0, POINTS / 2)
    }
    for (const sums of this.#sums) halve(sums, (a, b) => a + b)
    for (const peaks of this.#peaks) halve(peaks, Math.max)
  }
}
