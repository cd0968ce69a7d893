/** What we answer ourselves, and what we add to the upstream's answers. */
import { type ServerResponse, STATUS_CODES } from 'node:http'
import { type Bucket, type BucketLimits, LEVEL_TOLERANCE } from '../../core/bucket/bucket.js'

const QUOTA_EXCEEDED = 'https://iana.org/assignments/http-problem-types#quota-exceeded'
const REDUCED_CAPACITY = 'https://iana.org/assignments/http-problem-types#temporary-reduced-capacity'

/** What sums of periods may be too long by, in ms, without being rounded up for it. */
const ROUNDING = 1e-9

export interface Reply {
  readonly status: number
  readonly detail: string
  /** For a rejection by buckets. */
  readonly violated?: readonly Bucket[]
  readonly retryAfterMs?: number | undefined
  /** Names and values in turn. */
  readonly headers?: readonly string[]
  /** Ends the connection after it. */
  readonly close?: boolean
}

/** When to come again where no bucket can tell, in ms. */
export const RETRY_SOON_MS = 1_000

export const SHUTTING_DOWN: Reply = { status: 503, detail: 'shaper is shutting down', retryAfterMs: RETRY_SOON_MS }

export const QUEUE_FULL: Reply = {
  status: 503,
  detail: 'there are too many connections',
  retryAfterMs: RETRY_SOON_MS,
  close: true,
}

/** To a request that has waited for its `maxWait`. */
export function tooLate(waited: number): Reply {
  return { status: 503, detail: `still queued after ${(waited / 1_000).toFixed(1)} s`, retryAfterMs: RETRY_SOON_MS }
}

/** To a request that would wait too long for the end of its upstream's pause, of so many ms. */
export function pausedTooLong(pause: number): Reply {
  return { status: 503, detail: 'the upstream asks for a pause that is too long to wait for', retryAfterMs: pause }
}

/**
 * Answers with a problem document (RFC 9457).
 *
 * @param more headers besides, names and values in turn
 */
export function sendReply(res: ServerResponse, reply: Reply, more: readonly string[]): void {
  const body = JSON.stringify(problem(reply))
  const length = Buffer.byteLength(body)
  const headers = ['Content-Type', 'application/problem+json', 'Content-Length', String(length)]
  if (reply.retryAfterMs !== undefined) headers.push('Retry-After', String(wholeSeconds(reply.retryAfterMs)))
  headers.push(...more)
  res.writeHead(reply.status, STATUS_CODES[reply.status] ?? '', headers)
  if (length === body.length) writeWhole(res, body)
  else res.write(body)
  res.end()
}

/**
 * Writes the whole body of an answer whose head has not left yet: both go in one plain write. What `end` adds after it
 * would else be gathered with it, in a dearer call.
 *
 * @param body one byte per character
 * @returns as `write`
 */
export function writeWhole(res: ServerResponse, body: string): boolean {
  const taken = res.write(body, 'latin1')
  res.socket?.uncork()
  return taken
}

function problem({ status, detail, violated, retryAfterMs }: Reply): object {
  return {
    type: violated !== undefined ? QUOTA_EXCEEDED : status === 503 ? REDUCED_CAPACITY : 'about:blank',
    title: STATUS_CODES[status] ?? 'Error',
    status,
    detail,
    ...(violated && { 'violated-policies': violated.map(bucket => bucket.limits.name) }),
    ...(retryAfterMs !== undefined && { retryAfterMs: Math.ceil(retryAfterMs - ROUNDING) }),
  }
}

/** Retry-After: rounded up, never 0. */
function wholeSeconds(ms: number): number {
  return Math.max(1, Math.ceil((ms - ROUNDING) / 1_000))
}

/**
 * `RateLimit-Policy` of a stack and `RateLimit` of those of its buckets that are told about, as names and values in turn
 * (draft-ietf-httpapi-ratelimit-headers-11).
 *
 * @param retryAfterMs on a rejection; without it `t` is the time until the bucket is empty
 */
export function limitHeaders(
  stack: readonly Bucket[],
  reported: readonly Bucket[],
  now: number,
  retryAfterMs?: number,
): string[] {
  let policy = ''
  for (const { limits } of stack) policy += policy === '' ? policyOf(limits) : `, ${policyOf(limits)}`
  let state = ''
  for (const bucket of reported) state += `${state === '' ? '' : ', '}${stateOf(bucket, now, retryAfterMs)}`
  return ['RateLimit-Policy', policy, 'RateLimit', state]
}

/** They change with the configuration only. */
const policies = new WeakMap<BucketLimits, string>()

function policyOf(limits: BucketLimits): string {
  const known = policies.get(limits)
  if (known !== undefined) return known
  const { name, rate, capacity } = limits
  const policy = `"${name}";q=${Math.floor(capacity + LEVEL_TOLERANCE)};w=${wholeSeconds(capacity / rate)}`
  policies.set(limits, policy)
  return policy
}

function stateOf(bucket: Bucket, now: number, retryAfterMs: number | undefined): string {
  const { name, rate, capacity } = bucket.limits
  const level = bucket.level(now)
  const remaining = Math.max(0, Math.floor(capacity - level + LEVEL_TOLERANCE))
  const seconds = retryAfterMs === undefined ? Math.ceil((level / rate - ROUNDING) / 1_000) : wholeSeconds(retryAfterMs)
  return `"${name}";r=${remaining};t=${seconds}`
}
