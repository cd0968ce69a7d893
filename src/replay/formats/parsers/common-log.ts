/** Lines of the common and combined log formats of Apache and nginx. */
import { isIP } from 'node:net'
import { readAddress } from '../../../proxy/http/client-address.js'
import type { FieldUse } from '../field-names.js'
import { type BadLine, LineParser, readRequestLine } from '../line-parser.js'
import { TimestampReader } from '../timestamp.js'

const SPACE = 32
const QUOTE = 34
const BACKSLASH = 92
const OPEN = 91
const CLOSE = 93

const DOT = 46
const COMMA = 44
const MINUS = 45

/** Kinds of characters in the client field: an IPv4 address is numeric, a host name has letters, too. */
const NUMERIC = 1
const NAME = 2
const OTHER = 4
const KINDS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte)
  if (/[\d.]/.test(character)) return NUMERIC
  // Stars replace the digits of anonymised addresses.
  return /[A-Za-z_*-]/.test(character) ? NAME : OTHER
})

/** Seconds with a decimal point, as nginx writes `$request_time`: the first number after the user agent. */
const TAIL = /^[^\d]*?(\d{1,7}\.\d{1,6})(?:[\s"]|$)/

const FORWARDED = 'x-forwarded-for'

/** A quoted field after the user agent. nginx's packaged format has `"$http_x_forwarded_for"` there. */
const QUOTED = /"([^"]*)"/g

/** What to do with a field after the user agent that has the addresses of `X-Forwarded-For`. `client`: its first one is the client. */
export type ForwardedField = 'absent' | 'header' | 'client'

export class CommonLogParser extends LineParser {
  readonly format: 'common' | 'combined'
  readonly timed: boolean
  readonly #timestamp = new TimestampReader()
  /** Whether the address looks neither like IPv4 nor like a host name, so that it needs a full check. */
  #isUnusual = false
  #refererFrom = 0
  #refererTo = 0
  readonly #forwarded: ForwardedField
  /** The end of the line. */
  #to = 0

  /** @param format `timed`: the combined format with a request time after the user agent */
  constructor(format: 'common' | 'combined' | 'timed', forwarded: ForwardedField = 'absent') {
    super()
    this.#forwarded = forwarded
    this.timed = format === 'timed'
    this.format = format === 'common' ? 'common' : 'combined'
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    this.bytes = bytes
    this.#to = to
    const opened = this.#readAddress(bytes, from, to)
    if (opened < 0) return 'no address'
    let closed = opened
    while (closed < to && bytes[closed] !== CLOSE) closed += 1
    if (closed >= to || !this.#timestamp.read(bytes, opened, closed)) return 'no time'
    if (this.#isUnusual && !isClient(slice(bytes, from, this.addressTo))) return 'no address'
    this.second = this.#timestamp.second
    this.fraction = this.#timestamp.fraction
    return this.#readRequest(bytes, closed + 1, to)
  }

  /**
   * Reads the address and finds the time.
   *
   * @returns the place behind the bracket before the time, or behind the line; -1 where there is no address
   */
  #readAddress(bytes: Uint8Array, from: number, to: number): number {
    let at = from
    let kinds = 0
    let dots = 0
    while (at < to && bytes[at] !== SPACE) {
      const byte = bytes[at]!
      kinds |= KINDS[byte]!
      if (byte === DOT) dots += 1
      at += 1
    }
    if (at === from || at === to || (at === from + 1 && bytes[from] === MINUS)) return -1
    this.addressFrom = from
    // The first of several addresses is the client.
    this.addressTo = bytes[at - 1] === COMMA ? at - 1 : at
    this.#isUnusual = kinds === NUMERIC ? dots !== 3 : kinds >= OTHER
    while (at < to && bytes[at] !== OPEN) at += 1
    return at + 1
  }

  /** @param from the place behind the bracket after the time */
  #readRequest(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const request = from + 2
    if (bytes[from] !== SPACE || bytes[from + 1] !== QUOTE || request >= to) return 'no request'
    const requestEnd = closing(bytes, request, to)
    if (requestEnd < 0) return 'cut off'
    if (!readRequestLine(this, bytes, request, requestEnd)) return 'not an HTTP request'
    const status = requestEnd + 2
    if (bytes[requestEnd + 1] !== SPACE || !isStatus(bytes, status, to)) return 'no status'
    this.agentFrom = 0
    this.agentTo = 0
    this.#refererFrom = 0
    this.#refererTo = 0
    this.duration = 0
    if (this.format === 'combined') this.#readRest(bytes, status + 3, to)
    return undefined
  }

