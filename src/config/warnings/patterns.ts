/** Warns of patterns that never match. Header values may be credentials, so a warning names their place only. */
import { matchingPath } from '../../http/matching/matching-path.js'
import { expressionOf, partsOf } from '../../http/matching/path-pattern.js'
import { misplacedAnchor, requiredText } from '../checks/required-text.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import type { MatchSettings, Settings } from '../settings.js'
import type { Warning } from './key-scope.js'

export function patternWarnings({ routes }: Settings): Warning[] {
  return routes.flatMap(({ match }, index) => {
    const path = ['routes', index, 'match']
    return [
      ...impossible(match)
        .slice(0, 1)
        .map(why => ({ path: [...path, 'path'], message: `never matches: ${why}` })),
      ...headerValueFaults(match.header, [...path, 'header']),
    ]
  })
}

/** Why no path can match an expression, as far as that is certain. */
function impossible({ path = '', normalise = [] }: MatchSettings): string[] {
  const expressions = partsOf(path).flatMap(part => expressionOf(part) ?? [])
  return expressions.flatMap(expression => impossibleExpression(expression, normalise))
}

function impossibleExpression(expression: string, normalise: readonly string[]): string[] {
  const { texts, isAtStart } = requiredText(expression)
  const [first = ''] = texts
  const anchor = misplacedAnchor(expression)
  return [
    ...(expression === '^$' ? ['no path is empty; write "^/$"'] : []),
    ...(anchor === '^' ? ['there is text before "^", which is the start of the path; move the "^" to the front'] : []),
    ...(anchor === '$' ? ['there is text behind "$", which is the end of the path; move the "$" to the end'] : []),
    ...(isAtStart && !first.startsWith('/')
      ? [`every path starts with "/", and the expression with ${quote(first)}; write "^/"`]
      : []),
    ...texts.flatMap(text => textFault(text, normalise)),
  ]
}

function textFault(text: string, normalise: readonly string[]): string[] {
  const [odd] = /[?#]|[^\x21-\x7e]/.exec(text) ?? []
  if (odd !== undefined) return [`no path has ${quote(odd)}; leave it out: the path ends before a "?" or a "#"`]
  if (text.includes('//')) return ['"//" is "/" in the paths that are compared; write "/"']
  if (/\/\.{1,2}\//.test(text)) return ['"/./" and "/../" are resolved in the paths that are compared; leave them out']
  if (normalise.includes('params') && text.includes(';'))
    return ['no path has a ";", as "params" leaves out all of them; leave it out']
  return (text.match(/%[0-9A-Fa-f]{2}/g) ?? []).flatMap(code => {
    const compared = matchingPath(`/${code}`).slice(1)
    const isSame = normalise.includes('case') ? compared === code.toUpperCase() : compared === code
    return isSame ? [] : [`${quote(code)} is ${quote(compared)} in the paths that are compared; write that`]
  })
}

/** @param path the place of the headers in the file */
export function headerValueFaults(
  headers: Readonly<Record<string, string>> | undefined,
  path: readonly PropertyKey[],
): Finding[] {
  return Object.entries(headers ?? {}).flatMap(([name, value]) =>
    headerValueFault(value).map(why => ({ path: [...path, name], message: `never matches: ${why}` })),
  )
}

/** Why no header can have a value. */
export function headerValueFault(value: string): string[] {
  if (value === '') return ['an empty header counts as none; write a value, or "*" in a route']
  if (value.trim() !== value) return ['header values have no space at their ends; remove it']
  // Their bytes are read as Latin-1.
  if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) return ['header values have no such character; write visible ASCII']
  return []
}
