const MS_PER_SECOND = 1_000

/**
 * The capacity of a bucket, or of a tier that inherits what it lacks: as written, or what fills in `maxDelay`, or one second's worth of rate and at least 1.
 *
 * @returns cost units; `rate` is in cost units per ms, `maxDelay` in ms
 */
export function capacityOf(bucket: {
  rate: number
  capacity?: number | undefined
  maxDelay?: number | undefined
}): number {
  const { rate, capacity, maxDelay } = bucket
  if (capacity !== undefined) return capacity
  return maxDelay === undefined ? Math.max(1, tidy(rate * MS_PER_SECOND)) : tidy(rate * maxDelay)
}

/** Without the last digits, where binary fractions of decimal rates leave dust. */
function tidy(value: number): number {
  return Number(value.toPrecision(12))
}
