/** What stores take for news of an upstream, whatever it says of itself. */
import type { UpstreamState } from '../core/store.js'

/** Nothing holds for longer, in ms. */
const LONGEST = 86_400_000

/** What a rate is kept within, in cost units per ms. */
const RATE = { least: 1e-9, most: 1e9 }

/**
 * Durations are brought between nothing and a day; those that are no number are nothing. A rate that is not positive and
 * finite, or whose life is no number, is none.
 */
export function boundNews(heard: UpstreamState | undefined): UpstreamState {
  if (heard === undefined) return { pausedFor: 0, rate: undefined, rateFor: 0 }
  const { rate = 0, rateFor } = heard
  const pausedFor = boundDuration(heard.pausedFor)
  if (!(rate > 0 && rate < Infinity) || Number.isNaN(rateFor)) return { pausedFor, rate: undefined, rateFor: 0 }
  return { pausedFor, rate: Math.min(RATE.most, Math.max(RATE.least, rate)), rateFor: boundDuration(rateFor) }
}

function boundDuration(ms: number): number {
  return ms > 0 ? Math.min(LONGEST, ms) : 0
}

/** @param rate of no meaning where it has no life left */
export function describeUpstream(pausedFor: number, rate: number, rateFor: number): UpstreamState {
  return { pausedFor, rate: rateFor > 0 ? rate : undefined, rateFor }
}
