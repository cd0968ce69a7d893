/**
 * Reads a request into plain facts, before anything is counted. Requests that we and the upstream could read
 * differently are refused here (RFC 9112 sections 3.2 and 6.3). llhttp refuses others before.
 */
import type { IncomingMessage } from 'node:http'
import { withNamed } from './hop-by-hop.js'

/** Most options that Connection may list. */
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

export interface RequestFacts {
  readonly method: string
  /** HTTP/1.0. */
  readonly oldHttp: boolean
  /** Origin-form, byte for byte as it is sent upstream. */
  readonly target: string
  /**
   * The path for matching: without query, with unreserved characters decoded, without dot segments and double slashes.
   */
  readonly path: string
  /** The authority that the client named; undefined only with HTTP/1.0. */
  readonly host: string | undefined
  /** Names and values in turn, as they came. */
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
}

const HOST = /^(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]*)(?::\d{0,5})?$/
const ABSOLUTE_FORM = /^https?:\/\/([^/?#]*)(.*)$/i
const UNRESERVED = /[A-Za-z0-9\-._~]/
const PREFER_WAIT = /(?:^|,)\s*wait\s*=\s*("?)(\d{1,9})\1\s*(?:$|[,;])/i

export function readRequest(req: IncomingMessage): RequestFacts | Refusal {
  const { rawHeaders } = req
  const method = req.method!
  const oldHttp = req.httpVersionMinor === 0
  let host: string | undefined
  let hosts = 0
  let connection: Set<string> | undefined
  let options = 0
  let forwardedFor: string[] | undefined
  let contentLength: number | undefined
  let codings: string | undefined
  let expectContinue = false
  let expectOther = false
  let maxForwards: number | undefined
  let preferWait: number | undefined
  let via: string | undefined
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const value = rawHeaders[at + 1]!
    switch (rawHeaders[at]!.toLowerCase()) {
      case 'host':
        host = value
        hosts += 1
        break
      case 'connection': {
        const listed = value.split(',', MAX_OPTIONS + 1)
        options += listed.length
        if (options <= MAX_OPTIONS) connection = withNamed(connection, listed)
        break
      }
      case 'content-length':
        contentLength = Number(value)
        break
      case 'transfer-encoding':
        codings = codings === undefined ? value : `${codings}, ${value}`
        break
      case 'expect':
        expectContinue = value.toLowerCase() === '100-continue'
        expectOther ||= !expectContinue
        break
      case 'max-forwards':
        if ((method === 'OPTIONS' || method === 'TRACE') && /^\d{1,9}$/.test(value)) maxForwards = Number(value)
        break
      case 'prefer':
        preferWait ??= waitPreferred(value)
        break
      case 'via':
        via = via === undefined ? value : `${via}, ${value}`
        break
      case 'x-forwarded-for':
        forwardedFor ??= []
        forwardedFor.push(value)
        break
    }
  }

  if (req.httpVersionMajor !== 1) return new Refusal(505, 'only HTTP/1.0 and HTTP/1.1 are supported', 'close')
  if (codings !== undefined) {
    if (oldHttp) return new Refusal(400, 'the HTTP/1.0 request has a Transfer-Encoding', 'close')
    if (codings.trim().toLowerCase() !== 'chunked') {
      return new Refusal(501, 'the only supported Transfer-Encoding is chunked', 'close')
    }
    if (contentLength !== undefined)
      return new Refusal(400, 'the request has both Content-Length and Transfer-Encoding', 'close')
  }
  if (options > MAX_OPTIONS) return new Refusal(400, `Connection lists more than ${MAX_OPTIONS} options`, 'close')
  if (expectOther && !oldHttp) return new Refusal(417, 'the only supported expectation is 100-continue', 'close')
  if (hosts > 1) return new Refusal(400, 'the request has more than one Host header', 'close')
  if (hosts === 0 && !oldHttp) return new Refusal(400, 'the request has no Host header', 'close')
  if (host !== undefined && !HOST.test(host)) return new Refusal(400, 'Host is malformed', 'close')

  let target = req.url!
  if (target.charCodeAt(0) !== SLASH) {
    const [, authority, rest] = ABSOLUTE_FORM.exec(target) ?? []
    if (authority === undefined || rest === undefined) {
      return target === '*'
        ? new Refusal(501, 'the request target "*" is not forwarded')
        : new Refusal(400, 'the request target is neither a path nor a URL', 'close')
    }
    if (authority === '' || !HOST.test(authority)) {
      return new Refusal(400, 'the authority of the request target is malformed', 'close')
    }
    // RFC 9112 3.2.2: the target's authority replaces Host.
    host = authority
    target = rest.startsWith('/') ? rest : `/${rest}`
  }
  // RFC 9110 7.6.2: the request is for us, and we have no answer to it.
  if (maxForwards === 0) return new Refusal(501, `${method} with Max-Forwards: 0 cannot be forwarded`)
  if (target.includes('#')) return new Refusal(400, 'the request target has a fragment', 'close')

  return {
    method,
    oldHttp,
    target,
    path: matchingPath(target),
    host,
    rawHeaders,
    connection,
    forwardedFor: forwardedFor ?? NONE,
    via,
    contentLength,
    chunked: codings !== undefined,
    expectContinue,
    maxForwards,
    preferWait,
  }
}

const NONE: readonly string[] = []
const SLASH = 47

function waitPreferred(value: string): number | undefined {
  const seconds = PREFER_WAIT.exec(value)?.[2]
  return seconds === undefined ? undefined : Number(seconds)
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

/** The index of a header's next line; -1: there is none. */
function nextLine(rawHeaders: readonly string[], lowerName: string, from: number): number {
  for (let at = from; at < rawHeaders.length; at += 2) {
    if (rawHeaders[at]!.length === lowerName.length && rawHeaders[at]!.toLowerCase() === lowerName) return at
  }
  return -1
}

/** The path that routes compare: without query, in one spelling. */
export function matchingPath(target: string): string {
  const query = target.indexOf('?')
  const path = query < 0 ? target : target.slice(0, query)
  return /%|\/[./]/.test(path) ? normalized(path) : path
}

/** Applies RFC 3986 6.2.2 and 5.2.4 and merges empty segments, so that no spelling of a path evades its route. */
function normalized(path: string): string {
  const decoded = path.replace(/%[0-9A-Fa-f]{2}/g, code => {
    const character = String.fromCharCode(Number.parseInt(code.slice(1), 16))
    return UNRESERVED.test(character) ? character : code.toUpperCase()
  })
  const segments: string[] = []
  const parts = decoded.split('/')
  for (const part of parts) {
    if (part === '..') segments.pop()
    else if (part !== '.' && part !== '') segments.push(part)
  }
  const last = parts.at(-1)
  const directory = segments.length > 0 && (last === '' || last === '.' || last === '..')
  return `/${segments.join('/')}${directory ? '/' : ''}`
}

/** RFC 9110 9.2.2. */
export function isIdempotent(method: string): boolean {
  return IDEMPOTENT.has(method)
}

const IDEMPOTENT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])
