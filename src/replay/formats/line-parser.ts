/** What every parser reads of a log line. Each format has its own parser. */

import { isObject } from '../../config/checks/partial-config.js'
import { readAddress } from '../../proxy/http/client-address.js'
import type { FieldUse, FormatName } from './format-names.js'
import type { Timestamp } from './timestamp.js'

export type BadLine =
  | 'no address'
  | 'no time'
  | 'no request'
  | 'not an HTTP request'
  | 'no status'
  | 'cut off'
  | 'not JSON'
  | 'too long'
  | 'unknown prefix'
  | 'no #Fields before it'
  | 'other columns'

/** A line that is not about a request, which is no error. */
export const SKIPPED = 'skipped'
/** How much of a name to show, in characters. */
const SHOWN = 60
export const DIRECTIVE = 'directive'

/**
 * Reads one line at a time into its own fields, as places in `bytes`. It makes no object for a line, because a log is read
 * at millions of lines per second. An empty place (from = to) means that the line does not have the value.
 */
export abstract class LineParser {
  abstract readonly format: FormatName
  /** The bytes that the places below refer to. */
  bytes: Uint8Array = new Uint8Array(0)
  /** The logged time: whole seconds since 1970, and the ms after them; -1: the log has whole seconds only. */
  second = 0
  fraction = -1
  /** How long before the logged time the request arrived, in ms. */
  duration = 0
  addressFrom = 0
  addressTo = 0
  methodFrom = 0
  methodTo = 0
  targetFrom = 0
  targetTo = 0
  agentFrom = 0
  agentTo = 0

  /** Whether syslog or the journal may have put a prefix before a line. */
  readonly prefixed: boolean = true
  /** Whether the logged time is that of the end, so that `duration` is needed. */
  abstract readonly timed: boolean

  /** How long the answer took, in ms. Undefined: the line does not tell. */
  get serviceTime(): number | undefined {
    return this.timed ? this.duration : undefined
  }

  abstract parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | typeof DIRECTIVE | undefined
  abstract host(): string | undefined
  /** @param name in lower case */
  abstract header(name: string): string | undefined
  /** Whether lines of this log can have the header; `host` stands for the authority. */
  abstract has(name: string): boolean
  /** How many lines had a client, how many of these a name instead of an address, and the first name. */
  #clients = 0
  #names = 0
  #name = ''

