/** Parses the field lines of an HTTP/1.1 message (RFC 9112 5) strictly. */

import type { Fields } from '../../http/quota/field-values.js'

/** A message that breaks the rules of HTTP/1.1. Its connection cannot be used any further. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError'
  /** The status that a client's request is refused with. */
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

/** @returns the lines of fields as a message has them, each with its CRLF */
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
