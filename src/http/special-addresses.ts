/**
 * Addresses that are not on the public internet.
 *
 * Of IPv6 only global unicast (2000::/3) is public, without what is reserved in it or leads into IPv4. So forms of IPv4 that
 * nobody thought of are special, too. Two forms are judged by the IPv4 address in them: mapped addresses, and those of NAT64,
 * which is all that a name has on a network with IPv6 alone.
 */
import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'
import { AddressRanges, parseRange } from './matching/address-ranges.js'

/** RFC 6890 and the IANA registries for special-purpose addresses. */
const SPECIAL_IPV4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
]

/** Reserved in 2000::/3: protocols and Teredo, documentation, 6to4. */
const SPECIAL_IPV6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']

type Kind = 'special' | 'public'

const entry = (range: string, kind: Kind) => [parseRange(range)!, kind] as const
const ranges = new AddressRanges<Kind>([
  ...[...SPECIAL_IPV4, ...SPECIAL_IPV6].map(range => entry(range, 'special')),
  entry('0.0.0.0/0', 'public'),
  entry('2000::/3', 'public'),
])

/** Whether an address is loopback, private, link-local or otherwise not public. So is a text that is no address. */
export function isSpecialAddress(address: string): boolean {
  const [bare = ''] = address.split('%')
  if (isIP(bare) === 0) return true
  return ranges.find(ipaddr.process(bare).toString()) !== 'public'
}
