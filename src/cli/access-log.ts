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
      const traceparent = request.header('traceparent')
      // Always the same fields in the same order, which is what makes it cheap; undefined ones are not written.
      log.info(
        {
          route: route === '' ? undefined : route,
          outcome,
          status,
          method,
          path: withoutQuery(target),
          key: keyOf(request),
          waitMs: short(wait),
          upstreamMs: upstreamTime === undefined ? undefined : short(upstreamTime),
          retries: retries === 0 ? undefined : retries,
          trace: traceparent === undefined ? undefined : TRACEPARENT.exec(traceparent)?.[1],
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
  const query = target.indexOf('?')
  const path = query < 0 ? target : target.slice(0, query)
  // Only the absolute form can have a fragment, or somebody's password.
  const clean = path.startsWith('/') ? path : path.replace(/#.*$/s, '').replace(/^(https?:\/\/)[^/]*@/i, '$1***@')
  return clean.length > LONGEST_PATH ? clean.slice(0, LONGEST_PATH) : clean
}

function short(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}
