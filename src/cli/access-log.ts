/** One line for each request: what became of it, and how long it took. Never a header, a query or a key in clear. */
import { createHash } from 'node:crypto'
import type { Logger } from 'pino'
import type { SharedBucket } from '../core/lane.js'
import type { Observer, RequestRecord } from '../proxy/events.js'

/** Tells the log of each request. */
export function createAccessLog(log: Logger): Required<Pick<Observer, 'finished'>> {
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
