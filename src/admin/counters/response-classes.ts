/** Counts the answers of upstreams by the first digit of their status. */
import type { ResponseClass } from '../snapshot/snapshot.js'

export type ResponseCounts = Record<ResponseClass, number>

const CLASSES: readonly ResponseClass[] = ['2xx', '3xx', '4xx', '5xx']

export function noResponses(): ResponseCounts {
  return { '2xx': 0, '3xx': 0, '4xx': 0, '5xx': 0 }
}

/** An answer that switches protocols has no class. */
export function countResponse(counts: ResponseCounts, status: number): void {
  const name = CLASSES[Math.floor(status / 100) - 2]
  if (name !== undefined) counts[name] += 1
}
