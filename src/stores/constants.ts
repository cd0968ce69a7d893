/** The numbers of a decision, in each language: scripts name them as `@NAME@`, and `fillConstants` puts the values in. */
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { DEFAULT_MIN_SHARE, LAST_PRIORITY } from '../core/priority.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import { ownValue } from '../core/structures/own-value.js'
import * as decider from '../decider/constants.js'
import { LONGEST_WINDOW } from '../decider/costs.js'

/** Why an admission is refused, by the numbers of the decider less 1. */
export const REASONS = ['too-costly', 'blocked', 'overflow', 'max-wait'] as const
/** ms. A pause that ends later by no more is no news: the answers that tell of one reach instances at different times. */
export const SAME_PAUSE = 10
/** ms. A heartbeat that is dated further ahead is from before the server's clock was set back. */
const BEAT_AHEAD = 1_000
/** ms. State is kept this much longer than it is needed, as a server forgets by a coarser clock. */
export const KEEP_MARGIN = 1_000
/** Seconds. Servers' clocks count from 2025, so that a double holds a hundredth of a microsecond. */
export const CLOCK_ORIGIN = Date.UTC(2025, 0, 1) / 1_000

const CONSTANTS: Readonly<Record<string, number>> = {
  ...decider,
  ...{ LEVEL_TOLERANCE, SAME_TIME, BEAT_AHEAD, SAME_PAUSE, KEEP_MARGIN, CLOCK_ORIGIN, LONGEST_WINDOW },
  ...{ LAST_PRIORITY, DEFAULT_MIN_SHARE },
}

/** Puts the constants into a script. The hash of the script follows, so each value has a script or function of its own. */
export function fillConstants(script: string): string {
  return script.replace(/@([A-Z_]+)@/g, (_, name: string) => {
    const value = ownValue(CONSTANTS, name)
    if (value === undefined) throw new Error(`a script names ${name}, which is not in stores/constants.ts`)
    return String(value)
  })
}
