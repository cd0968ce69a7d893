/**
 * The numbers that a decision needs in each language: TypeScript (memory), Lua (Redis) and SQL (PostgreSQL). The scripts name
 * them as `@NAME@`, and `fillConstants` puts the values in when they are loaded.
 */

import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import { LONGEST_WINDOW } from '../core/bucket/promises.js'
import { LAST_PRIORITY } from '../core/priority.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import {
  EVEN_GRACE,
  FORECAST,
  FRAME,
  HORIZON,
  LATENESS_STEP,
  LEASE_LIFE,
  REPORT_LATE,
  REPORT_SHIFT,
  SLOTS_PER_FRAME,
} from '../core/store.js'
import { ownValue } from '../core/structures/own-value.js'

/** ms. A slot is the last one of a bucket that is free this close to its end. */
export const SAME_SLOT = 1e-3

/** ms. An instance is there for this long after its heartbeat. */
export const BEAT_LIFE = 3_000

/**
 * ms. A pause that ends later than the known one by no more is no news: the answers that tell of one pause reach instances at
 * different times.
 */
export const SAME_PAUSE = 10

/** ms. A heartbeat that is dated further ahead is from before the server's clock was set back. */
const BEAT_AHEAD = 1_000

/** ms. State is kept this much longer than it is needed, as a server forgets by a coarser clock. */
const KEEP_MARGIN = 1_000

/** Bookings of one bucket instance, and promises without one as one more. It bounds what a server looks at: further clients are told the last moment. */
export const MOST_PROMISES = 1_000

/** ms. A booking that would keep room for a shorter time is not made: an answer takes its time, and room is leased for frames. */
export const SHORTEST_WINDOW = 2 * FRAME

/** A frame is full when instances expect more than this part of it. */
export const FULL_FRAME = 0.95

/** An instance gets slots for what it expects, and for up to this many times the square root of that. */
export const SPARE_ROOTS = 4

/** The slots of a frame that an instance expects to need are split into at least this many. */
export const LEAST_SLOTS = 4

/** While half of the frame is free, the store keeps every eighth slot: the next one that is more than this many slots after the last. */
export const KEPT_SLOT_GAP = 7.5

/** A newcomer gets every fourth kept slot. The others stay for the next newcomers. */
export const NEWCOMER_STEP = 4

/**
 * ms. A slot may come so much before the pace of its instance, where half of it is less than `EVEN_GRACE`: a quick bucket's slots can be used
 * a little longer (`SHORTEST_GRACE`). Else it may come by half of a slot too early.
 */
export const QUICK_LEEWAY = 4

/** Seconds. Servers' clocks count from 2025, so that a double holds a hundredth of a microsecond. */
export const CLOCK_ORIGIN = Date.UTC(2025, 0, 1) / 1_000

const CONSTANTS: Readonly<Record<string, number>> = {
  LEVEL_TOLERANCE,
  SAME_WAIT: SAME_TIME,
  SAME_SLOT,
  BEAT_LIFE,
  BEAT_AHEAD,
  SAME_PAUSE,
  KEEP_MARGIN,
  CLOCK_ORIGIN,
  LAST_PRIORITY,
  FORECAST,
  FRAME,
  MOST_AHEAD: HORIZON.most,
  LATENESS_STEP,
  LEASE_LIFE,
  SLOTS_PER_FRAME,
  REPORT_SHIFT,
  REPORT_LATE,
  FULL_FRAME,
  SPARE_ROOTS,
  LEAST_SLOTS,
  KEPT_SLOT_GAP,
  NEWCOMER_STEP,
  EVEN_GRACE,
  QUICK_LEEWAY,
  MOST_PROMISES,
  SHORTEST_WINDOW,
  LONGEST_WINDOW,
}

/** Puts the constants into a script. The hash of the script follows, so each value has a script or function of its own. */
export function fillConstants(script: string): string {
  return script.replace(/@([A-Z_]+)@/g, (_, name: string) => {
    const value = ownValue(CONSTANTS, name)
    if (value === undefined) throw new Error(`a script names ${name}, which is not in stores/constants.ts`)
    return String(value)
  })
}
