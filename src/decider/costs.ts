/** What a cost is to a bucket. */

/** ms. A booking keeps room for at most this long. */
export const LONGEST_WINDOW = 10_000
/** Cost units: `Number.MAX_SAFE_INTEGER`. */
const MOST = 9_007_199_254_740_991

/** Whether buckets can count a cost. NaN would stay in the level for ever, and a sum of larger ones could be infinite. */
export function isCost(cost: unknown): cost is number {
  return typeof cost === 'number' && cost >= 0 && cost <= MOST
}

/** What a request costs in a bucket that may have a cost of its own. */
export function costOfRef({ cost: own }: { readonly cost?: number }, cost: number): number {
  return own === undefined || cost === 0 ? cost : own
}

/** How much a bucket may still hold of what has left when a cost leaves, in cost units. Without a burst: nothing. */
export function slackOf({ burst }: { readonly burst?: number }, cost: number): number {
  return burst === undefined ? 0 : Math.max(0, burst - cost)
}

/** How long a booking keeps room, in ms, where requests are admitted up to `room`. 0: the bucket is too small. */
export function windowOf(cost: number, room: number, { rate }: { readonly rate: number }): number {
  const window = (room / 2 - cost) / rate
  return window < cost / rate ? 0 : Math.min(window, LONGEST_WINDOW)
}
