/**
 * Reads a request into plain facts, before anything is counted. Requests that we and the upstream could read
 * differently are refused here (RFC 9112 sections 3.2 and 6.3). The parser refuses others before.
 */
import { ownValue } from '../../core/structures/own-value.js'
import { matchingPath } from '../../http/matching/matching-path.js'
import type { ClientRequest } from './client.js'
import { isNamed, NameSet, withNamed } from './fields.js'

const MAX_OPTIONS = 64

/** The reason to refuse a request before any bucket. `close`: the framing is in doubt, so the connection closes. */
export class Refusal {
  readonly status: number
  readonly detail: string
  readonly close: boolean

  constructor(status: number, detail: string, connection: 'keep' | 'close' = 'keep') {
    this.status = status
    this.detail = detail
    this.close = connection === 'close'
  }
}

/** Where a request says that it is to go, and what it shows for it. */
export interface Destination {
  readonly form: 'connect' | 'absolute' | 'path'
  readonly scheme: 'http' | 'https'
  readonly authority: string
  readonly rawHeaders: readonly string[]
  readonly host: string | undefined
  readonly encrypted: boolean
}

export interface EgressReader {
  find(destination: Destination): string | Refusal
}

interface EgressReading {
  readonly reader: EgressReader
  readonly encrypted: boolean
}

export interface RequestFacts {
  readonly method: string
  /** The origin that it goes to, as in a URL. Undefined: the route decides. */
  readonly origin: string | undefined
  readonly oldHttp: boolean
  /** Origin-form, byte for byte as it is sent upstream. With CONNECT the authority. */
  readonly target: string
  /** The path for matching: without query, with unreserved characters decoded, without dot segments and double slashes. */
  readonly path: string
  /** The authority that the client named; undefined only with HTTP/1.0. */
  readonly host: string | undefined
  readonly rawHeaders: readonly string[]
  /** Lower-case names of the headers that Connection removes. */
  readonly connection: ReadonlySet<string> | undefined
  readonly forwardedFor: readonly string[]
  /** All values of Via, joined. */
  readonly via: string | undefined
  readonly contentLength: number | undefined
  readonly chunked: boolean
  readonly expectContinue: boolean
  /** How often an OPTIONS or TRACE request may still be forwarded. */
  readonly maxForwards: number | undefined
  /** `Prefer: wait=N` (RFC 7240), in seconds. */
  readonly preferWait: number | undefined
  /** `grpc-timeout`, in ms. */
  readonly grpcTimeout: number | undefined
  /** `X-Envoy-Expected-Rq-Timeout-Ms`. */
  readonly expectedTimeout: number | undefined
}

