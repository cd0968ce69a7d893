import { ownValue } from '../core/structures/own-value.js'
/** What zod passes to an error function. */
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

/** Masks passwords in the query of a URL. */
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

/** The known word that `word` is most likely a misspelling of, if any. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const tolerance = Math.max(1, Math.floor(word.length * 0.4))
  const ranked = known
    .map(candidate => ({ candidate, apart: slips(word.toLowerCase(), candidate.toLowerCase()) }))
    .sort((a, b) => a.apart - b.apart)
  return ranked[0] && ranked[0].apart <= tolerance ? ranked[0].candidate : undefined
}

/** The number of edits between two words. Letters in the wrong order count as one edit. */
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

/** Where keys belong that are often written elsewhere. */
const PLACES: Readonly<Record<string, string>> = { maxInFlight: '"upstream" or a bucket' }

/** The message for a key that the object does not have. */
export function unknownKey(key: string, known: readonly string[]): string {
  const place = ownValue(PLACES, key)
  if (place !== undefined) return `unknown key here; it belongs in ${place}`
  return `unknown key; ${hint(key, known, 'known keys')}`
}

/** Makes an error function for zod that says what the value is not, and what to write instead. */
export function wants(noun: string, remedy: string): (refused: RefusedValue) => string {
  return wantsShown(quote, noun, remedy)
}

/** Like `wants`, for a place that holds secrets: keys of tiers, values of headers. */
export function wantsSecret(noun: string, remedy: string): (refused: RefusedValue) => string {
  return wantsShown(quoteSecret, noun, remedy)
}

function wantsShown(show: (value: unknown) => string, noun: string, remedy: string) {
  return ({ input }: RefusedValue) =>
    input === undefined ? `missing; ${remedy}` : `${show(input)} is not ${noun}; ${remedy}`
}
