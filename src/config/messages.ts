import { ownValue } from '../core/structures/own-value.js'

export interface RefusedValue {
  readonly input?: unknown
}

const LONGEST_QUOTE = 80

/** A value as shown in a message: strings are quoted and clipped, URL credentials masked, lists and objects only named. */
export function quote(value: unknown): string {
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object' && value !== null) return 'an object'
  if (typeof value !== 'string') return String(value)
  const shown = withoutPasswords(value.replace(/:\/\/.*@/su, '://***@'))
  return JSON.stringify(shown.length > LONGEST_QUOTE ? `${shown.slice(0, LONGEST_QUOTE)}...` : shown)
}

/** What stands in a place for secrets, as shown in a message: the kind of a value and never its text. */
function quoteSecret(value: unknown): string {
  if (typeof value === 'string' && value !== '') return 'this text'
  return typeof value === 'number' ? 'a number' : quote(value)
}

/** A text of someone else as a part of a line: what would end the line or control a terminal is escaped. */
export function escapeControls(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, character =>
    character.replace(/[\s\S]/g, unit => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`),
  )
}

/** A file name as shown in a message: never clipped, because its end tells most. */
export function quoteFile(name: string): string {
  return JSON.stringify(name)
}

/** A valid URL of a store with `***` in place of its password. */
export function maskUrl(url: string): string {
  return withoutPasswords(url.replace(/^([^:/?#]+:\/\/[^:/?#]*):[^/?#]*@/, '$1:***@'))
}

function withoutPasswords(text: string): string {
  return text.replace(/([?&][^=&#\s]*pass[^=&#\s]*=)[^&#"\s]*/gi, '$1***')
}

/** Like `quote`, for a value meant as a URL: masks everything up to the last `@`, with or without a scheme. */
export function quoteUrl(value: unknown): string {
  return quote(typeof value === 'string' ? value.replace(/^([a-z][a-z0-9+.-]*:\/\/)?.*@/isu, '$1***@') : value)
}

/** `"a", "b" or "c"` */
export function either(words: readonly string[]): string {
  const quoted = words.map(word => JSON.stringify(word))
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`
}

/** `1 line`, `2 lines` */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}

/** The known word that `word` is most likely a misspelling of, if any. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const tolerance = Math.max(1, Math.floor(word.length * 0.4))
  const ranked = known
    .map(candidate => ({ candidate, apart: slips(word.toLowerCase(), candidate.toLowerCase()) }))
    .sort((a, b) => a.apart - b.apart)
  return ranked[0] && ranked[0].apart <= tolerance ? ranked[0].candidate : undefined
}

function slips(a: string, b: string): number {
  const letters = (word: string) => [...word].sort().join('')
  return a !== b && letters(a) === letters(b) ? 1 : distance(a, b)
}

/** The least number of letters to insert, remove or replace: by rows of the table of all beginnings (Wagner and Fischer, 1974). */
function distance(a: string, b: string): number {
  let above = Array.from({ length: b.length + 1 }, (_, at) => at)
  for (let row = 1; row <= a.length; row += 1) {
    const line = [row]
    for (let at = 1; at <= b.length; at += 1) {
      const replaced = above[at - 1]! + (a[row - 1] === b[at - 1] ? 0 : 1)
      line.push(Math.min(replaced, above[at]! + 1, line[at - 1]! + 1))
    }
    above = line
  }
  return above[b.length]!
}

/** `did you mean "rate"?`, or the list of known words. */
export function hint(word: string, known: readonly string[], title: string): string {
  const near = nearest(word, known)
  return near === undefined ? `${title}: ${known.join(', ')}` : `did you mean ${JSON.stringify(near)}?`
}

/** Keys that are often written elsewhere, or that there were. */
const KNOWN_MISTAKES: Readonly<Record<string, string>> = {
  maxInFlight: 'unknown key here; it belongs in "upstream" or a bucket',
  grpc: 'unknown key; gates are asked over HTTP alone: remove it, and see docs/gate.md#envoy for Envoy',
}

export function unknownKey(key: string, known: readonly string[]): string {
  return ownValue(KNOWN_MISTAKES, key) ?? `unknown key; ${hint(key, known, 'known keys')}`
}

/** Makes an error function for zod that says what the value is not, and what to write instead. */
export const wants = wantsShown(quote)

/** Like `wants`, for a place that holds secrets: keys of tiers, values of headers. */
export const wantsSecret = wantsShown(quoteSecret)

function wantsShown(show: (value: unknown) => string) {
  return (noun: string, remedy: string) =>
    ({ input }: RefusedValue): string =>
      input === undefined ? `missing; ${remedy}` : `${show(input)} is not ${noun}; ${remedy}`
}
