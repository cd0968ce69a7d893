/** Our own answers to gRPC requests: a status in headers, without a body ("Trailers-Only" of the gRPC protocol). */
import type { Outcome } from '../observe/observer.js'
import type { ClientAnswer, ClientRequest } from './client.js'
import type { Reply } from './reply.js'
import { headerValue } from './request.js'

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

/** Whether it is a call of gRPC. It may be a conversation. */
export function isGrpc({ rawHeaders }: ClientRequest): boolean {
  return /^application\/grpc(?![\w.-])/i.test(headerValue(rawHeaders, 'content-type') ?? '')
}

/** The gRPC status of a request that ends with this reply. */
function grpcStatus(outcome: Outcome, { status, outage }: Reply): number {
  if (outage) return UNAVAILABLE
  if (outcome === 'rejected') return RESOURCE_EXHAUSTED
  if (outcome === 'expired' || status === 504 || status === 408) return DEADLINE_EXCEEDED
  return outcome === 'failed' ? UNAVAILABLE : (REFUSED[status] ?? INTERNAL)
}

/**
 * Answers a gRPC request.
 *
 * @param outcome of the request
 * @param more further headers, names and values in turn
 */
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
