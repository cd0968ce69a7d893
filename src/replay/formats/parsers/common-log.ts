/**
 * Lines of the common and combined log formats of Apache and nginx, also with the name of the virtual host before them.
 *
 * The client is the first address before the time, whatever name is before it; a host name where there is no address.
 */
import { isIP } from 'node:net'
import { readAddress } from '../../../proxy/http/client-address.js'
import type { FieldUse } from '../format-names.js'
import { type BadLine, LineParser, readRequestLine } from '../line-parser.js'
import { TimestampReader } from '../timestamp.js'

const SPACE = 32
const QUOTE = 34
const COMMA = 44
const MINUS = 45
const DOT = 46
const COLON = 58
const OPEN = 91
const BACKSLASH = 92
const CLOSE = 93
/** Kinds of characters in a field: an IPv4 address is numeric, a host name has letters, too. */
const NUMERIC = 1
const LETTER = 2
const OTHER = 4
const KINDS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte)
  if (/[\d.]/.test(character)) return NUMERIC
  // Stars replace the digits of anonymised addresses.
  return /[A-Za-z_*-]/.test(character) ? LETTER : OTHER
})

/** The longest time, in characters. */
const LONGEST_TIME = 40
/** The name of a virtual host, with the port of the server. */
const VIRTUAL_HOST = /^(?!\d+(?::|$))([\w.*~-]+|\[[\da-f:.]+\])(?::\d{1,5})?$/i
const PORT = /^(?:[^:]+|\[.*\]):\d+$/
/** A field after the user agent. nginx's packaged format has `"$http_x_forwarded_for"` there. */
const FIELD = /"((?:[^"\\]|\\.)*)(?:"|\\?$)|[^\s"]+(?:"(?:[^"\\]|\\.)*(?:"|\\?$))?/g
/** Seconds as nginx writes `$request_time`: three digits after the point, also in quotes or with its name. */
const SECONDS = /^(?:(?:rt|req(?:uest)?_?time)[=:])?"?(\d{1,7}\.\d{3})"?$/i
const FORWARDED = 'x-forwarded-for'
/** What to do with a field after the user agent that has the addresses of `X-Forwarded-For`. `client`: its first one is the client. */
type ForwardedField = 'absent' | 'header' | 'client'

interface CommonLogOptions {
  readonly timed?: boolean
  readonly forwarded?: ForwardedField
}

export class CommonLogParser extends LineParser {
  readonly format: 'common' | 'combined' | 'vhost'
  readonly timed: boolean
  readonly #timestamp = new TimestampReader()
  readonly #forwarded: ForwardedField
  #to = 0
  #host: string | undefined
  #refererFrom = 0
  #refererTo = 0
  /** How many lines had another address beside the client's. */
  #ambiguous = 0

  constructor(format: CommonLogParser['format'], { timed = false, forwarded = 'absent' }: CommonLogOptions = {}) {
    super()
    this.format = format
    this.timed = timed
    this.#forwarded = forwarded
  }

  override get notes(): readonly string[] {
    if (this.#ambiguous === 0) return super.notes
    const twice = `${this.#ambiguous} lines have two addresses before the time, and the first counts as the client; remove it where it is not`
    return [...super.notes, twice]
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    this.bytes = bytes
    this.#to = to
    const end = placeOf(SPACE, bytes, from, to)
    if (end === from || end === to) return 'no address'
    let reason: BadLine = 'no time'
    // A user name may have brackets, too.
    for (let open = placeOf(OPEN, bytes, end, to); open < to; open = placeOf(OPEN, bytes, open + 1, to)) {
      const close = placeOf(CLOSE, bytes, open + 1, Math.min(to, open + LONGEST_TIME + 2))
      if (bytes[close] !== CLOSE || !this.#timestamp.read(bytes, open + 1, close)) continue
      reason = 'no request'
      if (bytes[close + 1] !== SPACE || bytes[close + 2] !== QUOTE || close + 3 >= to) continue
      if (!this.#readClient(from, open)) return 'no address'
      this.second = this.#timestamp.second
      this.fraction = this.#timestamp.fraction
      return this.#readRequest(bytes, close + 3, to)
    }
    return reason
  }

  /** Finds the client, and the virtual host, in the fields before the time. False: there is no client. */
  #readClient(from: number, until: number): boolean {
    const { bytes } = this
    this.#host = undefined
    const end = fieldEnd(bytes, from, until)
    const first = kindOf(bytes, from, end)
    // The first of several addresses is the client.
    const other = bytes[end] === COMMA ? until : findOther(bytes, end + 1, until, first)
    if (other === until) {
      // A name, and `-` for the client.
      const isHost = first === 'name' && (this.format === 'vhost' || isWithoutClient(bytes, end + 1, until))
      return !isHost && this.#take(from, end, first)
    }
    const otherEnd = fieldEnd(bytes, other, until)
    const [text = '-', otherText = ''] = [slice(bytes, from, end), slice(bytes, other, otherEnd)]
    if (first === 'address' && (!PORT.test(text) || PORT.test(otherText))) {
      if (readAddress(text) !== readAddress(otherText)) this.#ambiguous += 1
      return this.#take(from, end, first)
    }
    const [, host] = VIRTUAL_HOST.exec(text) ?? []
    this.#host = host === '-' ? undefined : host
    return host !== undefined && this.#take(other, otherEnd, kindOf(bytes, other, otherEnd))
  }

  #take(from: number, to: number, kind: FieldKind): boolean {
    this.addressFrom = from
    this.addressTo = to
    if (kind === undefined) return false
    this.countClient(kind === 'name' ? slice(this.bytes, from, to) : undefined)
    return true
  }

  /** @param request the place behind the quote before the request */
  #readRequest(bytes: Uint8Array, request: number, to: number): BadLine | undefined {
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
    if (this.format !== 'common') this.#readRest(bytes, status + 1, to)
    return undefined
  }

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
    if (this.timed) this.duration = this.requestTime() ?? 0
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

  forwardedFor(): string | undefined {
    for (const [, quoted] of this.#fieldsAfter()) {
      if (quoted !== undefined && isIP(quoted.split(',', 1)[0]!.trimEnd()) !== 0) return quoted
    }
    return undefined
  }

  /** The request time after the user agent, in ms; undefined: there is none. */
  requestTime(): number | undefined {
    for (const [field] of this.#fieldsAfter()) {
      const [, seconds] = SECONDS.exec(field) ?? []
      if (seconds !== undefined) return Number(seconds) * 1_000
    }
    return undefined
  }

  #fieldsAfter(): Iterable<RegExpExecArray> {
    return this.agentTo === 0 ? [] : (slice(this.bytes, this.agentTo + 1, this.#to) ?? '').matchAll(FIELD)
  }

  host(): string | undefined {
    return this.#host
  }

  header(name: string): string | undefined {
    if (name === 'user-agent') return slice(this.bytes, this.agentFrom, this.agentTo)
    if (name === FORWARDED && this.#forwarded !== 'absent') return this.forwardedFor()
    return name === 'referer' ? slice(this.bytes, this.#refererFrom, this.#refererTo) : undefined
  }

  has(name: string): boolean {
    if (name === FORWARDED) return this.#forwarded !== 'absent'
    if (name === 'host') return this.format === 'vhost'
    return this.format !== 'common' && (name === 'user-agent' || name === 'referer')
  }

  override takes(use: FieldUse): boolean {
    return use === 'ip' && this.#forwarded === 'client'
  }
}

type FieldKind = 'address' | 'name' | undefined

function kindOf(bytes: Uint8Array, from: number, to: number): FieldKind {
  let kinds = 0
  let [dots, colons] = [0, 0]
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at]!
    kinds |= KINDS[byte]!
    if (byte === DOT) dots += 1
    if (byte === COLON) colons += 1
  }
  if (kinds === NUMERIC) return dots === 3 ? 'address' : undefined
  if (kinds < OTHER) return to === from || isDash(bytes, from, to) ? undefined : 'name'
  return colons > 0 && isClient(slice(bytes, from, to)) ? 'address' : undefined
}

/** The first address in the fields after the first one, or `to`. Two names are those of a virtual host and a client. */
function findOther(bytes: Uint8Array, from: number, to: number, first: FieldKind): number {
  for (let at = from; at < to; at = placeOf(SPACE, bytes, at, to) + 1) {
    if (kindOf(bytes, at, fieldEnd(bytes, at, to)) === 'address') return at
  }
  const end = fieldEnd(bytes, from, to)
  const isClient = first !== 'address' && kindOf(bytes, from, end) === 'name'
  // The second field can also be the name of a user on the client's machine (RFC 1413), which has no dots.
  return isClient && (first === undefined || placeOf(DOT, bytes, from, end) < end) ? from : to
}

/** Whether there are three fields, and the first two are `-`. */
function isWithoutClient(bytes: Uint8Array, from: number, until: number): boolean {
  return (
    isDash(bytes, from, from + 1) && bytes[from + 1] === SPACE && isDash(bytes, from + 2, from + 3) && until > from + 4
  )
}

function isDash(bytes: Uint8Array, from: number, to: number): boolean {
  return to === from + 1 && bytes[from] === MINUS
}

/** Whether the text is an address in any form. nginx writes `unix:` for a socket. */
function isClient(text: string | undefined): boolean {
  return text !== undefined && (text === 'unix:' || isIP(text) !== 0 || readAddress(text) !== undefined)
}

/** The place of the space or comma after a field, or `to`. */
function fieldEnd(bytes: Uint8Array, from: number, to: number): number {
  let at = from
  while (at < to && bytes[at] !== SPACE && bytes[at] !== COMMA) at += 1
  return at
}

function placeOf(wanted: number, bytes: Uint8Array, from: number, to: number): number {
  let at = from
  while (at < to && bytes[at] !== wanted) at += 1
  return at
}

function slice(bytes: Uint8Array, from: number, to: number): string | undefined {
  const text = Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
  return text === '' || text === '-' ? undefined : text
}

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

/** `-`: the client left without an answer. */
function isStatus(bytes: Uint8Array, from: number, to: number): boolean {
  const end = placeOf(SPACE, bytes, from, Math.min(to, from + 4))
  return isDash(bytes, from, end) || (end === from + 3 && isDigit(bytes[from]!) && isDigit(bytes[from + 2]!))
}

function isDigit(byte: number): boolean {
  return byte >= 48 && byte <= 57
}
