/** Our own answers, and our headers on the upstream's answers. */
import { STATUS_CODES } from 'node:http'
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import type { BucketLimits, QueuedBucket } from '../../core/bucket/queued-bucket.js'
import { costIn, type Demand, type SharedBucket } from '../../core/queue/lane.js'
import type { Outcome } from '../observe/observer.js'
import type { ClientAnswer, ClientConnection, ClientRequest, Reply } from './client.js'
import { headerValue, type Refusal } from './request.js'

const QUOTA_EXCEEDED = 'https://iana.org/assignments/http-problem-types#quota-exceeded'
const REDUCED_CAPACITY = 'https://iana.org/assignments/http-problem-types#temporary-reduced-capacity'
/** ms. Sums of periods may be this much too long; do not round up for it. */
const ROUNDING = 1e-9
/** The part by which a product or quotient of a few rounded numbers may be too large. */
const RELATIVE_ROUNDING = 4 * Number.EPSILON
const NOTHING: readonly string[] = []
const CLOSE: readonly string[] = ['Connection', 'close']
const PROBLEM: readonly string[] = ['Content-Type', 'application/problem+json']
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
export const NO_ROOM: Reply = { status: 503, detail: 'too many requests are on their way', retryAfterMs: RETRY_SOON_MS }
const PROXY_CHALLENGE = ['Proxy-Authenticate', 'Basic realm="shaper"']

export function refused({ status, detail, close }: Refusal): Reply {
  return {
    status,
    detail,
    close,
    ...(status === 503 && { retryAfterMs: RETRY_SOON_MS }),
    ...(status === 407 && { headers: PROXY_CHALLENGE }),
  }
}

export function malformed(how: string): string {
  return `the request is malformed: ${how}`
}

/** Answers a request that has waited for its `maxWait`. @param waited ms */
export function tooLate(waited: number): Reply {
  return { status: 503, detail: `still queued after ${(waited / 1_000).toFixed(1)} s`, retryAfterMs: RETRY_SOON_MS }
}

/** Answers a request whose client will have left before the answer. @param retryAfterMs until the wait is short enough */
export function unwanted(retryAfterMs: number): Reply {
  return { status: 503, detail: 'the answer would come after clients have stopped waiting for it', retryAfterMs }
}

/** Answers a request whose upstream fails. @param probe ms until the upstream is tried again */
export function upstreamDown(probe: number): Reply {
  return { status: 503, detail: 'the upstream fails; it is tried again from time to time', retryAfterMs: probe }
}

/** Answers a request whose upstream pauses longer than the request may wait. @param pause ms until the pause ends */
export function pausedTooLong(pause: number): Reply {
  return { status: 503, detail: 'the upstream asks for a pause that is too long to wait for', retryAfterMs: pause }
}

/** Answers with a problem document (RFC 9457). @param more further headers, names and values in turn */
export function sendReply(res: ClientAnswer, reply: Reply, more: readonly string[]): void {
  const { status, retryAfterMs, page } = reply
  const body = page?.html ?? latin1Of(problem(reply))
  const headers = [...(page?.headers ?? PROBLEM), 'Content-Length', String(body.length)]
  if (retryAfterMs !== undefined) headers.push('Retry-After', String(wholeSeconds(retryAfterMs)))
  for (const part of reply.headers ?? NOTHING) headers.push(part)
  for (const part of more) headers.push(part)
  res.sendWhole({ status, reason: STATUS_CODES[status] ?? '', headers, body })
}

/** The connection closes after the answer. @returns its header, name and value */
export function closeAfter(connection: ClientConnection): readonly string[] {
  connection.last()
  return CLOSE
}

export function closing(connection: ClientConnection, { leaving }: { readonly leaving: boolean }): readonly string[] {
  return connection.alone && (connection.full || leaving) ? closeAfter(connection) : NOTHING
}

/** The UTF-8 bytes of a text, one for each character. */
function latin1Of(text: string): string {
  return Buffer.byteLength(text) === text.length ? text : Buffer.from(text).toString('latin1')
}

function problem({ status, detail, violated, retryAfterMs }: Reply): string {
  const type = violated !== undefined ? QUOTA_EXCEEDED : status === 503 ? REDUCED_CAPACITY : 'about:blank'
  let json = `{"type":"${type}","title":"${STATUS_CODES[status] ?? 'Error'}","status":${status}`
  json += `,"detail":${JSON.stringify(detail)}`
  // A name has nothing to escape (config/schema/values.ts).
  if (violated !== undefined && violated.length > 0)
    json += `,"violated-policies":["${violated.map(({ limits }) => limits.name).join('","')}"]`
  if (retryAfterMs !== undefined) json += `,"retryAfterMs":${roundUp(retryAfterMs, 1)}`
  return `${json}}`
}

