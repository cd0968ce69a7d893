import { hash } from 'node:crypto'
import { isNamed, listed, NameSet } from '../http/fields.js'
import type { RequestFacts } from '../http/request.js'
import type { ResponseHead } from '../upstream/response-parser.js'

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

/** @param headers for the upstream @returns a text that is the same for alike requests only */
export function identityOf(target: string, headers: readonly string[]): string {
  const parts = [target]
  for (let at = 0; at < headers.length; at += 2) {
    const name = headers[at]!
    if (!OF_THE_WAY.has(name)) parts.push(name.toLowerCase(), headers[at + 1]!)
  }
  // Short, as each that waits keeps one.
  return hash('sha256', JSON.stringify(parts), 'base64url')
}

/** What `Cache-Control` says of an answer for one user. It may have a list of fields behind it. */
const FOR_ONE = /(?:^|[,\s])(?:private|no-store)(?:$|[=,;\s])/i

/** What they say is of the client that asked: its cookies, its proof of who it is (RFC 9110 11.6.3), what it has stored. */
const OF_ONE_CLIENT = [
  'set-cookie',
  'set-cookie2',
  'authentication-info',
  'proxy-authentication-info',
  'clear-site-data',
] as const

/**
 * Whether an answer may be given to alike requests that waited when it was asked for. `no-cache` does not matter: that answer is as
 * new as one that is asked for now. An error may be over when it is the next one's turn.
 */
export function isShareable({ status, fields }: ResponseHead): boolean {
  const isUsual = (status >= 200 && status < 400 && status !== 206) || status === 404 || status === 410
  return isUsual && areForAll(fields)
}

/** Whether no field says that the answer is for one client. @param fields of its head or its trailers: names and values in turn */
export function areForAll(fields: readonly string[]): boolean {
  for (let at = 0; at < fields.length; at += 2) if (isForOne(fields[at]!, fields[at + 1]!)) return false
  return true
}

function isForOne(name: string, value: string): boolean {
  if (OF_ONE_CLIENT.some(each => isNamed(name, each))) return true
  if (isNamed(name, 'cache-control')) return FOR_ONE.test(value)
  return isNamed(name, 'vary') && listed(value).some(varied => varied === '*' || OF_THE_WAY.has(varied))
}
