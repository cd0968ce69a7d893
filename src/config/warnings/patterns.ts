/**
 * Warns of patterns that never match, and of values that look like a pattern and are none. Keys and header values may be
 * credentials, so a warning names their place only.
 */
import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'
import { ipv6Network } from '../../http/ipv6-network.js'
import { parseKeyRange, parseRange } from '../../http/matching/address-ranges.js'
import { matchingPath } from '../../http/matching/matching-path.js'
import { expressionOf } from '../../http/matching/path-pattern.js'
import { requiredText } from '../checks/required-text.js'
import { quote } from '../messages.js'
import type { BucketSettings, MatchSettings, Settings } from '../settings.js'
import type { Warning } from './key-scope.js'

/** Headers whose values may contain `*`, such as `*\/*`. */
const WITH_STARS = /^(?:accept|if-)/

export function patternWarnings({ buckets, routes }: Settings): Warning[] {
  return [
    ...buckets.flatMap(bucket => [
      ...sameRanges(bucket),
      ...bucket.tiers.flatMap(({ keys = [], header }, index) => {
        const path = ['buckets', bucket.name, 'tiers', index]
        return [
          ...keys.flatMap((key, position) =>
            keyFaults(key, bucket).map(message => ({ path: [...path, 'keys', position], message })),
          ),
          ...starred(header, [...path, 'header']),
        ]
      }),
    ]),
    ...routes.flatMap(({ match }, index) =>
      impossible(match)
        .slice(0, 1)
        .map(why => ({ path: ['routes', index, 'match', 'path'], message: `never matches: ${why}` })),
    ),
  ]
}

/** Why no path can match an expression, as far as that is certain. */
function impossible({ path, normalise = [] }: MatchSettings): string[] {
  const expression = path === undefined ? undefined : expressionOf(path)
  if (expression === undefined) return []
  const { texts, isAtStart } = requiredText(expression)
  const [first = ''] = texts
  return [
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
  if (normalise.includes('params') && text.includes(';')) {
    return ['no path has a ";", as "params" leaves out all of them; leave it out']
  }
  return (text.match(/%[0-9A-Fa-f]{2}/g) ?? []).flatMap(code => {
    const compared = matchingPath(`/${code}`).slice(1)
    const isSame = normalise.includes('case') ? compared === code.toUpperCase() : compared === code
    return isSame ? [] : [`${quote(code)} is ${quote(compared)} in the paths that are compared; write that`]
  })
}

/** Ranges of several tiers that are the same. */
function sameRanges({ name, key, tiers }: BucketSettings): Warning[] {
  if (!isAddress(key)) return []
  const places = new Map<string, string>()
  return tiers.flatMap(({ keys = [] }, index) =>
    keys.flatMap((text, position) => {
      const range = parseKeyRange(text, key.ipv6)?.text
      const first = range === undefined ? undefined : places.get(range)
      if (range !== undefined && first === undefined) places.set(range, `tiers[${index}].keys[${position}]`)
      if (first === undefined) return []
      const path = ['buckets', name, 'tiers', index, 'keys', position]
      return [{ path, message: `never matches: it is the same range as ${first}; remove one` }]
    }),
  )
}

/** Whether a key is the address and nothing else. */
function isAddress({ parts }: BucketSettings['key']): boolean {
  return parts.every(({ kind }) => kind === 'ip')
}

const WHOLE = 'the keys of this bucket are compared as a whole'

/** What is odd about a key of a tier. */
function keyFaults(text: string, bucket: BucketSettings): string[] {
  const { parts } = bucket.key
  const values = text.split('\n')
  const at = values.length === parts.length ? parts.findIndex(({ kind }) => kind === 'ip') : -1
  if (at >= 0) {
    const [why] = oddAddress(values[at]!, bucket)
    if (why !== undefined) return [`never matches: ${why}`]
  }
  const others = values.filter((_value, index) => index !== at)
  if (others.some(value => value.includes('/') && parseRange(value) !== undefined)) {
    return [
      `${WHOLE}, so this range stands for no address in it; ranges are looked into only where the key is "ip" and nothing else`,
    ]
  }
  const hasStars = parts.some(part => part.kind === 'header' && WITH_STARS.test(part.name))
  if (hasStars || !others.some(value => value.includes('*'))) return []
  return [
    `${WHOLE}, and "*" stands for nothing but itself; write the exact key, or match the pattern in a route with a bucket of its own`,
  ]
}

/** Why no request can have this address in its key. */
function oddAddress(address: string, { key }: BucketSettings): string[] {
  const { ipv6 } = key
  const isRange = address.includes('/')
  if (isIP(address) === 4 || (isRange && isAddress(key) && parseKeyRange(address, ipv6) !== undefined)) return []
  const range = parseRange(address)
  if (range === undefined) {
    return ['it is no address, and the key of the bucket is "ip"; use e.g. "192.0.2.1" or "192.0.2.0/24"']
  }
  if (range.hasHostBits) return [`it has bits set after its prefix; use ${quote(range.text)}, or the address alone`]
  if (range.bytes.length === 4) {
    return isRange && range.bits < 32
      ? [wholeKeys('addresses', range.text.replace(/\/.*/, ''))]
      : [`the key "ip" writes it differently; use ${quote(range.text)}`]
  }
  const network = ipv6Network((ipaddr.parse(address.replace(/\/.*/, '')) as ipaddr.IPv6).parts, ipv6)
  if (address === network) return []
  if (isRange && range.bits < ipv6) return [wholeKeys(`networks of ${ipv6} bits`, network)]
  return [`the key "ip" of IPv6 is the network of ${ipv6} bits; use ${quote(network)}`]
}

function wholeKeys(members: string, first: string): string {
  return `ranges are looked into only where the key of the bucket is "ip" and nothing else; list the ${members}, e.g. ${quote(first)}`
}

function starred(header: Readonly<Record<string, string>> | undefined, path: readonly PropertyKey[]): Warning[] {
  return Object.entries(header ?? {}).flatMap(([name, value]) => {
    if (!value.includes('*') || WITH_STARS.test(name)) return []
    const message = `this value is compared as a whole, and "*" stands for nothing but itself; write the exact value`
    return [{ path: [...path, name], message }]
  })
}
