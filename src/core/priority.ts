/** Priorities, as in RFC 9218 (4.1): 0 to 7. Lower numbers leave first. Requests of one number form a class. */

export const DEFAULT_PRIORITY = 3
export const LAST_PRIORITY = 7
/** The part of a bucket's rate that goes to the classes behind the one that leaves, unless its limits say so. */
export const DEFAULT_MIN_SHARE = 0.05
