/** Warns of tiers that no request can be in. Keys and header values may be credentials, so a warning names their place only. */
import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'
import { ipv6Network, parseKeyRange, parseRange } from '../../http/matching/address-ranges.js'
import { hostName } from '../../http/matching/wildcard.js'
import { METHOD } from '../../http/method.js'
import { either, quote } from '../messages.js'
import type { BucketSettings, KeyPart, Settings } from '../settings.js'
import { usersOf, type Warning } from './key-scope.js'
import { headerValueFault, headerValueFaults } from './patterns.js'

/** Headers whose values may contain `*`, such as `*\/*`. */
const WITH_STARS = /^(?:accept|if-)/

export function tierKeyWarnings(settings: Settings): Warning[] {
  return settings.buckets.flatMap(bucket => {
    const routes = usersOf(bucket, settings).map(({ name }) => name)
    return [
      ...sameRanges(bucket),
      ...bucket.tiers.flatMap(({ keys = [], header }, index) => {
        const path = ['buckets', bucket.name, 'tiers', index]
        const ofKeys = keys.flatMap((key, position) =>
          keyFaults(key, bucket, routes)
            .slice(0, 1)
            .map(message => ({ path: [...path, 'keys', position], message })),
        )
        return [...ofKeys, ...starred(header, [...path, 'header']), ...headerValueFaults(header, [...path, 'header'])]
      }),
    ]
  })
}

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

/** What is odd about a key of a tier: the first is the reason. @param routes that use the bucket */
function keyFaults(text: string, bucket: BucketSettings, routes: readonly string[]): string[] {
  const { parts } = bucket.key
  const values = parts.length === 1 ? [text] : text.split('\n')
  const isWhole = values.length === parts.length
  const never = (why: string): string => `never matches: ${why}`
  const hasStars = parts.some(part => part.kind === 'header' && WITH_STARS.test(part.name))
  const others = values.filter((_value, index) => !isWhole || parts[index]!.kind !== 'ip')
  return [
    ...(isWhole
      ? values.flatMap((value, index) => (parts[index]!.kind === 'ip' ? oddAddress(value, bucket) : []))
      : []
    ).map(never),
    ...(others.some(isRange)
      ? [
          `${WHOLE}, so this range stands for no address in it; ranges are looked into only where the key is "ip" and nothing else`,
        ]
      : []),
    ...(isWhole
      ? values.flatMap((value, index) => valueFaults(value, parts[index]!, { bucket, routes }))
      : [`the key of the bucket has ${parts.length} parts, joined by "\\n"; write all of them`]
    ).map(never),
    ...(others.some(value => value.includes('*')) && !hasStars
      ? [
          `${WHOLE}, and "*" stands for nothing but itself; write the exact key, or match the pattern in a route with a bucket of its own`,
        ]
      : []),
  ]
}

function isRange(value: string): boolean {
  return value.includes('/') && parseRange(value) !== undefined
}

interface Users {
  readonly bucket: BucketSettings
  readonly routes: readonly string[]
}

/** Why no request can have this value in that part of its key. */
function valueFaults(value: string, part: KeyPart, { bucket, routes }: Users): string[] {
  if (isStandIn(value, bucket.key)) return []
  switch (part.kind) {
    case 'ip':
    // Tiers of the key "all" have a warning of their own.
    case 'all':
      return []
    case 'route':
      return routes.includes(value) || routes.length === 0
        ? []
        : [`no route of that name uses the bucket; use ${either(routes)}`]
    case 'method':
      return METHOD.test(value) ? [] : ['it is no HTTP method; use e.g. "GET", in capitals']
    case 'host':
      return hostName(value) === value
        ? []
        : [`hosts in keys are in lower case, without port and dot at the end; use ${quote(hostName(value))}`]
    case 'cert':
      return /^[\da-f]{64}$/.test(value)
        ? []
        : ['it is no fingerprint; use the SHA-256 of the certificate in DER, as 64 hex digits in lower case']
    case 'query':
    case 'path':
    case 'jwt':
    case 'body':
      return value.trim() === value && value !== '' ? [] : ['values in keys have no space at their ends; remove it']
    default:
      return headerValueFault(value)
  }
}

function oddAddress(address: string, { key }: BucketSettings): string[] {
  const { ipv6 } = key
  const isRange = address.includes('/')
  if (isIP(address) === 4 || (isRange && isAddress(key) && parseKeyRange(address, ipv6) !== undefined)) return []
  const range = parseRange(address)
  if (range === undefined)
    return ['it is no address, and the key of the bucket is "ip"; use e.g. "192.0.2.1" or "192.0.2.0/24"']
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

/** Whether a value is what replaces a missing one: a space, and the address where that is counted instead. */
function isStandIn(value: string, { missing }: BucketSettings['key']): boolean {
  return missing === 'ip' ? /^ [\da-f.:/]+$/.test(value) : missing === 'all' && value === ' '
}

function starred(header: Readonly<Record<string, string>> | undefined, path: readonly PropertyKey[]): Warning[] {
  return Object.entries(header ?? {}).flatMap(([name, value]) => {
    if (!value.includes('*') || WITH_STARS.test(name)) return []
    const message = `this value is compared as a whole, and "*" stands for nothing but itself; write the exact value`
    return [{ path: [...path, name], message }]
  })
}
