/** Parses the field lines of an HTTP/1.1 message (RFC 9112 5) strictly. */
import type { Fields } from '../../http/quota/field-values.js'

/** A message that breaks the rules of HTTP/1.1. Its connection cannot be used any further. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError'
  readonly status: number

  constructor(message: string, status = 400) {
    super(message)
    this.status = status
  }
}

/** Lines without controls other than tab (RFC 9110 5.5). CR and LF end them together only. The last may be incomplete. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it excludes.
const LINES = /^(?:[^\0-\x08\x0a-\x1f\x7f]*\r\n)*[^\0-\x08\x0a-\x1f\x7f]*$/

/**
 * Whole lines, each with a name. A line that continues the one before it (obs-fold) begins with a space and has none. The
 * test begins at `lastIndex`. One expression for all lines costs a third of one for each.
 */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it excludes.
const FIELDS = /(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\0-\x08\x0a-\x1f\x7f]*\r\n)*$/y
const SPACE = 32
const TAB = 9

/** @throws ProtocolError if the text has a control character, or a line that does not end with CRLF */
export function checkCharacters(text: string): void {
  if (!LINES.test(text)) throw new ProtocolError('a control character or a bare line end in the headers')
}

/**
 * @param text whole lines, each with its CRLF, one byte for each character
 * @param from where the first line begins
 * @returns names and values in turn, as they came, values without surrounding space
 * @throws ProtocolError if a line is not a field
 */
export function parseFields(text: string, from: number): string[] {
  FIELDS.lastIndex = from
  if (!FIELDS.test(text)) {
    checkCharacters(text)
    throw new ProtocolError('a header line without a valid name')
  }
  const fields: string[] = []
  for (let at = from; at < text.length; ) {
    const end = text.indexOf('\r\n', at)
    const colon = text.indexOf(':', at)
    fields.push(text.slice(at, colon), trimmed(text, colon + 1, end))
    at = end + 2
  }
  return fields
}

function trimmed(text: string, from: number, to: number): string {
  let start = from
  let end = to
  while (start < end && isSpace(text.charCodeAt(start))) start += 1
  while (end > start && isSpace(text.charCodeAt(end - 1))) end -= 1
  return text.slice(start, end)
}

function isSpace(code: number): boolean {
  return code === SPACE || code === TAB
}

/** @returns the members of a comma-separated list, in lower case, without the white space of HTTP around them */
export function listed(value: string): string[] {
  // Not trim(), which takes bytes above 127 for white space. A separator with white space around it would cost work that
  // grows by the square of a run of spaces.
  return value
    .toLowerCase()
    .split(',')
    .map(member => trimmed(member, 0, member.length))
}

export function fieldLines(fields: readonly string[]): string {
  let lines = ''
  for (let at = 0; at < fields.length; at += 2) lines += `${fields[at]}: ${fields[at + 1]}\r\n`
  return lines
}

/** Whether a field's name is `lower`, in any case. */
export function isNamed(name: string, lower: string): boolean {
  return name.length === lower.length && name.toLowerCase() === lower
}

/** Reads fields by their lower-case names. Several lines of one name are joined (RFC 9110 5.3). */
export function joinedFields(fields: readonly string[]): Fields {
  return lower => {
    let joined: string | undefined
    for (let at = 0; at < fields.length; at += 2) {
      if (!isNamed(fields[at]!, lower)) continue
      joined = joined === undefined ? fields[at + 1]! : `${joined}, ${fields[at + 1]!}`
    }
    return joined
  }
}

/**
 * A few field names, to be found in any case. Length and first letter rule out almost every other name. Hashing a name
 * that was received a moment ago would cost several times as much.
 */
export class NameSet {
  readonly #byLength: (string[] | undefined)[] = []

  constructor(names: Iterable<string>) {
    for (const name of names) {
      const alike = this.#byLength[name.length] ?? []
      this.#byLength[name.length] = [...alike, name]
    }
  }

  find(name: string): string | undefined {
    const alike = this.#byLength[name.length]
    if (alike === undefined) return undefined
    for (const known of alike) if (isNamed(name, known)) return known
    return undefined
  }

  has(name: string): boolean {
    return this.find(name) !== undefined
  }
}

/**
 * Finds names that CGI, WSGI and their like take for another one: both `X-Key` and `X_Key` become `HTTP_X_KEY`. Only a name as
 * long as one of these is looked at, so all others cost nothing.
 */
export class LookAlikes {
  readonly #byLength: (string[] | undefined)[] = []
  readonly #own: ReadonlySet<string>

  constructor(names: Iterable<string>) {
    this.#own = new Set(names)
    for (const name of this.#own) {
      const hyphened = withHyphens(name)
      if (!hyphened.includes('-')) continue
      const alike = this.#byLength[name.length] ?? []
      this.#byLength[name.length] = [...alike, hyphened]
    }
  }

  /** Whether a name, with `_` read as `-`, is one of these, and is none of them as it is written. */
  has(name: string): boolean {
    const alike = this.#byLength[name.length]
    if (alike === undefined || !name.includes('_')) return false
    const lower = name.toLowerCase()
    return alike.includes(withHyphens(lower)) && !this.#own.has(lower)
  }
}

function withHyphens(name: string): string {
  return name.replaceAll('_', '-')
}

/** RFC 9110 7.6.1, and headers of older peers. `te` describes a framing that we make anew. */
export const HOP_BY_HOP = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
]

/**
 * Connection options never remove these. A message makes no sense without the first two; the others tell who the client
 * is. X-Forwarded-* headers and those that the route reads are kept too.
 */
const LASTING = new Set([
  ...['content-length', 'host', 'authorization', 'cookie', 'forwarded', 'via', 'x-real-ip', 'x-client-ip'],
  ...['x-cluster-client-ip', 'true-client-ip', 'cf-connecting-ip', 'fastly-client-ip'],
])

/** Names of which no look-alike is passed on: an upstream could take it for ours, or for that of the proxy before us. */
export const UNMISTAKABLE = [
  ...HOP_BY_HOP,
  ...LASTING,
  ...['for', 'proto', 'host', 'port', 'prefix', 'server', 'scheme', 'ssl', 'by'].map(end => `x-forwarded-${end}`),
]

const NAMES = new NameSet(HOP_BY_HOP)

export function isHopByHop(name: string): boolean {
  return NAMES.has(name)
}

/** Adds the headers that Connection options remove, except hop-by-hop ones and those that are never removed. */
export function withNamed(names: Set<string> | undefined, options: readonly string[]): Set<string> | undefined {
  let found = names
  for (const option of options) {
    const name = option.trim().toLowerCase()
    if (name === 'close' || isHopByHop(name) || LASTING.has(name) || name.startsWith('x-forwarded-')) continue
    found ??= new Set()
    found.add(name)
  }
  return found
}
