import { distance } from 'fastest-levenshtein'

/** What zod tells an error function about the value it refused. */
export interface RefusedValue {
  readonly input?: unknown
}

const LONGEST_QUOTE = 80

/** A value as a message may show it: strings quoted and clipped, URL credentials masked, containers only named. */
export function quote(value: unknown): string {
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object' && value !== null) return 'an object'
  if (typeof value !== 'string') return String(value)
  const shown = withoutPasswords(value.replace(/:\/\/.*@/su, '://***@'))
  return JSON.stringify(shown.length > LONGEST_QUOTE ? `${shown.slice(0, LONGEST_QUOTE)}...` : shown)
}

/** A valid URL of a store as it may be shown: with `***` for its password. */
export function maskUrl(url: string): string {
  return withoutPasswords(url.replace(/^([^:/?#]+:\/\/[^:/?#]*):[^/?#]*@/, '$1:***@'))
}

/** Masks what a URL's query says of passwords. */
export function withoutPasswords(text: string): string {
  return text.replace(/([?&][^=&#\s]*pass[^=&#\s]*=)[^&#"\s]*/gi, '$1***')
}

/** Like `quote` for a value that is meant as a URL: everything up to the last `@` is masked, scheme or not. */
export function quoteUrl(value: unknown): string {
  return quote(typeof value === 'string' ? value.replace(/^([a-z][a-z0-9+.-]*:\/\/)?.*@/isu, '$1***@') : value)
}

/** `"a", "b" or "c"` */
export function either(words: readonly string[]): string {
  const quoted = words.map(word => JSON.stringify(word))
  return quoted.length < 2 ? quoted.join('') : `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`
}

/** The known word that `word` is most likely a slip of, if one is near. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const tolerance = Math.max(1, Math.floor(word.length * 0.4))
  const ranked = known
    .map(candidate => ({ candidate, apart: slips(word.toLowerCase(), candidate.toLowerCase()) }))
    .sort((a, b) => a.apart - b.apart)
  return ranked[0] && ranked[0].apart <= tolerance ? ranked[0].candidate : undefined
}

/** Edits between two words; letters in the wrong order are one. */
function slips(a: string, b: string): number {
  const letters = (word: string) => [...word].sort().join('')
  return a !== b && letters(a) === letters(b) ? 1 : distance(a, b)
}

/** `did you mean "rate"?`, or the list of what is known. */
export function hint(word: string, known: readonly string[], title: string): string {
  const near = nearest(word, known)
  return near === undefined ? `${title}: ${known.join(', ')}` : `did you mean ${JSON.stringify(near)}?`
}

/** What is wrong with a key of an object that has only these. */
export function unknownKey(key: string, known: readonly string[]): string {
  return `unknown key; ${hint(key, known, 'known keys')}`
}

/** An error function for zod: what the value is not, and what to write instead. */
export function wants(noun: string, remedy: string): (refused: RefusedValue) => string {
  return ({ input }) => (input === undefined ? `missing; ${remedy}` : `${quote(input)} is not ${noun}; ${remedy}`)
}