  /** Reads referer and user agent. Apache clips long lines, so either may be missing or cut off. */
  #readRest(bytes: Uint8Array, from: number, to: number): void {
    const referer = opening(bytes, from, to)
    if (referer < 0) return
    const refererEnd = closing(bytes, referer, to)
    this.#refererFrom = referer
    this.#refererTo = refererEnd < 0 ? to : refererEnd
    const agent = opening(bytes, this.#refererTo + 1, to)
    if (agent < 0) return
    const agentEnd = closing(bytes, agent, to)
    this.agentFrom = agent
    this.agentTo = agentEnd < 0 ? to : agentEnd
    if (this.timed) this.duration = durationAfter(bytes, this.agentTo + 1, to) ?? 0
    if (this.#forwarded === 'client') this.#takeForwardedAddress()
  }

  /** Makes the first forwarded address that of the client. A request that came without one keeps its own. */
  #takeForwardedAddress(): void {
    const list = this.forwardedFor()
    if (list === undefined) return
    const { buffer, byteOffset } = this.bytes
    const line = Buffer.from(buffer, byteOffset, this.#to)
    this.addressFrom = line.indexOf(`"${list}"`, this.agentTo + 1, 'latin1') + 1
    this.addressTo = this.addressFrom + list.split(',', 1)[0]!.trimEnd().length
  }

  /** The first quoted field after the user agent that begins with an address. */
  forwardedFor(): string | undefined {
    if (this.agentTo === 0) return undefined
    const tail = slice(this.bytes, this.agentTo + 1, this.#to) ?? ''
    const fields = [...tail.matchAll(QUOTED)].map(([, text]) => text!)
    return fields.find(text => isIP(text.split(',', 1)[0]!.trimEnd()) !== 0)
  }

  host(): undefined {
    return undefined
  }

  header(name: string): string | undefined {
    if (name === 'user-agent') return slice(this.bytes, this.agentFrom, this.agentTo)
    if (name === FORWARDED && this.#forwarded !== 'absent') return this.forwardedFor()
    return name === 'referer' ? slice(this.bytes, this.#refererFrom, this.#refererTo) : undefined
  }

  has(name: string): boolean {
    if (name === FORWARDED) return this.#forwarded !== 'absent'
    return this.format === 'combined' && (name === 'user-agent' || name === 'referer')
  }

  override takes(use: FieldUse): boolean {
    return use === 'ip' && this.#forwarded === 'client'
  }
}

/** The request time at the end of a line, in ms; undefined: there is none. */
export function durationAfter(bytes: Uint8Array, from: number, to: number): number | undefined {
  if (from >= to) return undefined
  const seconds = TAIL.exec(Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1'))?.[1]
  return seconds === undefined ? undefined : Number(seconds) * 1_000
}

/** Whether the text is an address in any form. nginx writes `unix:` for a socket. */
function isClient(text: string | undefined): boolean {
  return text !== undefined && (text === 'unix:' || isIP(text) !== 0 || readAddress(text) !== undefined)
}

function slice(bytes: Uint8Array, from: number, to: number): string | undefined {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
  return text === '' || text === '-' ? undefined : text
}

/** The place after the next quote; -1: there is none. */
function opening(bytes: Uint8Array, from: number, to: number): number {
  for (let at = from; at < to; at += 1) if (bytes[at] === QUOTE) return at + 1
  return -1
}

/** The place of the closing quote; -1: there is none. A quote inside is `\"` (Apache) or `\x22` (nginx). */
function closing(bytes: Uint8Array, from: number, to: number): number {
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at]
    if (byte === QUOTE) return at
    if (byte === BACKSLASH) at += 1
  }
  return -1
}

function isStatus(bytes: Uint8Array, from: number, to: number): boolean {
  return from + 3 <= to && isDigit(bytes[from]!) && isDigit(bytes[from + 2]!)
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57
}
