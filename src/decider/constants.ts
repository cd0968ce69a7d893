/** The numbers of a decision. Instances know some of them as well. */
import { LAST_PRIORITY } from '../core/priority.js'

/** Why a bucket refuses an admission, in the order in which the reasons count. */
export const TOO_COSTLY = 1
export const BLOCKED = 2
export const OVERFLOW = 3
export const MAX_WAIT = 4
/** More room than can be leased: a bucket that has more leased is a quota (bucket.ts). */
export const QUOTA_ROOM = 1e18
/** ms. The clock of an instance that counts in the former period of a quota may be behind by so much. */
export const QUOTA_BEHIND = 60_000
/** ms. A slot may be so far ahead, whatever is asked for. */
export const MOST_AHEAD = 500
/**
 * The class of what will come before the next report, behind all priorities. It gets all slots that nobody has a demand for. A
 * weight of 0: this instance could do without. If all could, nothing is given to it.
 */
export const FORECAST = LAST_PRIORITY + 1
/** ms. A slot that is later than this is forfeited. */
export const SLOT_GRACE = 8
/** ms. Where several lease a bucket, and half of a slot is at least this, a slot is used no later than that half: gaps stay even. */
export const EVEN_GRACE = 2
/** ms. The part of the grace that is reserve for a slow answer of the store. */
export const SLOT_RESERVE = 4
/** ms. Instances that contend for a bucket ask for slots this often. A lease covers as much and the way to the store. */
export const FRAME = 120

/** ms. A stall this short is made up for at any rate. */
export const SHORTEST_GRACE = 5
/** Periods. The grace of a bucket that is not the last of its stack. docs/decisions/forfeit.md has the figures. */
export const PERIODS_BEHIND = 4
/** ms. A slot is the last one of a bucket that is free this close to its end. */
export const SAME_SLOT = 1e-3
/**
 * ms. When the lateness of those who lease falls, their schedule moves (leases.ts). A slot that was granted before is still the last one
 * if no more than this lies behind it, nor an eighth of its length.
 */
export const SHIFTED = 8
/** ms. Slots of a burst that were missed by less may all leave at one moment after it. */
export const STALL = 60
/** ms. An instance is there for this long after its heartbeat. */
export const BEAT_LIFE = 3_000
/** Bookings of one bucket instance, and promises without one: it bounds what a server looks at. */
export const MOST_PROMISES = 1_000
/** Promises without a booking of which a store knows whose they are. */
export const MOST_NAMED = 100
/** ms. A booking that would keep room for a shorter time is not made: an answer takes its time, and room is leased for frames. */
export const SHORTEST_WINDOW = 2 * FRAME
/** A frame is full when instances expect more than this part of it. */
export const FULL_FRAME = 0.95
/** An instance gets slots for what it expects, and for up to this many times the square root of that. */
export const SPARE_ROOTS = 4
/** The slots of a frame that an instance expects to need are split into at least this many. */
export const LEAST_SLOTS = 4
/** While half of the frame is free every eighth slot is kept: more than this many slots after the last. */
export const KEPT_SLOT_GAP = 7.5
/** A newcomer gets every fourth kept slot. The others stay for the next newcomers. */
export const NEWCOMER_STEP = 4
/** ms. A quick bucket's slot may come so much before the pace of its instance. Else it may by half of a slot. */
export const QUICK_LEEWAY = 4
/** ms. The first frame where the order of arrival is kept: others that begin at the same time have told of older requests by its end. */
export const FIRST_FRAME = 15
/** ms. Of an instance that is late with its report nothing more is leased, and after this its part goes to the others. */
export const LEASE_LIFE = 3 * FRAME
/** ms. What is kept for an instance goes to the others when its report is later than its lead by this. */
export const REPORT_LATE = 20
/** A frame has at most this many slots. At high rates one is for several requests. */
export const SLOTS_PER_FRAME = 128
/** ms. By so much the lateness of all who lease falls in a frame, once the farthest of them has left. */
export const LATENESS_STEP = 1
/** ms. A report may be put off by so much, so that those of different instances come to be evenly apart. */
export const REPORT_SHIFT = 6
