/** Parses the field lines of an HTTP/1.1 message (RFC 9112 5) strictly. */

import type { Fields } from '../../http/quota/field-values.js'

/** A message that breaks the rules of HTTP/1.1. Its connection cannot be used any further. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError'
}

/** Controls other than tab (RFC 9110 5.5), and line ends other than CRLF. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it looks for.
const FORBIDDEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n/

/** A name. A line that continues the one before it (obs-fold) begins with a space and has none. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/

const SPACE = 32
const TAB = 9

/** @throws ProtocolError if the text has a control character, or a line that does not end with CRLF */
export function checkCharacters(text: string): void {
  if (FORBIDDEN.test(text)) throw new ProtocolError('a control character or a bare line end in the headers')
}

/**
 * @param text whole lines without forbidden characters, each with its CRLF, one byte for each character
 * @param from where the first line begins
 * @returns names and values in turn, as they came, values without surrounding space
 * @throws ProtocolError if a line is not a field
 */
export function parseFields(text: string, from: number): string[] {
  const fields: string[] = []
  for (let at = from; at < text.length; ) {
    const end = text.indexOf('\r\n', at)
    const colon = text.indexOf(':', at)
    const name = colon < 0 || colon > end ? '' : text.slice(at, colon)
    if (!TOKEN.test(name)) throw new ProtocolError('a header line without a valid name')
    fields.push(name, trimmed(text, colon + 1, end))
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