export const HOST = /^(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]*)(?::\d{0,5})?$/
const ABSOLUTE_FORM = /^(https?):\/\/([^/?#]*)(.*)$/i
/** The path of a request to a base URL such as `http://127.0.0.1:8080/https/api.example.com`. */
const BASE_URL = /^\/(https?)\/([^/?#]*)(.*)$/
const PREFER_WAIT = /(?:^|,)\s*wait\s*=\s*("?)(\d{1,9})\1\s*(?:$|[,;])/i

const READ = new NameSet([
  ...['host', 'connection', 'content-length', 'transfer-encoding', 'content_length', 'transfer_encoding'],
  ...['expect', 'max-forwards', 'prefer', 'grpc-timeout', 'x-envoy-expected-rq-timeout-ms', 'via', 'x-forwarded-for'],
])

/** Nothing is ever added to it. */
const NONE: string[] = []
const SLASH = 47

/** @param egress undefined: the routes decide where requests go */
export function readRequest(req: ClientRequest, egress?: EgressReading): RequestFacts | Refusal {
  const head = new RequestHead(req)
  const refusal = head.checkFraming() ?? head.checkHost()
  if (refusal !== undefined) return refusal
  return (egress === undefined ? head.readTarget(req.url) : head.readEgress(req.url, egress)) ?? head
}

class RequestHead implements RequestFacts {
  readonly method: string
  readonly oldHttp: boolean
  origin: string | undefined = undefined
  target = ''
  path = ''
  host: string | undefined = undefined
  readonly rawHeaders: readonly string[]
  connection: Set<string> | undefined = undefined
  forwardedFor = NONE
  via: string | undefined = undefined
  contentLength: number | undefined = undefined
  chunked = false
  expectContinue = false
  maxForwards: number | undefined = undefined
  preferWait: number | undefined = undefined
  grpcTimeout: number | undefined = undefined
  expectedTimeout: number | undefined = undefined
  /** How many lines of Host, and options of Connection, there are. */
  #hosts = 0
  #options = 0
  /** All values of Transfer-Encoding, joined. */
  #codings: string | undefined = undefined
  #expectOther = false
  /** A name that CGI and WSGI take for one that frames the body. */
  #mistakable: string | undefined = undefined

  constructor({ method, httpVersionMinor, rawHeaders, unsized }: ClientRequest) {
    this.method = method
    this.oldHttp = httpVersionMinor === 0
    this.rawHeaders = rawHeaders
    for (let at = 0; at < rawHeaders.length; at += 2) {
      const name = READ.find(rawHeaders[at]!)
      if (name !== undefined) this.#read(name, rawHeaders[at + 1]!)
    }
    this.chunked = this.#codings !== undefined || unsized === true
  }

  #read(lowerName: string, value: string): void {
    switch (lowerName) {
      case 'host':
        this.host = value
        this.#hosts += 1
        break
      case 'connection':
        this.#readConnection(value.split(',', MAX_OPTIONS + 1))
        break
      case 'content-length':
        this.contentLength = Number(value)
        break
      case 'transfer-encoding':
        this.#codings = joined(this.#codings, value)
        break
      case 'content_length':
      case 'transfer_encoding':
        this.#mistakable = lowerName
        break
      case 'expect':
        this.expectContinue = value.toLowerCase() === '100-continue'
        this.#expectOther ||= !this.expectContinue
        break
      case 'max-forwards':
        if (/^(?:OPTIONS|TRACE)$/.test(this.method) && /^\d{1,9}$/.test(value)) this.maxForwards = Number(value)
        break
      case 'prefer':
        this.preferWait ??= waitPreferred(value)
        break
      case 'grpc-timeout':
        this.grpcTimeout ??= grpcTimeout(value)
        break
      case 'x-envoy-expected-rq-timeout-ms':
        if (/^\d{1,9}$/.test(value)) this.expectedTimeout ??= Number(value)
        break
      case 'via':
        this.via = joined(this.via, value)
        break
      case 'x-forwarded-for':
        if (this.forwardedFor === NONE) this.forwardedFor = [value]
        else this.forwardedFor.push(value)
        break
    }
  }

  #readConnection(listed: readonly string[]): void {
    this.#options += listed.length
    if (this.#options <= MAX_OPTIONS) this.connection = withNamed(this.connection, listed)
  }

  checkFraming(): Refusal | undefined {
    // The parser has refused it in HTTP/1.0, and beside a Content-Length.
    if (this.#codings !== undefined && this.#codings.toLowerCase() !== 'chunked') {
      return new Refusal(501, 'the only supported Transfer-Encoding is chunked', 'close')
    }
    if (this.#mistakable !== undefined) {
      return new Refusal(400, `an upstream could take ${this.#mistakable} for the length of the body`, 'close')
    }
    if (this.#options > MAX_OPTIONS) {
      return new Refusal(400, `Connection lists more than ${MAX_OPTIONS} options`, 'close')
    }
    if (this.#expectOther && !this.oldHttp) {
      return new Refusal(417, 'the only supported expectation is 100-continue', 'close')
    }
    return undefined
  }

  checkHost(): Refusal | undefined {
    if (this.#hosts > 1) return new Refusal(400, 'the request has more than one Host header', 'close')
    if (this.#hosts === 0 && !this.oldHttp) return new Refusal(400, 'the request has no Host header', 'close')
    if (this.host !== undefined && !HOST.test(this.host)) return new Refusal(400, 'Host is malformed', 'close')
    return undefined
  }

  readTarget(target: string): Refusal | undefined {
    if (target.charCodeAt(0) === SLASH) this.target = target
    else {
      const refusal = this.#readAbsolute(target)
      if (refusal !== undefined) return refusal
    }
    // RFC 9110 7.6.2: the request is for us, and we have no answer to it.
    if (this.maxForwards === 0) return new Refusal(501, `${this.method} with Max-Forwards: 0 cannot be forwarded`)
    if (this.target.includes('#')) return new Refusal(400, 'the request target has a fragment', 'close')
    this.path = matchingPath(this.target)
    return undefined
  }

  /** A target that says where it goes: an authority, a URL, or the path of a base URL. */
  readEgress(target: string, { reader, encrypted }: EgressReading): Refusal | undefined {
    const asked = destinationIn(this.method, target)
    if (asked === undefined) {
      return new Refusal(
        404,
        'the request does not say where it goes; use this address as a proxy, or /https/HOST/PATH',
      )
    }
    const { rest, ...destination } = asked
    const { rawHeaders, host } = this
    const origin = reader.find({ ...destination, rawHeaders, host, encrypted })
    if (origin instanceof Refusal) return origin
    this.origin = origin
    this.host = origin.slice(origin.indexOf('://') + 3)
    if (asked.form !== 'connect') return this.readTarget(rest.startsWith('/') ? rest : `/${rest}`)
    this.target = target
    this.path = '/'
    return undefined
  }

  #readAbsolute(target: string): Refusal | undefined {
    const [, , authority, rest] = ABSOLUTE_FORM.exec(target) ?? []
    if (authority === undefined || rest === undefined) {
      return target === '*'
        ? new Refusal(501, 'the request target "*" is not forwarded')
        : new Refusal(400, 'the request target is neither a path nor a URL', 'close')
    }
    if (authority === '' || !HOST.test(authority)) {
      return new Refusal(400, 'the authority of the request target is malformed', 'close')
    }
    // RFC 9112 3.2.2: the target's authority replaces Host.
    this.host = authority
    this.target = rest.startsWith('/') ? rest : `/${rest}`
    return undefined
  }
}

interface Asked extends Pick<Destination, 'form' | 'scheme' | 'authority'> {
  readonly rest: string
}

/** What a target says about where it goes. Undefined: nothing. */
function destinationIn(method: string, target: string): Asked | undefined {
  if (method === 'CONNECT') return { form: 'connect', scheme: 'https', authority: target, rest: '' }
  const form = target.charCodeAt(0) === SLASH ? 'path' : 'absolute'
  const [, scheme, authority, rest] = (form === 'path' ? BASE_URL : ABSOLUTE_FORM).exec(target) ?? []
  if (scheme === undefined || authority === undefined || rest === undefined) return undefined
  return { form, scheme: scheme.toLowerCase() === 'https' ? 'https' : 'http', authority, rest }
}

function joined(values: string | undefined, value: string): string {
  return values === undefined ? value : `${values}, ${value}`
}

/** A header value without what its quoted texts say, but for numbers. */
export function withoutTexts(value: string): string {
  return value.replace(/"(?:[^"\\]|\\.)*(?:"|\\?$)/g, text => (/^"\d*"$/.test(text) ? text : '""'))
}

function waitPreferred(value: string): number | undefined {
  const seconds = PREFER_WAIT.exec(withoutTexts(value))?.[2]
  return seconds === undefined ? undefined : Number(seconds)
}

/** The units of `grpc-timeout` in ms. */
const GRPC_UNITS: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1_000, m: 1, u: 1e-3, n: 1e-6 }

/** As the gRPC protocol over HTTP/2 says. In ms. */
function grpcTimeout(value: string): number | undefined {
  const [, amount, unit] = /^(\d{1,8})([HMSmun])$/.exec(value) ?? []
  return amount === undefined ? undefined : Number(amount) * ownValue(GRPC_UNITS, unit!)!
}

/** All values of a header, joined as RFC 9110 5.3 says; undefined if there is none or it is empty. */
export function headerValue(rawHeaders: readonly string[], lowerName: string, separator = ', '): string | undefined {
  let value: string | undefined
  for (let at = nextLine(rawHeaders, lowerName, 0); at >= 0; at = nextLine(rawHeaders, lowerName, at + 2)) {
    value = value === undefined ? rawHeaders[at + 1]! : `${value}${separator}${rawHeaders[at + 1]!}`
  }
  return value === '' ? undefined : value
}

/** The value of a header's first line. Lines that a client adds behind it change nothing. */
export function firstLine(rawHeaders: readonly string[], lowerName: string): string | undefined {
  const at = nextLine(rawHeaders, lowerName, 0)
  return at < 0 ? undefined : rawHeaders[at + 1]!
}

export function hasSeveralLines(rawHeaders: readonly string[], lowerName: string): boolean {
  const first = nextLine(rawHeaders, lowerName, 0)
  return first >= 0 && nextLine(rawHeaders, lowerName, first + 2) >= 0
}

function nextLine(rawHeaders: readonly string[], lowerName: string, from: number): number {
  for (let at = from; at < rawHeaders.length; at += 2) {
    if (isNamed(rawHeaders[at]!, lowerName)) return at
  }
  return -1
}

/** RFC 9110 9.2.2. */
export function isIdempotent(method: string): boolean {
  return IDEMPOTENT.has(method)
}

const IDEMPOTENT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])
