/** What we answer ourselves, and what we add to the upstream's answers. */
import { type ServerResponse, STATUS_CODES } from 'node:http'
import { type Bucket, type BucketLimits, LEVEL_TOLERANCE } from '../core/bucket.js'

const QUOTA_EXCEEDED = 'https://iana.org/assignments/http-problem-types#quota-exceeded'
const REDUCED_CAPACITY = 'https://iana.org/assignments/http-problem-types#temporary-reduced-capacity'

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

/** Answers with a problem document (RFC 9457). */
export function sendReply(res: ServerResponse, reply: Reply): void {
  const body = Buffer.from(JSON.stringify(problem(reply)))
  const headers = ['Content-Type', 'application/problem+json', 'Content-Length', String(body.length)]
  if (reply.retryAfterMs !== undefined) headers.push('Retry-After', String(wholeSeconds(reply.retryAfterMs)))
  if (reply.headers !== undefined) headers.push(...reply.headers)
  if (reply.close) headers.push('Connection', 'close')
  res.writeHead(reply.status, STATUS_CODES[reply.status] ?? '', headers)
  res.end(body)
}

function problem({ status, detail, violated, retryAfterMs }: Reply): object {
  return {
    type: violated !== undefined ? QUOTA_EXCEEDED : status === 503 ? REDUCED_CAPACITY : 'about:blank',
    title: STATUS_CODES[status] ?? 'Error',
    status,
    detail,
    ...(violated && { 'violated-policies': violated.map(bucket => bucket.limits.name) }),
    ...(retryAfterMs !== undefined && { retryAfterMs: Math.ceil(retryAfterMs) }),
  }
}

/** Retry-After: rounded up, never 0. */
export function wholeSeconds(ms: number): number {
  return Math.max(1, Math.ceil(ms / 1_000))
}

/** `RateLimit-Policy` of a stack (draft-ietf-httpapi-ratelimit-headers-11): constant for a route and a tier. */
export function rateLimitPolicy(stack: readonly BucketLimits[]): string {
  return stack
    .map(({ name, rate, capacity }) => {
      const window = Math.max(1, Math.ceil(capacity / rate / 1_000 - 1e-9))
      return `"${name}";q=${Math.floor(capacity + LEVEL_TOLERANCE)};w=${window}`
    })
    .join(', ')
}

/**
 * `RateLimit`: what is free now, and when.
 *
 * @param retryAfterMs on a rejection; without it `t` is the time until the bucket is empty
 */
export function rateLimit(buckets: readonly Bucket[], now: number, retryAfterMs?: number): string {
  return buckets
    .map(bucket => {
      const level = bucket.level(now)
      const free = Math.max(0, Math.floor(bucket.limits.capacity - level + LEVEL_TOLERANCE))
      const seconds =
        retryAfterMs === undefined ? Math.ceil(level / bucket.limits.rate / 1_000) : wholeSeconds(retryAfterMs)
      return `"${bucket.limits.name}";r=${free};t=${seconds}`
    })
    .join(', ')
}
