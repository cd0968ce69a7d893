/**
 * Patterns for paths: text in which `*` stands for any text, or `~ ` and a regular expression that may match any part of a
 * path, or both: `/admin/* ~ \.css$`. All take time that is linear in the path: RE2's automata never go back, while those of
 * JavaScript may take exponential time.
 */
import { RE2JS, RE2JSSyntaxException } from 're2js'
import { matchingPath, pathWithoutParameters } from './matching-path.js'
import { createWildcard } from './wildcard.js'

/** Differences between paths that a pattern does not see: upper and lower case, a slash at the end, `;name=value`. */
export type Normalisation = 'case' | 'slash' | 'params'

export interface RequestPath {
  /** As `matchingPath` makes it. */
  readonly path: string
  /** As it was sent, with its query. */
  readonly target: string
}

export type PathMatcher = (request: RequestPath) => boolean

export function partsOf(pattern: string): string[] {
  return pattern.split(/ +(?=~ )/)
}

/** The expression of a part that is one, e.g. `^/v[12]/` of `~ ^/v[12]/`. */
export function expressionOf(part: string): string | undefined {
  return part.startsWith('~') ? part.slice(1).trim() : undefined
}

/** Why a text is no regular expression; undefined: it is one. */
export function expressionFault(expression: string): string | undefined {
  try {
    RE2JS.compile(expression)
    return undefined
  } catch (error) {
    if (!(error instanceof RE2JSSyntaxException)) throw error
    return error.message.replace(/^error parsing regexp: /, '')
  }
}

/** A pattern without expression in the spelling of paths, so that `/%61/../b*` is `/b*`. */
export function spelledPattern(pattern: string): string {
  return pattern.startsWith('*') ? matchingPath(`/${pattern}`).slice(1) : matchingPath(pattern)
}

export function createPathMatcher(pattern: string, normalise: readonly Normalisation[] = []): PathMatcher {
  const ignoresCase = normalise.includes('case')
  const tests = partsOf(pattern).map(part => createTest(part, ignoresCase ? 'folded' : 'exact'))
  const test = tests.length === 1 ? tests[0]! : (path: string) => tests.every(each => each(path))
  const read: (request: RequestPath) => string = normalise.includes('params')
    ? ({ target }) => pathWithoutParameters(target)
    : ({ path }) => path
  const spelled: (request: RequestPath) => string = ignoresCase ? request => read(request).toLowerCase() : read
  if (!normalise.includes('slash')) return request => test(spelled(request))
  return request => {
    const path = spelled(request)
    return test(path) || (path !== '/' && test(withOtherEnd(path)))
  }
}

/** A path without the slash at its end, or with one if it has none. */
export function withOtherEnd(path: string): string {
  return path.endsWith('/') ? path.slice(0, -1) : `${path}/`
}

/** @param letters `folded`: the case of letters does not count, and paths are in lower case */
function createTest(pattern: string, letters: 'exact' | 'folded'): (path: string) => boolean {
  const expression = expressionOf(pattern)
  if (expression !== undefined) return createExpression(expression, letters)
  const spelled = spelledPattern(pattern)
  return createWildcard(letters === 'folded' ? spelled.toLowerCase() : spelled)
}

/** Reads a valid expression. It may match any part of a text. @param letters `folded`: the case of letters does not count */
export function createExpression(expression: string, letters: 'exact' | 'folded'): (text: string) => boolean {
  const compiled = RE2JS.compile(expression, letters === 'folded' ? RE2JS.CASE_INSENSITIVE : 0)
  return text => compiled.test(text)
}
