/** How the latest requests of single keys ended. */
import { ownText } from '../../core/structures/text.js'
import type { Observer, Outcome, RejectionCause, RequestRecord } from '../../proxy/observe/observer.js'

/** Requests of each key. */
const KEPT = 20
/** Keys of each bucket. A new one replaces the key whose last request is oldest. */
const MOST_KEYS = 2_000

export interface RecentRequest {
  /** ms since 1970 */
  readonly at: number
  readonly route: string
  readonly outcome: Outcome
  readonly status: number
  /** How long it was queued, in ms. */
  readonly waitMs: number
  /** From sending to the head of the answer, in ms. Absent: it was not sent, or not answered. */
  readonly upstreamMs?: number
  /** Why it was rejected, and by which bucket. Empty: by none. */
  readonly reason?: RejectionCause['reason']
  readonly bucket?: string
}

interface KeyRequests {
  readonly key: string
  readonly list: RecentRequest[]
}

export class RecentRequests implements Required<Pick<Observer, 'finished'>> {
  readonly #wallNow: () => number
  /** By bucket name, then by key. The key with the latest request comes last. */
  readonly #byBucket = new Map<string, Map<string, KeyRequests>>()

  constructor(wallNow: () => number) {
    this.#wallNow = wallNow
  }

  finished(request: RequestRecord, outcome: Outcome, status: number): void {
    const { stack, keys } = request
    if (stack.length === 0) return
    const ended = endOf(request, outcome, status, this.#wallNow())
    for (const [place, { limits }] of stack.entries()) this.#add(limits.name, keys[place]!, ended)
  }

  list(bucket: string, key: string): readonly RecentRequest[] {
    return this.#byBucket.get(bucket)?.get(key)?.list ?? []
  }

  #add(bucket: string, key: string, ended: RecentRequest): void {
    let keys = this.#byBucket.get(bucket)
    if (keys === undefined) {
      keys = new Map()
      this.#byBucket.set(bucket, keys)
    }
    let known = keys.get(key)
    if (known === undefined) {
      if (keys.size >= MOST_KEYS) for (const oldest of keys.keys()) if (keys.delete(oldest)) break
      known = { key: ownText(key), list: [] }
    } else if (keys.size > 1) keys.delete(key)
    keys.set(known.key, known)
    known.list.push(ended)
    if (known.list.length > KEPT) known.list.shift()
  }
}

function endOf(request: RequestRecord, outcome: Outcome, status: number, at: number): RecentRequest {
  const { route, wait, upstreamTime, rejection } = request
  return {
    ...{ at, route, outcome, status, waitMs: wait },
    ...(upstreamTime !== undefined && { upstreamMs: upstreamTime }),
    ...(rejection && { reason: rejection.reason, bucket: rejection.bucket }),
  }
}

/** Those of several processes, the latest last. */
export function mergeRecent(parts: readonly (readonly RecentRequest[])[]): RecentRequest[] {
  return parts
    .flat()
    .sort((a, b) => a.at - b.at)
    .slice(-KEPT)
}
