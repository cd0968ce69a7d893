/**
 * Priorities, as in RFC 9218 (4.1): 0 to 7. Requests with a lower number leave first. All that have the same number form a
 * class.
 */

/** Of a request of which nothing else is said. */
export const DEFAULT_PRIORITY = 3

export const LAST_PRIORITY = 7

/** The part of a bucket's rate that goes to the classes behind the one that leaves, unless its limits say so. */
export const DEFAULT_MIN_SHARE = 0.05
