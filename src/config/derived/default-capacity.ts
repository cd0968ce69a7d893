const MS_PER_SECOND = 1_000
/** The rate of a bucket that bounds requests in flight only, in cost units per ms. Nothing ever waits for it. */
export const ANY_RATE = 1_000

/** The rate of a quota, in cost units per ms: it counts what passes, and delays nothing. */
export const QUOTA_RATE = 1e9

/** Whether limits have no rate to be told: they bound requests in flight only, or are a quota. */
export function isAnyRate({ rate, capacity }: { readonly rate: number; readonly capacity: number }): boolean {
  return rate >= QUOTA_RATE || (rate >= ANY_RATE && capacity === Infinity)
}

/** The one given, else rate (per ms) x maxDelay, else one second's worth of the rate, and at least 1 and its burst. */
export function capacityOf(bucket: {
  rate: number
  capacity?: number | undefined
  maxDelay?: number | undefined
  burst?: number | undefined
}): number {
  const { rate, capacity, maxDelay, burst = 1 } = bucket
  if (capacity !== undefined) return capacity
  return maxDelay === undefined ? Math.max(1, burst, tidy(rate * MS_PER_SECOND)) : tidy(rate * maxDelay)
}

/** Rounds to 12 digits, because decimal rates are inexact as binary fractions. */
function tidy(value: number): number {
  return Number(value.toPrecision(12))
}
