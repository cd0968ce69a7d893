import type { Dispatcher } from 'undici'
import type { Credential, RequestSettings } from '../options.js'

type Options = Dispatcher.DispatchOptions
/** Methods that may be repeated (RFC 9110 9.2.2). */
const IDEMPOTENT = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PUT', 'DELETE'])

export function keyOf(options: Options, key: RequestSettings<Options>['key']): string {
  if (typeof key === 'function') return key(options)
  if (key === 'all') return ''
  return key === 'origin' ? originOf(options.origin) : (headerOf(options.headers, key.header) ?? '')
}

/** The name of the queue of requests of a key that count in the same limit of their API. */
export function queueName(key: string, resource: string | undefined): string {
  return resource === undefined ? key : `${key} ${resource}`
}

export function originOf(origin: string | URL | undefined): string {
  // A dispatcher for one origin does not name it.
  if (origin === undefined) return ''
  const text = String(origin)
  return URL.canParse(text) ? new URL(text).origin : text
}

function headerOf(headers: Options['headers'], name: string): string | undefined {
  for (const [field, value] of pairs(headers)) {
    if (String(field).toLowerCase() === name && value !== undefined && value !== null) return String(value)
  }
  return undefined
}

function* pairs(headers: Options['headers']): Generator<[unknown, unknown]> {
  if (headers === undefined || headers === null) return
  if (Array.isArray(headers) && !Array.isArray(headers[0])) {
    for (let at = 0; at + 1 < headers.length; at += 2) yield [headers[at], headers[at + 1]]
  } else if (Symbol.iterator in headers) {
    for (const pair of headers) yield [pair[0], pair[1]]
  } else {
    yield* Object.entries(headers)
  }
}

/** The options of a request with a credential: its headers in place of those of the same names. */
export function withCredential(options: Options, { header }: Credential): Options {
  if (header === undefined) return options
  const headers: string[] = Object.entries(header).flat()
  for (const [name, value] of pairs(options.headers)) {
    if (Object.hasOwn(header, String(name).toLowerCase()) || value === undefined || value === null) continue
    for (const each of Array.isArray(value) ? value : [value]) headers.push(String(name), String(each))
  }
  // An interceptor that we dispatch to would follow a redirect with them.
  return { ...options, headers, maxRedirections: 0 } as Options
}

/** Whether a request may be sent once more: it is repeatable, and so is its body. */
export function isRepeatable({ method, body, idempotent, upgrade }: Options): boolean {
  return !upgrade && isReplayable(body) && (idempotent ?? IDEMPOTENT.has(method))
}

/** Connections that fail in these ways may do better next time. */
const NETWORK_ERRORS = new Set([
  ...['ECONNRESET', 'ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'ENETDOWN', 'ENETUNREACH', 'EHOSTDOWN', 'EHOSTUNREACH'],
  ...['EPIPE', 'ETIMEDOUT', 'UND_ERR_SOCKET', 'UND_ERR_CONNECT_TIMEOUT'],
])

export function isNetworkError(error: Error & { code?: unknown }): boolean {
  return NETWORK_ERRORS.has(String(error.code))
}

/** Whether a body can be read a second time. A stream or an iterable cannot. */
function isReplayable(body: unknown): boolean {
  if (body === undefined || body === null || typeof body === 'string') return true
  if (ArrayBuffer.isView(body) || body instanceof ArrayBuffer || body instanceof Blob) return true
  return Object.prototype.toString.call(body) === '[object FormData]'
}

interface ErringBody {
  on(event: 'error', listener: (error: Error) => void): unknown
  off(event: 'error', listener: (error: Error) => void): unknown
  destroy(error?: Error): unknown
}

/** The body if it is a stream, which can fail while it waits. */
export function streamOf(body: unknown): ErringBody | undefined {
  if (typeof body !== 'object' || body === null) return undefined
  const isStream = (['on', 'off', 'destroy', 'pipe'] as const).every(verb => verb in body)
  return isStream ? (body as ErringBody) : undefined
}

/** Discards a body that will not be read: a stream, or an iterable. */
export function discard(body: unknown, reason: Error): void {
  if (typeof body !== 'object' || body === null) return
  const stream = streamOf(body)
  if (stream !== undefined) {
    // Errors of a discarded body do not matter.
    stream.on('error', () => undefined)
    stream.destroy(reason)
  } else if (body instanceof ReadableStream) {
    if (!body.locked) body.cancel(reason).catch(() => undefined)
  } else if (Symbol.asyncIterator in body || Symbol.iterator in body) {
    void endIteration(body as AsyncIterable<unknown> | Iterable<unknown>)
  }
}

async function endIteration(body: AsyncIterable<unknown> | Iterable<unknown>): Promise<void> {
  try {
    const iterator = Symbol.asyncIterator in body ? body[Symbol.asyncIterator]() : body[Symbol.iterator]()
    await iterator.return?.()
  } catch {}
}
