/** One line for each request: what became of it, and how long it took. Never a header, a query or a key in clear. */
import { createHash } from 'node:crypto'
import pino from 'pino'
import type { SharedBucket } from '../core/lane.js'
import type { Observer, RequestRecord } from '../proxy/events.js'

/** Lines wait until there are so many bytes of them, or for so many ms. */
const BATCH = { bytes: 4_096, ms: 500 }

/** What a reader of the log may be behind, in bytes: lines beyond that are lost, requests are not held up. */
const UNREAD = 4 * 1024 * 1024

export interface AccessLog {
  readonly observer: Required<Pick<Observer, 'finished'>>
  /** Writes what waits. */
  close(): void
}

/** @param base what every line carries */
export function createAccessLog(base: Record<string, unknown> | null = null): AccessLog {
  const destination = pino.destination({
    dest: 2,
    sync: false,
    minLength: BATCH.bytes,
    periodicFlush: BATCH.ms,
    maxLength: UNREAD,
  })
  // Nobody reads it any more: that is no reason to stop.
  destination.on('error', () => undefined)
  const log = pino({ base }, destination)
  const hashes = new WeakMap<SharedBucket, string>()

  function keyOf({ stack, keys }: RequestRecord): string | undefined {
    const [bucket] = stack
    const [key] = keys
    if (bucket === undefined || !key) return undefined
    const known = hashes.get(bucket)
    if (known !== undefined) return known
    const hash = createHash('sha256').update(key).digest('hex').slice(0, 12)
    hashes.set(bucket, hash)
    return hash
  }

  return {
    observer: {
      finished(request, outcome, status) {
        const { route, method, target, wait, upstreamTime, retries } = request
        const [, trace] = TRACEPARENT.exec(request.header('traceparent') ?? '') ?? []
        const key = keyOf(request)
        log.info(
          {
            ...(route !== '' && { route }),
            outcome,
            status,
            method,
            path: withoutQuery(target),
            ...(key !== undefined && { key }),
            waitMs: short(wait),
            ...(upstreamTime !== undefined && { upstreamMs: short(upstreamTime) }),
            ...(retries > 0 && { retries }),
            ...(trace !== undefined && { trace }),
          },
          'request',
        )
      },
    },
    close: () => destination.flushSync(),
  }
}

/** https://www.w3.org/TR/trace-context/: the trace's id. */
const TRACEPARENT = /^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/

const LONGEST_PATH = 512

function withoutQuery(target: string): string {
  const end = target.search(/[?#]/)
  const path = end < 0 ? target : target.slice(0, end)
  return path.replace(/^(https?:\/\/)[^/]*@/i, '$1***@').slice(0, LONGEST_PATH)
}

function short(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}
