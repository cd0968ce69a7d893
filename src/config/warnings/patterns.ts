/**
 * Warns of values that look like a pattern or a range. They are compared literally, so they never match. Keys and header
 * values may be credentials, so a warning names their place only.
 */
import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'
import { ipv6Network } from '../../http/ipv6-network.js'
import { quote } from '../messages.js'
import type { BucketSettings, Settings } from '../settings.js'
import type { Warning } from './key-scope.js'

/** Headers whose values may contain `*`, such as `*\/*`. */
const WITH_STARS = /^(?:accept|if-)/

export function patternWarnings({ buckets, routes }: Settings): Warning[] {
  return [
    ...buckets.flatMap(bucket =>
      bucket.tiers.flatMap(({ keys = [], header }, index) => {
        const path = ['buckets', bucket.name, 'tiers', index]
        return [
          ...keys.flatMap((key, position) =>
            oddAddress(key, bucket).map(why => ({
              path: [...path, 'keys', position],
              message: `never matches: ${why}`,
            })),
          ),
          ...starred(header, [...path, 'header']),
        ]
      }),
    ),
    ...routes.flatMap(({ match }, index) => starred(match.header, ['routes', index, 'match', 'header'])),
  ]
}

/** Why no request can have the address in the key of a tier. */
function oddAddress(key: string, { key: { parts, ipv6 } }: BucketSettings): string[] {
  const values = key.split('\n')
  const address = values[parts.findIndex(({ kind }) => kind === 'ip')]
  if (address === undefined || values.length !== parts.length) return []
  if (isIP(address) === 4) return []
  if (isIP(address) === 0 && !ipaddr.isValidCIDR(address)) {
    return ['it is no address, and the key of the bucket is "ip"; use e.g. "192.0.2.1"']
  }
  const [text = '', prefix] = address.split('/')
  const parsed = ipaddr.process(text)
  const bits = prefix === undefined ? Infinity : Number(prefix)
  if (parsed.kind() === 'ipv4') {
    const own = parsed.toString()
    return bits < 32 ? [range('addresses', own)] : [`the key "ip" writes it differently; use ${quote(own)}`]
  }
  const network = ipv6Network((parsed as ipaddr.IPv6).parts, ipv6)
  if (address === network) return []
  return bits < ipv6
    ? [range(`networks of ${ipv6} bits`, network)]
    : [`the key "ip" of IPv6 is the network of ${ipv6} bits; use ${quote(network)}`]
}

function range(members: string, first: string): string {
  return `the key "ip" is one address, and no range is looked into; list the ${members}, e.g. ${quote(first)}`
}

function starred(header: Readonly<Record<string, string>> | undefined, path: readonly PropertyKey[]): Warning[] {
  return Object.entries(header ?? {}).flatMap(([name, value]) => {
    if (!value.includes('*') || WITH_STARS.test(name)) return []
    const message = `this value is compared as a whole, and "*" stands for nothing but itself; write the exact value`
    return [{ path: [...path, name], message }]
  })
}
