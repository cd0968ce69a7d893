/** Lines of the common log format and of the combined one, of Apache and nginx. */
import { isIP } from 'node:net'
import { readAddress } from '../../proxy/http/client-address.js'
import { type BadLine, LineParser, readRequestLine } from './line-parser.js'
import { TimestampReader } from './timestamp.js'

const SPACE = 32
const QUOTE = 34
const BACKSLASH = 92
const OPEN = 91
const CLOSE = 93

const DOT = 46
const COMMA = 44

/** What a client is written with: an IPv4 address is numeric, a name has other characters, too. */
const NUMERIC = 1
const NAME = 2
const OTHER = 4
const KINDS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte)
  if (/[\d.]/.test(character)) return NUMERIC
  // Stars are where an address was made anonymous.
  return /[A-Za-z_*-]/.test(character) ? NAME : OTHER
})

/** Seconds with a point, as nginx writes `$request_time`: the first number after the user agent. */
const TAIL = /^[^\d]*?(\d{1,7}\.\d{1,6})(?:[\s"]|$)/

export class CommonLogParser extends LineParser {
  readonly format: 'common' | 'combined'
  readonly timed: boolean
  readonly #timestamp = new TimestampReader()
  #refererFrom = 0
  #refererTo = 0

  /** @param timed whether a request time follows the user agent */
  constructor(format: 'common' | 'combined', timed = false) {
    super()
    this.format = format
    this.timed = timed
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    let at = from
    let kinds = 0
    let dots = 0
    while (at < to && bytes[at] !== SPACE) {
      const byte = bytes[at]!
      kinds |= KINDS[byte]!
      if (byte === DOT) dots += 1
      at += 1
    }
    if (at === from || at === to || (at === from + 1 && bytes[from] === 45)) return 'no address'
    this.bytes = bytes
    this.addressFrom = from
    // Of several addresses the first is the client.
    this.addressTo = bytes[at - 1] === COMMA ? at - 1 : at
    // Mostly an IPv4 address, or the name that it was resolved to.
    const isUsual = kinds === NUMERIC ? dots === 3 : kinds < OTHER
    while (at < to && bytes[at] !== OPEN) at += 1
    const opened = at + 1
    at = opened
    while (at < to && bytes[at] !== CLOSE) at += 1
    const timestamp = this.#timestamp
    if (at >= to || !timestamp.read(bytes, opened, at)) return 'no time'
    if (!isUsual && !isClient(slice(bytes, from, this.addressTo))) return 'no address'
    this.second = timestamp.second
    this.fraction = timestamp.fraction
    if (bytes[at + 1] !== SPACE || bytes[at + 2] !== QUOTE || at + 3 >= to) return 'no request'
    const request = at + 3
    const requestEnd = closing(bytes, request, to)
    if (requestEnd < 0) return 'cut off'
    if (!readRequestLine(this, bytes, request, requestEnd)) return 'not an HTTP request'
    at = requestEnd + 2
    if (bytes[requestEnd + 1] !== SPACE || at + 3 > to || !isDigit(bytes[at]!) || !isDigit(bytes[at + 2]!)) {
      return 'no status'
    }
    this.agentFrom = 0
    this.agentTo = 0
    this.#refererFrom = 0
    this.#refererTo = 0
    this.duration = 0
    if (this.format === 'combined') this.#readRest(bytes, at + 3, to)
    return undefined
  }

  /** Referer and user agent, as far as they are there: Apache clips what is long. */
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
  }

  host(): undefined {
    return undefined
  }

  header(name: string): string | undefined {
    if (name === 'user-agent') return slice(this.bytes, this.agentFrom, this.agentTo)
    return name === 'referer' ? slice(this.bytes, this.#refererFrom, this.#refererTo) : undefined
  }

  has(name: string): boolean {
    return this.format === 'combined' && (name === 'user-agent' || name === 'referer')
  }
}

/** The ms that the end of a line tells. */
export function durationAfter(bytes: Uint8Array, from: number, to: number): number | undefined {
  if (from >= to) return undefined
  const seconds = TAIL.exec(Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1'))?.[1]
  return seconds === undefined ? undefined : Number(seconds) * 1_000
}

/** Whether it is an address in any other form; nginx writes `unix:` for a socket. */
function isClient(text: string | undefined): boolean {
  return text !== undefined && (text === 'unix:' || isIP(text) !== 0 || readAddress(text) !== undefined)
}

function slice(bytes: Uint8Array, from: number, to: number): string | undefined {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
  return text === '' || text === '-' ? undefined : text
}

/** Behind the next quote; -1: there is none. */
function opening(bytes: Uint8Array, from: number, to: number): number {
  for (let at = from; at < to; at += 1) if (bytes[at] === QUOTE) return at + 1
  return -1
}

/** The quote that ends a text; -1: there is none. Apache writes `\"` for one in it, nginx `\x22`. */
function closing(bytes: Uint8Array, from: number, to: number): number {
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at]
    if (byte === QUOTE) return at
    if (byte === BACKSLASH) at += 1
  }
  return -1
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57
}
