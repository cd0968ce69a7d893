/** A 32-bit hash, seeded as clients choose keys. Two characters at once could be chosen so that they collide under any seed. */
export function hashOf(text: string, seed: number): number {
  let hash = seed
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x5bd1e995)
    hash ^= hash >>> 15
  }
  hash = Math.imul(hash, 0x85ebca6b)
  return hash ^ (hash >>> 13)
}

export function randomSeed(): number {
  return (Math.random() * 2 ** 32) | 0
}

/** Half of a surrogate pair has no UTF-8, and no URL. JSON may have one. */
export function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, '\ufffd')
}

/** V8 copies shorter parts of a string. A longer one refers to the whole. */
const LEAST_PART = 13

/** A copy for keeps. The text may be part of a long one, such as the head of a request, which would be kept with it. */
export function ownText(text: string): string {
  return text.length < LEAST_PART ? text : text.split('').join('')
}