  /** @param name undefined: the client is an address */
  protected countClient(name?: string): void {
    this.#clients += 1
    if (name !== undefined && this.#names++ === 0) this.#name = name.slice(0, SHOWN).replace(/[^ -~]/g, '?')
  }

  /** What a reader has to know of the lines read so far. */
  get notes(): readonly string[] {
    if (2 * this.#names <= this.#clients) return []
    return [
      `most clients are names such as ${JSON.stringify(this.#name)}, not addresses; if they are names of the server, the log does not tell its clients`,
    ]
  }

  /** Whether `--field` can name where lines of this log have it. */
  takes(_use: FieldUse): boolean {
    return false
  }
}

const SPACE = 32
const STAR = 42
const MINUS = 45
const SLASH = 47
/** What a method may consist of (RFC 9110, section 5.6.2). Most have capitals only. */
const CAPITAL = 1
const TOKEN = 2
const KINDS = Uint8Array.from({ length: 256 }, (_, byte) => {
  const character = String.fromCharCode(byte)
  return /[A-Z]/.test(character) ? CAPITAL : /[\w!#$%&'*+.^`|~-]/.test(character) ? TOKEN : 0
})

/**
 * Reads `METHOD TARGET HTTP/x` into the fields of a parser. False for anything else, such as TLS on a plain port: a method
 * with other characters than capitals needs a path, so that `t3 12.1.2` is none.
 */
export function readRequestLine(parser: LineParser, bytes: Uint8Array, from: number, to: number): boolean {
  let at = from
  let kinds = 0
  for (let kind = KINDS[bytes[at]!]!; at < to && kind !== 0; kind = KINDS[bytes[at]!]!) {
    kinds |= kind
    at += 1
  }
  if (at === from || bytes[from] === MINUS || bytes[at] !== SPACE || at >= to) return false
  parser.methodFrom = from
  parser.methodTo = at
  at += 1
  parser.targetFrom = at
  if (kinds !== CAPITAL && bytes[at] !== SLASH && bytes[at] !== STAR) return false
  while (at < to && bytes[at] !== SPACE) at += 1
  parser.targetTo = at
  return at > parser.targetFrom
}

export interface RequestTexts {
  /** `GET / HTTP/1.1`; the version may be missing. */
  readonly request: string
  readonly address: string
  readonly agent?: string | undefined
}

class TextBuffer {
  bytes = Buffer.allocUnsafeSlow(1 << 12)
  end = 0

  put(text: string): void {
    const needed = this.end + 3 * text.length
    if (needed > this.bytes.length) {
      const more = Buffer.allocUnsafeSlow(2 * needed)
      more.set(this.bytes.subarray(0, this.end))
      this.bytes = more
    }
    this.end += this.bytes.write(text, this.end)
  }
}

export abstract class TextLineParser extends LineParser {
  readonly #texts = new TextBuffer()
  protected authority: string | undefined
  /** How long the answer took, in ms. Undefined: the line does not tell. */
  protected took: number | undefined

  override get serviceTime(): number | undefined {
    return this.took
  }

  host(): string | undefined {
    return this.authority
  }

  protected keep({ second, fraction }: Timestamp, { request, address, agent = '' }: RequestTexts): BadLine | undefined {
    this.second = second
    this.fraction = fraction
    this.countClient(readAddress(address) === undefined ? address : undefined)
    const texts = this.#texts
    texts.end = 0
    texts.put(request)
    this.addressFrom = texts.end
    texts.put(address)
    this.addressTo = texts.end
    texts.put(agent === '-' ? '' : agent)
    this.agentFrom = this.addressTo
    this.agentTo = texts.end
    this.bytes = texts.bytes
    return readRequestLine(this, texts.bytes, 0, this.addressFrom) ? undefined : 'not an HTTP request'
  }

  /** The user agent is the only header, unless a format says otherwise. */
  header(name: string): string | undefined {
    if (name !== 'user-agent' || this.agentFrom === this.agentTo) return undefined
    return Buffer.from(this.bytes.subarray(this.agentFrom, this.agentTo)).toString()
  }
}

export function lineText(bytes: Uint8Array, from: number, to: number): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString()
}

/** A part of a line; undefined where the log has `-` or nothing. */
export function unlessMissing(text: string | undefined): string | undefined {
  return text === '-' || text === '' ? undefined : text
}

/** The first of the addresses in `X-Forwarded-For`: the client. */
export function firstAddress(list: string): string | undefined {
  return unlessMissing(list.split(',', 1)[0]!.trim())
}

const ABSOLUTE = /^(\S+) [a-z]+:\/\/([^/?\s]*)(\S*)/

/** A request line with its target in origin form, and the authority that the target had. */
export function inOriginForm(request: string): { request: string; host: string | undefined } {
  const absolute = ABSOLUTE.exec(request)
  if (absolute === null) return { request, host: undefined }
  const [, method, authority, rest = ''] = absolute
  return { request: `${method} ${rest.startsWith('/') ? rest : `/${rest}`}`, host: unlessMissing(authority) }
}

export type JsonObject = Record<string, unknown>
/** A string, or a number that is missing. */
const REPAIRED = /"(?:[^"\\]|\\.)*(?:"|\\?$)|:\s*(?:-\s*)?(?=[,}])/g

export function readJsonObject(text: string): JsonObject | undefined {
  const object = parsed(text)
  if (object !== undefined) return object
  const changed = text.replace(REPAIRED, repaired)
  return changed === text ? undefined : parsed(changed)
}

function parsed(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

/** What nginx writes without `escape=json`: bytes as `\xC3`, and `-` or nothing for a number that it does not have. */
function repaired(text: string): string {
  if (text.startsWith(':')) return ':null'
  return text.replace(/(?:\\x[\dA-F]{2})+|\\./gi, escaped => {
    if (!escaped.startsWith('\\x')) return escaped
    return JSON.stringify(Buffer.from(escaped.replaceAll('\\x', ''), 'hex').toString()).slice(1, -1)
  })
}
