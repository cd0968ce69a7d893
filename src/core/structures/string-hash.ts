/**
 * A 32-bit hash. Clients choose keys, so each table has a random seed: keys that collide under one seed do not under
 * another. One character is mixed in at a time. Two at once could be chosen so that they collide under any seed.
 */
export function hashOf(text: string, seed: number): number {
  let hash = seed
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x5bd1e995)
    hash ^= hash >>> 15
  }
  hash = Math.imul(hash, 0x85ebca6b)
  return hash ^ (hash >>> 13)
}

/** A seed for one table. */
export function randomSeed(): number {
  return (Math.random() * 2 ** 32) | 0
}
