/** What is known of upstreams' limits in one instance alone, by the semantics of store.ts. */
import type { UpstreamState } from '../../core/store.js'
import { boundNews, describeUpstream } from '../upstream-state.js'

/** How many others each new one looks at, to forget those of which nothing holds any more. */
const SWEEP = 2

/** Durations and not moments: a clock that goes back is as if no time had passed. All in ms but the rate. */
interface Known {
  /** When the durations were as they are here. */
  readonly at: number
  readonly pausedFor: number
  /** Of no meaning where `rateFor` is 0. */
  readonly rate: number
  readonly rateFor: number
}

const NOTHING: Known = { at: -Infinity, pausedFor: 0, rate: 0, rateFor: 0 }

export class MemoryUpstreams {
  readonly #known = new Map<string, Known>()
  #hand = this.#known.entries()

  get size(): number {
    return this.#known.size
  }

  /** @param now ms */
  exchange(upstream: string, heard: UpstreamState | undefined, now: number): UpstreamState {
    const news = boundNews(heard)
    const known = age(this.#known.get(upstream) ?? NOTHING, now)
    const pausedFor = Math.max(known.pausedFor, news.pausedFor)
    const { rate = 0, rateFor } = news.rate === undefined ? known : news
    if (pausedFor === 0 && rateFor === 0) {
      this.#known.delete(upstream)
    } else {
      if (!this.#known.has(upstream)) this.#sweep(now)
      this.#known.set(upstream, { at: now, pausedFor, rate, rateFor })
    }
    return describeUpstream(pausedFor, rate, rateFor)
  }

  #sweep(now: number): void {
    for (let looked = 0; looked < SWEEP; looked += 1) {
      const step = this.#hand.next()
      if (step.done) {
        this.#hand = this.#known.entries()
        continue
      }
      const [upstream, known] = step.value
      const { pausedFor, rateFor } = age(known, now)
      if (pausedFor === 0 && rateFor === 0) this.#known.delete(upstream)
    }
  }
}

function age({ at, pausedFor, rate, rateFor }: Known, now: number): Known {
  const elapsed = Math.max(0, now - at)
  return { at: now, pausedFor: Math.max(0, pausedFor - elapsed), rate, rateFor: Math.max(0, rateFor - elapsed) }
}
