/** What sums of periods may be too long by, in ms, without being rounded up for it. */
const ROUNDING = 1e-6

/**
 * What a caller is told to wait, in ms: whole, and 1 ms more than it takes, because `setTimeout` may fire that much early.
 * 0 stays 0: the caller may come again at once.
 */
export function retryAfter(ms: number): number {
  return ms > 0 ? Math.ceil(ms - ROUNDING) + 1 : 0
}
