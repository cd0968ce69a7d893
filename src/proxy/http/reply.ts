/** Our own answers, and our headers on the upstream's answers. */
import { STATUS_CODES } from 'node:http'
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import type { BucketLimits, QueuedBucket } from '../../core/bucket/queued-bucket.js'
import { costIn, type Demand, type SharedBucket } from '../../core/queue/lane.js'
import type { ClientAnswer } from './client.js'
import type { Refusal } from './request.js'

const QUOTA_EXCEEDED = 'https://iana.org/assignments/http-problem-types#quota-exceeded'
const REDUCED_CAPACITY = 'https://iana.org/assignments/http-problem-types#temporary-reduced-capacity'

/** ms. Sums of periods may be this much too long; do not round up for it. */
const ROUNDING = 1e-9

/** The part by which a product or quotient of a few rounded numbers may be too large. */
const RELATIVE_ROUNDING = 4 * Number.EPSILON

const NOTHING: readonly string[] = []

const PROBLEM: readonly string[] = ['Content-Type', 'application/problem+json']

export interface Reply {
  readonly status: number
  readonly detail: string
  /** The buckets that rejected the request. */
  readonly violated?: readonly QueuedBucket[]
  readonly retryAfterMs?: number | undefined
  /** Names and values in turn. */
  readonly headers?: readonly string[]
  /** Closes the connection after this answer. */
  readonly close?: boolean
  /** A page in place of the problem document. Its text has one character for each byte; headers are names and values in turn. */
  readonly page?: { readonly html: string; readonly headers: readonly string[] }
  /** It is not for what the client did: what is needed to serve it is away. */
  readonly outage?: boolean
}

/** Retry-After in ms where no bucket determines it. */
export const RETRY_SOON_MS = 1_000

export const SHUTTING_DOWN: Reply = {
  status: 503,
  detail: 'shaper is shutting down',
  retryAfterMs: RETRY_SOON_MS,
  outage: true,
}

/** For what is at the upstream and must not happen twice: a `Retry-After` would ask for that. */
export const MAYBE_SERVED: Reply = {
  status: 503,
  detail: 'shaper is shutting down; the upstream may have served this request',
  outage: true,
}

export const TOO_MANY_CONNECTIONS: Reply = {
  status: 503,
  detail: 'there are too many connections',
  retryAfterMs: RETRY_SOON_MS,
  close: true,
}

/** The client holds too much of the buffers, or all of them are full. */
export const NO_ROOM: Reply = {
  status: 503,
  detail: 'too many requests are on their way',
  retryAfterMs: RETRY_SOON_MS,
}

const PROXY_CHALLENGE = ['Proxy-Authenticate', 'Basic realm="shaper"']

/** Answers a request that is refused before any bucket. */
export function refused({ status, detail, close }: Refusal): Reply {
  return {
    status,
    detail,
    close,
    ...(status === 503 && { retryAfterMs: RETRY_SOON_MS }),
    ...(status === 407 && { headers: PROXY_CHALLENGE }),
  }
}

/** The detail of a request that breaks the rules of HTTP. @param how which one */
export function malformed(how: string): string {
  return `the request is malformed: ${how}`
}

/**
 * Answers a request that has waited for its `maxWait`.
 *
 * @param waited ms
 */
export function tooLate(waited: number): Reply {
  return { status: 503, detail: `still queued after ${(waited / 1_000).toFixed(1)} s`, retryAfterMs: RETRY_SOON_MS }
}

/**
 * Answers a request whose client will have left before the upstream's answer.
 *
 * @param retryAfterMs ms until the wait is short enough
 */
export function unwanted(retryAfterMs: number): Reply {
  return { status: 503, detail: 'the answer would come after clients have stopped waiting for it', retryAfterMs }
}

/**
 * Answers a request whose upstream fails.
 *
 * @param probe ms until the upstream is tried again
 */
export function upstreamDown(probe: number): Reply {
  return { status: 503, detail: 'the upstream fails; it is tried again from time to time', retryAfterMs: probe }
}

/**
 * Answers a request whose upstream pauses longer than the request may wait.
 *
 * @param pause ms until the pause ends
 */
export function pausedTooLong(pause: number): Reply {
  return { status: 503, detail: 'the upstream asks for a pause that is too long to wait for', retryAfterMs: pause }
}

/**
 * Answers with a problem document (RFC 9457).
 *
 * @param more further headers, names and values in turn
 */