function roundUp(ms: number, unit: number): number {
  return Math.ceil((ms - ROUNDING - ms * RELATIVE_ROUNDING) / unit)
}

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
 * `RateLimit-Policy` of a stack, and `RateLimit` of the reported buckets, without those that hold any amount
 * (draft-ietf-httpapi-ratelimit-headers-11). Names and values in turn.
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
  const { name, rate, capacity, quota } = limits
  const window = quota === undefined ? capacity / rate : quota.until - quota.from
  const policy = `"${name}";q=${Math.floor(capacity + LEVEL_TOLERANCE)};w=${wholeSeconds(window)}`
  policies.set(limits, policy)
  return policy
}

function stateOf(bucket: QueuedBucket, now: number, { retryAfterMs, misfit }: RejectedBy = {}): string {
  const { name, rate, capacity, quota } = bucket.limits
  const level = bucket.level(now)
  const room = Math.max(0, Math.floor(capacity - level - bucket.reserved(now) + LEVEL_TOLERANCE))
  const cost = misfit && costIn(misfit, bucket as SharedBucket)
  // A store may keep room that is not known here.
  const remaining = cost === undefined ? room : Math.min(room, Math.max(0, Math.ceil(cost) - 1))
  const untilEmpty = quota === undefined ? level / rate : quota.until - now
  const seconds = retryAfterMs === undefined ? roundUp(untilEmpty, 1_000) : wholeSeconds(retryAfterMs)
  return `"${name}";r=${remaining};t=${seconds}`
}

/** Our own answers to gRPC requests: a status in headers, without a body ("Trailers-Only" of the gRPC protocol). */

const DEADLINE_EXCEEDED = 4
const RESOURCE_EXHAUSTED = 8
const INTERNAL = 13
const UNAVAILABLE = 14

/** The statuses of requests that are refused, by what they would be in HTTP. */
const REFUSED: Readonly<Record<number, number>> = {
  401: 16,
  403: 7,
  404: 12,
  407: 16,
  408: DEADLINE_EXCEEDED,
  413: RESOURCE_EXHAUSTED,
  431: RESOURCE_EXHAUSTED,
  501: 12,
  503: UNAVAILABLE,
}

const RETRY_INFO = 'type.googleapis.com/google.rpc.RetryInfo'

export function isGrpc({ rawHeaders }: ClientRequest): boolean {
  return /^application\/grpc(?![\w.-])/i.test(headerValue(rawHeaders, 'content-type') ?? '')
}

function grpcStatus(outcome: Outcome, { status, outage }: Reply): number {
  if (outage) return UNAVAILABLE
  if (outcome === 'rejected') return RESOURCE_EXHAUSTED
  if (outcome === 'expired' || status === 504 || status === 408) return DEADLINE_EXCEEDED
  return outcome === 'failed' ? UNAVAILABLE : (REFUSED[status] ?? INTERNAL)
}

/** @param more further headers, names and values in turn */
export function sendGrpcReply(res: ClientAnswer, outcome: Outcome, reply: Reply, more: readonly string[]): void {
  const code = grpcStatus(outcome, reply)
  const headers = ['content-type', 'application/grpc', 'grpc-status', String(code)]
  headers.push('grpc-message', encodeURI(reply.detail).replace(/%20/g, ' '))
  if (reply.retryAfterMs !== undefined) {
    headers.push('grpc-status-details-bin', statusWithRetry(code, reply.detail, reply.retryAfterMs))
  }
  headers.push(...(reply.headers ?? []), ...more)
  res.sendWhole({ status: 200, reason: '', headers, body: '' })
}

/** A `google.rpc.Status` with a `google.rpc.RetryInfo`, in base64 without padding. */
function statusWithRetry(code: number, detail: string, retryAfterMs: number): string {
  const seconds = Math.floor(retryAfterMs / 1_000)
  const nanos = Math.ceil((retryAfterMs - seconds * 1_000) * 1e6)
  const delay = Buffer.concat([varintField(1, seconds), varintField(2, Math.min(nanos, 999_999_999))])
  const info = Buffer.concat([bytesField(1, Buffer.from(RETRY_INFO)), bytesField(2, bytesField(1, delay))])
  const status = Buffer.concat([varintField(1, code), bytesField(2, Buffer.from(detail)), bytesField(3, info)])
  return status.toString('base64').replace(/=+$/, '')
}

/** A field of protocol buffers with a whole number. 0 is left out. */
function varintField(field: number, value: number): Buffer {
  return value === 0 ? Buffer.alloc(0) : Buffer.from([field << 3, ...varint(value)])
}

function bytesField(field: number, value: Buffer): Buffer {
  return Buffer.concat([Buffer.from([(field << 3) | 2, ...varint(value.length)]), value])
}

function varint(value: number): number[] {
  const bytes: number[] = []
  let rest = value
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) | 128)
  bytes.push(rest)
  return bytes
}

let second = 0
let date = ''

/** The date for a `Date` header. It changes once a second. */
export function httpDate(): string {
  const now = Math.floor(Date.now() / 1_000)
  if (now !== second) {
    second = now
    date = new Date(now * 1_000).toUTCString()
  }
  return date
}
