import { keptIn } from '../../core/structures/maps.js'
import { ownValue } from '../../core/structures/own-value.js'
import { networkKey, parseRange } from '../../http/matching/address-ranges.js'
import { matchingPath } from '../../http/matching/matching-path.js'
import {
  createPathMatcher,
  expressionOf,
  type PathMatcher,
  partsOf,
  spelledPattern,
  withOtherEnd,
} from '../../http/matching/path-pattern.js'
import { coversWildcard } from '../../http/matching/wildcard.js'
import type { MatchSettings } from '../settings.js'
import { requiredText } from './required-text.js'

/** Whether the match `wide` accepts every request that `narrow` accepts. Unsure is false. */
export function covers(wide: MatchSettings, narrow: MatchSettings): boolean {
  return (
    coversPath(wide, narrow) &&
    coversMethods(wide.method, narrow.method) &&
    coversHost(wide.host, narrow.host) &&
    coversAddresses(wide.ip, narrow.ip) &&
    Object.entries(wide.header ?? {}).every(([name, value]) => {
      const own = ownValue(narrow.header, name)
      return own !== undefined && coversWildcard(value, own)
    })
  )
}

type PathPart = Required<Pick<MatchSettings, 'path' | 'normalise'>>
/** By match: the same parts each time, as to read an expression takes longer than to use it. */
const parts = new WeakMap<MatchSettings, readonly PathPart[]>()

function partsOfMatch(match: MatchSettings): readonly PathPart[] {
  const { path = '*', normalise = [] } = match
  return keptIn(parts, match, () => partsOf(path).map(part => ({ path: part, normalise })))
}

function coversPath(wide: MatchSettings, narrow: MatchSettings): boolean {
  const { path = '*', normalise = [] } = wide
  const { normalise: ownNormalise = [] } = narrow
  if (path === '*' || path === '/*') return true
  // Parameters that only one of both leaves out may hide what tells their paths apart.
  if (normalise.includes('params') !== ownNormalise.includes('params')) return false
  if (!ownNormalise.every(each => normalise.includes(each))) return false
  return partsOfMatch(wide).every(part => partsOfMatch(narrow).some(own => coversPart(part, own)))
}

const matchers = new WeakMap<PathPart, PathMatcher>()

function coversPart(wide: PathPart, narrow: PathPart): boolean {
  const { path, normalise } = wide
  const { path: narrowPath, normalise: ownNormalise } = narrow
  const expression = expressionOf(path)
  const ownExpression = expressionOf(narrowPath)
  if (expression !== undefined && expression === ownExpression)
    return normalise.includes('case') === ownNormalise.includes('case')
  if (ownExpression === undefined && !narrowPath.includes('*')) {
    const target = matchingPath(narrowPath)
    return keptIn(matchers, wide, () => createPathMatcher(path, normalise))({ path: target, target })
  }
  if (expression !== undefined) return false
  const fold = (text: string) => (normalise.includes('case') ? text.toLowerCase() : text)
  const pattern = fold(spelledPattern(path))
  const own = fold(ownExpression === undefined ? spelledPattern(narrowPath) : aroundExpression(ownExpression))
  if (coversWildcard(pattern, own)) return true
  return normalise.includes('slash') && !own.endsWith('*') && coversWildcard(pattern, withOtherEnd(own))
}

/** A pattern without expression that matches at least the same paths. */
function aroundExpression(expression: string): string {
  const { texts, isAtStart } = requiredText(expression)
  return `${isAtStart ? '' : '*'}${texts.join('*')}*`
}

function coversMethods(wide: readonly string[] | undefined, narrow: readonly string[] | undefined): boolean {
  return wide === undefined || (narrow?.every(method => wide.includes(method)) ?? false)
}

/** A host without a port covers that host on every port. */
function coversHost(wide: string | undefined, narrow: string | undefined): boolean {
  if (wide === undefined) return true
  if (narrow === undefined) return false
  return coversWildcard(wide, narrow) || coversWildcard(wide, narrow.replace(/:\d+$/, ''))
}

function coversAddresses(wide: readonly string[] | undefined, narrow: readonly string[] | undefined): boolean {
  if (wide === undefined) return true
  const { lengths, keys } = networksOf(wide)
  const isCovered = (text: string): boolean => {
    const own = parseRange(text)!
    return lengths.some(bits => bits <= own.bits && keys.has(networkKey(own, bits)))
  }
  return narrow?.every(isCovered) ?? false
}

interface Networks {
  readonly lengths: readonly number[]
  readonly keys: ReadonlySet<string>
}

/** By list: to read thousands of ranges takes longer than to look for one. */
const networks = new WeakMap<readonly string[], Networks>()

function networksOf(list: readonly string[]): Networks {
  return keptIn(networks, list, () => {
    const ranges = list.map(text => parseRange(text)!)
    return {
      lengths: [...new Set(ranges.map(({ bits }) => bits))],
      keys: new Set(ranges.map(range => networkKey(range, range.bits))),
    }
  })
}
