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

/** Gives the same answer to all who ask for the same key of a bucket within `FRESH` ms. */
export function rememberedByKey<Answer>(
  take: (bucket: string, key: string) => Promise<Answer>,
): (bucket: string, key: string) => Promise<Answer> {
  const last = new Map<string, { readonly answer: Promise<Answer>; readonly takenAt: number }>()
  return (bucket, key) => {
    const now = performance.now()
    for (const [name, { takenAt }] of last) if (now - takenAt >= FRESH) last.delete(name)
    const name = JSON.stringify([bucket, key])
    const answer = last.get(name)?.answer ?? take(bucket, key)
    if (!last.has(name)) last.set(name, { answer, takenAt: now })
    return answer
  }
}
