import { BlockList, isIP } from 'node:net'
import ipaddr from 'ipaddr.js'

const NAMED_NETWORKS: Record<string, readonly string[]> = {
  loopback: ['127.0.0.0/8', '::1/128'],
  linklocal: ['169.254.0.0/16', 'fe80::/10'],
  uniquelocal: ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'],
}

/** How many entries of X-Forwarded-For are read. */
const MAX_HOPS = 100

/** Reads one address as proxies write them: with brackets, port, zone or as IPv4 mapped into IPv6. */
export function readAddress(text: string): string | undefined {
  const address = bareAddress(text)
  return address === undefined ? undefined : canonical(address)
}

/** Without brackets, port and zone. */
function bareAddress(text: string): string | undefined {
  let address = text.trim()
  const bracketed = /^\[([^\]]*)\](?::\d+)?$/.exec(address)
  if (bracketed) address = bracketed[1]!
  else if (/^[^:]+:\d+$/.test(address)) address = address.slice(0, address.indexOf(':'))
  const zone = address.indexOf('%')
  if (zone >= 0) address = address.slice(0, zone)
  return isIP(address) === 0 ? undefined : address
}

/** In its one spelling, as IPv4 where it is one that is mapped. */
function canonical(address: string): string {
  return isIP(address) === 6 ? ipaddr.process(address).toString() : address
}

/** What the key `ip` is of an address: IPv6 hosts have a /64 each, so that is what counts. */
export function addressKey(address: string): string {
  if (isIP(address) !== 6) return address
  const network = (ipaddr.parse(address) as ipaddr.IPv6).parts.slice(0, 4)
  return `${network.map(part => part.toString(16)).join(':')}::/64`
}

/** Tells whether the hop at `distance` (0: the peer itself) may say who came before it. */
export type Trust = (address: string, distance: number) => boolean

/** @param setting `trustProxy` of the configuration */
export function createTrust(setting: boolean | number | readonly string[]): Trust {
  if (typeof setting === 'boolean') return () => setting
  if (typeof setting === 'number') return (_address, distance) => distance < setting
  const trusted = new BlockList()
  for (const network of setting.flatMap(entry => NAMED_NETWORKS[entry] ?? [entry])) {
    const [address, prefix] = network.split('/') as [string, string | undefined]
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (prefix === undefined) trusted.addAddress(address, family)
    else trusted.addSubnet(address, Number(prefix), family)
  }
  return address => trusted.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4')
}

/**
 * Who sent the request: the nearest hop that is not trusted, reading X-Forwarded-For from the right; where an entry is
 * no address, the trusted hop that wrote it. No more is read than is needed, and at most 100 entries.
 *
 * @param forwardedFor the values of all X-Forwarded-For lines, in order
 */
export function clientAddress(peer: string, forwardedFor: readonly string[], trust: Trust): string {
  let client = peer
  let distance = 0
  for (const entry of fromTheRight(forwardedFor)) {
    // An empty element is none (RFC 9110 5.6.1).
    if (entry.trim() === '') continue
    if (!trust(client, distance)) break
    const before = bareAddress(entry)
    if (before === undefined) break
    client = before
    distance += 1
  }
  return canonical(client)
}

/** The last entries of lists that follow one another, the last first. */
function* fromTheRight(lists: readonly string[]): Generator<string> {
  let hops = 0
  for (let at = lists.length - 1; at >= 0; at -= 1) {
    const list = lists[at]!
    for (let end = list.length; end >= 0 && hops < MAX_HOPS; hops += 1) {
      const comma = end === 0 ? -1 : list.lastIndexOf(',', end - 1)
      yield list.slice(comma + 1, end)
      end = comma
    }
  }
}
