import type { IncomingHttpHeaders } from 'node:http2'
import { METHOD } from '../../http/method.js'
import type { ClientRequest, Reply } from '../http/client.js'
import { isGrpc, malformed } from '../http/reply.js'
import { type HeadLimits, tooMany } from './request-parser.js'

/** Anything else would be an absolute URL to an upstream of HTTP/1.1, or no target (RFC 9113 8.3.1). */
const PATH = /^(?:\/[\x21-\x7e]*|\*)$/
const SCHEME = /^https?$/i
const LENGTH = /^\d{1,15}$/
const NAMES = /^[!#$%&'*+\-.^_`|~0-9a-z]*$/
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it excludes.
const CONTROLS = /[\0-\x08\x0a-\x1f\x7f]/
/** Bytes of a field besides its name and its value, as in HTTP/1.1. */
const SEPARATORS = 4
/** Bytes that a field takes besides its text: 80 of ours, and Node's up to 300. */
const FIELD = 400
const NONE: readonly string[] = []
const GRPC: readonly string[] = ['content-type', 'application/grpc']

interface Http2Head {
  /** By name. Only its pseudo-fields are read. */
  readonly headers: IncomingHttpHeaders
  readonly raw: readonly string[]
  readonly body: 'none' | 'follows'
}

class Fields {
  /** Names and values in turn, Host first. */
  readonly all: string[]
  names = ''
  values = ''
  contentLength: string | undefined
  hostDiffers = false
  readonly #authority: string | undefined
  #cookies = -1

  constructor({ headers, raw }: Http2Head) {
    this.#authority = headers[':authority']
    this.all = this.#authority === undefined ? [] : ['host', this.#authority]
    for (let at = 0; at < raw.length; at += 2) if (raw[at]![0] !== ':') this.#take(raw[at]!, raw[at + 1]!)
  }

  #take(name: string, value: string): void {
    this.names += name
    this.values += value
    if (name === 'content-length') this.contentLength = value
    if (name === 'host' && this.#authority !== undefined) this.hostDiffers ||= value !== this.#authority
    // Cookies that came in several lines are one (RFC 9113 8.2.3).
    else if (name === 'cookie' && this.#cookies >= 0) this.all[this.#cookies] += `; ${value}`
    else {
      if (name === 'cookie') this.#cookies = this.all.length + 1
      this.all.push(name, value)
    }
  }
}

/** The head of a request of HTTP/2, as one of HTTP/1.1 (RFC 9113 8.3.1). */
export class Http2Request implements ClientRequest {
  readonly isHttp2 = true
  readonly httpVersionMinor = 1
  readonly method: string
  readonly url: string
  readonly rawHeaders: readonly string[]
  complete: boolean
  readonly unsized: boolean
  /** Undefined: no header says how long its body is. */
  readonly contentLength: number | undefined
  readonly refusal: Reply | undefined
  /** Bytes of memory that it takes. */
  readonly memory: number

  constructor(head: Http2Head, { maxHeaderSize, maxHeaders }: HeadLimits) {
    const { ':method': method = '', ':path': path = '' } = head.headers
    const fields = new Fields(head)
    const { contentLength: length, names, values } = fields
    this.method = method
    this.url = path
    this.complete = head.body === 'none'
    this.rawHeaders = fields.all
    this.contentLength = length === undefined ? undefined : Number(length)
    this.unsized = !this.complete && length === undefined
    const text = method.length + path.length + names.length + values.length
    this.memory = text + FIELD * (fields.all.length / 2)
    if (fields.all.length > 2 * maxHeaders) this.refusal = { status: 431, detail: tooMany(maxHeaders) }
    else if (text + SEPARATORS * (head.raw.length / 2) > maxHeaderSize) this.refusal = TOO_LARGE
    else this.refusal = this.#check(fields, head.headers[':scheme'])
    // No more is kept than the answer depends on.
    if (this.refusal?.status === 431) this.rawHeaders = isGrpc(this) ? GRPC : NONE
  }

  #check({ names, values, hostDiffers, contentLength = '0' }: Fields, scheme = ''): Reply | undefined {
    if (this.method === 'CONNECT') return { status: 501, detail: 'CONNECT is not supported over HTTP/2' }
    if (hostDiffers) return { status: 400, detail: 'Host differs from :authority' }
    // An upstream of HTTP/1.1 would read anything else as another request.
    const how =
      (!METHOD.test(this.method) && 'the method is no name in capitals') ||
      (!PATH.test(this.url) && 'the path has characters that have to be percent-encoded') ||
      (!NAMES.test(names) && 'a header without a valid name') ||
      (CONTROLS.test(values) && 'a control character in the headers') ||
      (!SCHEME.test(scheme) && 'the scheme is neither http nor https') ||
      (!LENGTH.test(contentLength) && 'a bad Content-Length')
    return how ? { status: 400, detail: malformed(how) } : undefined
  }
}

const TOO_LARGE: Reply = { status: 431, detail: 'the request headers are too large' }
