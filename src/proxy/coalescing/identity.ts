/** Which requests are alike, so that one answer does for all of them. */
import { hash } from 'node:crypto'
import type { RequestFacts } from '../http/request.js'
import { NameSet } from '../http1/name-set.js'

/** A request with one of these is answered alone: the answer is for one user, or is part of another one. */
const PERSONAL = new NameSet(['authorization', 'cookie', 'range'])

/** What tells only from whom, through whom, and in which trace a request comes. These may differ. */
const OF_THE_WAY = new NameSet([
  ...['via', 'x-forwarded-for', 'x-real-ip', 'x-client-ip', 'x-cluster-client-ip', 'true-client-ip'],
  ...['cf-connecting-ip', 'fastly-client-ip'],
  ...['x-request-id', 'request-id', 'x-correlation-id', 'correlation-id', 'cf-ray'],
  ...['traceparent', 'tracestate', 'b3', 'x-b3-traceid', 'x-b3-spanid', 'x-b3-parentspanid', 'x-b3-sampled'],
  ...['x-b3-flags', 'uber-trace-id', 'x-cloud-trace-context', 'x-amzn-trace-id'],
])

/** Whether a request may be answered with others at all. */
export function isCoalescable({
  method,
  origin,
  contentLength,
  chunked,
  expectContinue,
  rawHeaders,
}: RequestFacts): boolean {
  if (method !== 'GET' || origin !== undefined || contentLength !== undefined || chunked || expectContinue) return false
  for (let at = 0; at < rawHeaders.length; at += 2) if (PERSONAL.has(rawHeaders[at]!)) return false
  return true
}

/** Whether alike requests may differ in a header. */
export function mayDiffer(name: string): boolean {
  return OF_THE_WAY.has(name)
}

/**
 * @param headers those for the upstream, names and values in turn
 * @returns a text that is the same for alike requests only
 */
export function identityOf(target: string, headers: readonly string[]): string {
  const parts = [target]
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at]!
    if (!mayDiffer(name)) parts.push(name.toLowerCase(), headers[at + 1]!)
  }
  // Short, as each that waits keeps one.
  return hash('sha256', JSON.stringify(parts), 'base64url')
}
