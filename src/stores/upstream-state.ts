/** The bounds of what stores keep of an upstream, whatever it says of itself. */
import type { UpstreamState } from '../core/upstream-state.js'

/** ms. Nothing holds for longer. */
const LONGEST = 86_400_000

/** Cost units per ms. */
const RATE = { least: 1e-9, most: 1e9 }

/**
 * Durations are kept between 0 and a day, and NaN is 0. A rate that is not positive and finite, or whose life is NaN, is
 * ignored.
 */
export function boundNews(news: UpstreamState | undefined): UpstreamState {
  if (news === undefined) return { pausedFor: 0, rate: undefined, rateFor: 0 }
  const { rate = 0, rateFor } = news
  const pausedFor = boundDuration(news.pausedFor)
  if (!(rate > 0 && rate < Infinity) || Number.isNaN(rateFor)) return { pausedFor, rate: undefined, rateFor: 0 }
  return { pausedFor, rate: Math.min(RATE.most, Math.max(RATE.least, rate)), rateFor: boundDuration(rateFor) }
}

/** Whether other instances should hear of it at once. */
export function isNews(news: UpstreamState | undefined): boolean {
  const { pausedFor, rate } = boundNews(news)
  return pausedFor > 0 || rate !== undefined
}

function boundDuration(ms: number): number {
  return ms > 0 ? Math.min(LONGEST, ms) : 0
}

/** @param rate meaningless if `rateFor` is 0 */
export function describeUpstream(pausedFor: number, rate: number, rateFor: number): UpstreamState {
  return { pausedFor, rate: rateFor > 0 ? rate : undefined, rateFor }
}
