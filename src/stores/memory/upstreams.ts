/** Limits and pauses of upstreams in one instance alone. store.ts says what they mean. */

import { ignore } from '../../core/maybe-promise.js'
import { IdleSweep } from '../../core/structures/idle-sweep.js'
import type { UpstreamState } from '../../core/upstream-state.js'
import { SAME_PAUSE } from '../constants.js'
import { boundNews, describeUpstream } from '../upstream-state.js'

/** Durations, not moments: if the clock goes back, no time has passed. In ms, except the rate. */
interface Known {
  /** When the durations were these. */
  readonly at: number
  readonly pausedFor: number
  /** Meaningless if `rateFor` is 0. */
  readonly rate: number
  readonly rateFor: number
}

const NOTHING: Known = { at: -Infinity, pausedFor: 0, rate: 0, rateFor: 0 }

export class MemoryUpstreams {
  readonly #known = new Map<string, Known>()
  readonly #sweep = new IdleSweep(this.#known)

  get size(): number {
    return this.#known.size
  }

  /**
   * @param now ms
   * @param changed called with what holds then, if that is new for others
   */
  exchange(
    upstream: string,
    news: UpstreamState | undefined,
    now: number,
    changed: (state: UpstreamState) => void = ignore,
  ): UpstreamState {
    const bounded = boundNews(news)
    const known = age(this.#known.get(upstream) ?? NOTHING, now)
    const isNewRate = bounded.rate !== undefined && (bounded.rate !== known.rate || bounded.rateFor > known.rateFor)
    const isNewPause = bounded.pausedFor > (this.#known.has(upstream) ? known.pausedFor + SAME_PAUSE : 0)
    const pausedFor = Math.max(known.pausedFor, bounded.pausedFor)
    const { rate = 0, rateFor } = bounded.rate === undefined ? known : bounded
    if (pausedFor === 0 && rateFor === 0) {
      this.#known.delete(upstream)
    } else {
      if (!this.#known.has(upstream)) this.#sweep.sweep(other => isOver(age(other, now)))
      this.#known.set(upstream, { at: now, pausedFor, rate, rateFor })
    }
    const state = describeUpstream(pausedFor, rate, rateFor)
    if (isNewRate || isNewPause) changed(state)
    return state
  }
}

function isOver({ pausedFor, rateFor }: Known): boolean {
  return pausedFor === 0 && rateFor === 0
}

function age({ at, pausedFor, rate, rateFor }: Known, now: number): Known {
  const elapsed = Math.max(0, now - at)
  return { at: now, pausedFor: Math.max(0, pausedFor - elapsed), rate, rateFor: Math.max(0, rateFor - elapsed) }
}
