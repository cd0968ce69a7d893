/** ms. Sums of periods may be this much too long; do not round up for it. */
const ROUNDING = 1e-6

/**
 * The wait to tell a caller, in ms: whole, and 1 ms longer than needed, because `setTimeout` may fire that much early.
 * 0 stays 0: the caller may try again at once.
 */
export function retryAfter(ms: number): number {
  return ms > 0 ? Math.ceil(ms - ROUNDING) + 1 : 0
}