export function sendReply(res: ClientAnswer, reply: Reply, more: readonly string[]): void {
  const { status, retryAfterMs, page } = reply
  const body = page?.html ?? latin1Of(problem(reply))
  const headers = [...(page?.headers ?? PROBLEM), 'Content-Length', String(body.length)]
  if (retryAfterMs !== undefined) headers.push('Retry-After', String(wholeSeconds(retryAfterMs)))
  for (const part of reply.headers ?? NOTHING) headers.push(part)
  for (const part of more) headers.push(part)
  res.sendWhole({ status, reason: STATUS_CODES[status] ?? '', headers, body })
}

/** The UTF-8 bytes of a text, one for each character. */
function latin1Of(text: string): string {
  return Buffer.byteLength(text) === text.length ? text : Buffer.from(text).toString('latin1')
}

/** The document as JSON. Putting it together as an object would take several times as long. */
function problem({ status, detail, violated, retryAfterMs }: Reply): string {
  const type = violated !== undefined ? QUOTA_EXCEEDED : status === 503 ? REDUCED_CAPACITY : 'about:blank'
  let json = `{"type":"${type}","title":"${STATUS_CODES[status] ?? 'Error'}","status":${status}`
  json += `,"detail":${JSON.stringify(detail)}`
  // A name has nothing to escape (config/schema/values.ts).
  if (violated !== undefined && violated.length > 0)
    json += `,"violated-policies":["${violated.map(namedBy).join('","')}"]`
  if (retryAfterMs !== undefined) json += `,"retryAfterMs":${roundUp(retryAfterMs, 1)}`
  return `${json}}`
}

function namedBy({ limits }: QueuedBucket): string {
  return limits.name
}

/** Rounded up to whole units. */
function roundUp(ms: number, unit: number): number {
  return Math.ceil((ms - ROUNDING - ms * RELATIVE_ROUNDING) / unit)
}

/** Rounded up, at least 1. */
function wholeSeconds(ms: number): number {
  return Math.max(1, roundUp(ms, 1_000))
}

/** What `RateLimit` tells of a rejection. */
interface RejectedBy {
  /** Absent: never. `t` is then the time until the bucket is empty. */
  readonly retryAfterMs?: number | undefined
  /** What does not fit. Absent: it is rejected for another reason. */
  readonly misfit?: Demand | undefined
}

/**
 * `RateLimit-Policy` of a stack, without buckets that hold any amount, and `RateLimit` of the reported buckets (draft-ietf-httpapi-ratelimit-headers-11).
 *
 * @param rejected on a rejection
 * @returns names and values in turn
 */
export function limitHeaders(
  stack: readonly QueuedBucket[],
  reported: readonly QueuedBucket[],
  now: number,
  rejected?: RejectedBy,
): string[] {
  let policy = ''
  for (const { limits } of stack) {
    if (limits.capacity === Infinity) continue
    policy += policy === '' ? policyOf(limits) : `, ${policyOf(limits)}`
  }
  let state = ''
  for (const bucket of reported) {
    if (bucket.limits.capacity === Infinity) continue
    state += `${state === '' ? '' : ', '}${stateOf(bucket, now, rejected)}`
  }
  if (policy === '') return []
  return state === '' ? ['RateLimit-Policy', policy] : ['RateLimit-Policy', policy, 'RateLimit', state]
}

/** Policies by limits. They change only with the configuration. */
const policies = new WeakMap<BucketLimits, string>()

function policyOf(limits: BucketLimits): string {
  const known = policies.get(limits)
  if (known !== undefined) return known
  const { name, rate, capacity } = limits
  const policy = `"${name}";q=${Math.floor(capacity + LEVEL_TOLERANCE)};w=${wholeSeconds(capacity / rate)}`
  policies.set(limits, policy)
  return policy
}

function stateOf(bucket: QueuedBucket, now: number, { retryAfterMs, misfit }: RejectedBy = {}): string {
  const { name, rate, capacity } = bucket.limits
  const level = bucket.level(now)
  const room = Math.max(0, Math.floor(capacity - level - bucket.reserved(now) + LEVEL_TOLERANCE))
  const cost = misfit && costIn(misfit, bucket as SharedBucket)
  // A store may keep room that is not known here.
  const remaining = cost === undefined ? room : Math.min(room, Math.max(0, Math.ceil(cost) - 1))
  const seconds = retryAfterMs === undefined ? roundUp(level / rate, 1_000) : wholeSeconds(retryAfterMs)
  return `"${name}";r=${remaining};t=${seconds}`
}
