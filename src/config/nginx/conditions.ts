/** Conditions on requests in the form of `match`, and both of two of them. */
import { ownValue } from '../../core/structures/own-value.js'
import { expressionOf, partsOf } from '../../http/matching/path-pattern.js'
import { covers } from '../checks/match-coverage.js'
import type { MatchSettings } from '../settings.js'

/** Something in a configuration of nginx that shaper has no words for. */
export class Inexpressible extends Error {}

type Joined = MatchSettings | undefined

/** The requests that meet both. Undefined: there are none. @throws Inexpressible if one `match` cannot say it */
export function both(a: MatchSettings, b: MatchSettings): MatchSettings | undefined {
  const fields: Joined[] = [
    bothLists('ip', a, b),
    bothLists('method', a, b),
    bothTexts('path', a, b),
    bothTexts('host', a, b),
    bothHeaders(a.header, b.header),
  ]
  return fields.some(each => each === undefined) ? undefined : Object.assign({}, ...fields)
}

/** Leaves out what no request reaches, because an earlier one takes it. */
export function reachable<T>(list: readonly T[], matchOf: (each: T) => MatchSettings): T[] {
  const kept: T[] = []
  for (const each of list) if (!kept.some(other => covers(matchOf(other), matchOf(each)))) kept.push(each)
  return kept
}

function bothLists(field: 'ip' | 'method', a: MatchSettings, b: MatchSettings): Joined {
  const { [field]: first } = a
  const { [field]: second = first } = b
  if (second === undefined) return {}
  if (first === undefined || first === second) return { [field]: second }
  const each = [
    ...first.filter(one => covers({ [field]: second }, { [field]: [one] })),
    ...second.filter(one => covers({ [field]: first }, { [field]: [one] })),
  ]
  return each.length === 0 ? undefined : { [field]: [...new Set(each)] }
}

function bothTexts(field: 'path' | 'host', a: MatchSettings, b: MatchSettings): Joined {
  if (a[field] === undefined && b[field] === undefined) return {}
  if (a[field] === undefined) return ofField(b, field)
  if (b[field] === undefined) return ofField(a, field)
  return (field === 'path' ? bothPaths : narrower)(ofField(a, field), ofField(b, field))
}

/** A path may have to match several expressions. @throws Inexpressible */
function bothPaths(a: MatchSettings, b: MatchSettings): Joined {
  const normalise = a.normalise ?? b.normalise
  const split = (match: MatchSettings): MatchSettings[] =>
    partsOf(match.path!).map(path => ({ path, ...(match.normalise !== undefined && { normalise: match.normalise }) }))
  let kept = split(a)
  for (const own of split(b)) {
    if (kept.some(each => covers(own, each))) continue
    kept = kept.filter(each => !covers(each, own))
    if (kept.some(each => [each, own].some(isOne) || [each, own].every(isPrefix))) return undefined
    kept.push(own)
  }
  const isExpression = ({ path = '' }: MatchSettings): boolean => path.startsWith('~')
  const texts = kept.filter(each => !isExpression(each))
  // What does not count in one path would not count in the other.
  if (texts.length > 1 || new Set(kept.map(each => JSON.stringify(each.normalise))).size > 1)
    throw new Inexpressible(`both ${textOf(a)} and ${textOf(b)}`)
  const path = [...texts, ...kept.filter(isExpression)].map(each => each.path).join(' ')
  return { path, ...(normalise !== undefined && { normalise }) }
}

function ofField(match: MatchSettings, field: 'path' | 'host'): MatchSettings {
  const { normalise } = match
  return { [field]: match[field], ...(field === 'path' && normalise !== undefined && { normalise }) }
}

function bothHeaders(a: MatchSettings['header'] = {}, b: MatchSettings['header'] = {}): Joined {
  const header: Record<string, string> = { ...a }
  for (const [name, value] of Object.entries(b)) {
    const own = { header: { [name]: value } }
    const other = ownValue(a, name)
    const found = other === undefined ? own : narrower({ header: { [name]: other } }, own)
    if (found === undefined) return undefined
    Object.assign(header, found.header)
  }
  return Object.keys(header).length === 0 ? {} : { header }
}

/** Of two conditions on one field the one that the other covers. Undefined: no request meets both. */
function narrower(a: MatchSettings, b: MatchSettings): MatchSettings | undefined {
  if (covers(a, b)) return b
  if (covers(b, a)) return a
  if ([a, b].some(isOne) || [a, b].every(isPrefix)) return undefined
  throw new Inexpressible(`both ${textOf(a)} and ${textOf(b)}`)
}

function textOf(match: MatchSettings): string {
  return JSON.stringify(patternOf(match))
}

function patternOf({ path, host, header = {} }: MatchSettings): string | undefined {
  return path ?? host ?? Object.values(header)[0]
}

/** Whether a condition holds for one value only. Ranges of addresses contain one another, or have nothing in common. */
function isOne(match: MatchSettings): boolean {
  const pattern = patternOf(match)
  return pattern === undefined || (expressionOf(pattern) === undefined && !pattern.includes('*'))
}

function isPrefix(match: MatchSettings): boolean {
  const pattern = patternOf(match)!
  return expressionOf(pattern) === undefined && pattern.indexOf('*') === pattern.length - 1
}
