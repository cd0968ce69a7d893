/**
 * Structured fields (RFC 9651). As the RFC demands, one fault makes the whole field void. A field that is absent, void or longer than
 * any of its kind reads as an empty list or dictionary.
 */
import { type BareItem, type Dictionary, type List, parseDictionary, parseList, Token } from 'structured-headers'
import { orElse } from '../core/structures/or-else.js'

/** A bare item as rate limit fields use them. Undefined: it is absent, or a list. */
export type Bare = BareItem | undefined
/** No answer has so many limits. */
const LONGEST_LIST = 8_192
/** A client sends it, and reading takes some 25 ns for each character. */
const LONGEST_PRIORITY = 256

export function listOf(field: string | undefined): List {
  return parse(parseList, field, LONGEST_LIST) ?? []
}

/** @param longest the length from which on it is not read */
export function dictionaryOf(field: string | undefined, longest = LONGEST_LIST): Dictionary {
  return parse(parseDictionary, field, longest) ?? new Map()
}

function parse<T>(read: (field: string) => T, field: string | undefined, longest: number): T | undefined {
  if (field === undefined || field.length > longest) return undefined
  return orElse(() => read(/[ \t];/.test(field) ? field.replace(STRINGS_AND_SPACE, '$1') : field), undefined)
}

/** Space before a semicolon, which the RFC forbids and some write, and strings, in which it stays. */
const STRINGS_AND_SPACE = /("(?:[^"\\]|\\.)*")|(?<![ \t])[ \t]+(?=;)/g

export function textOf(value: unknown): string | undefined {
  return value instanceof Token ? value.toString() : typeof value === 'string' ? value : undefined
}

/** The urgency that `Priority` asks for (RFC 9218): an integer from 0 to 7. Undefined: none, and what is none counts as absent. */
export function urgencyOf(field: string): number | undefined {
  const urgency = dictionaryOf(field, LONGEST_PRIORITY).get('u')?.[0]
  return typeof urgency === 'number' && Number.isInteger(urgency) && urgency >= 0 && urgency <= 7 ? urgency : undefined
}
