/** How long a snapshot is reused, in ms, so that many clients do not delay releases. */
const FRESH = 200

/** Gives the same answer to all callers within `FRESH` ms. */
export function remembered<Answer>(take: () => Promise<Answer>): () => Promise<Answer> {
  let last: Promise<Answer> | undefined
  let takenAt = -Infinity
  return () => {
    const now = performance.now()
    if (last !== undefined && now - takenAt < FRESH) return last
    takenAt = now
    last = take()
    return last
  }
}
