import { isIPv4, isIPv6 } from 'node:net'
import { hostname, networkInterfaces } from 'node:os'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { BUILT_IN, DEFAULT_LISTEN, formatListen, parseListen, parseUpstreamUrl } from '../schema/address.js'
import { isObject } from './partial-config.js'

type Address = ReturnType<typeof parseListen>

/** By what names this machine is reached. */
export interface OwnNames {
  readonly hostname: string
  /** Of its network interfaces. */
  readonly addresses: readonly string[]
}

/**
 * Finds upstreams that are the address that shaper listens on: every request would come back.
 *
 * Looks at the file as written, so that this is reported together with all other errors. Addresses that cannot be
 * read are left out: the schema reports them.
 */
export function loopFaults(file: Record<string, unknown>, own: OwnNames = ownNames()): Finding[] {
  const { listen: given = DEFAULT_LISTEN, upstream, routes } = file
  const listen = readOrNothing(isObject(given) ? given.address : given, parseListen)
  if (listen === undefined) return []
  const fault = (value: unknown, path: PropertyKey[]): Finding[] => {
    const url = readOrNothing(isObject(value) ? value.url : value, parseUpstreamUrl)
    if (url === undefined || !isSame(listen, url, own)) return []
    const where = `${quote(url)} is where shaper itself listens ("listen": ${quote(formatListen(listen))})`
    const remedy = 'so every request would come back; name the address of the upstream, or listen elsewhere'
    return [{ path: isObject(value) ? [...path, 'url'] : path, message: `${where}, ${remedy}` }]
  }
  const list: unknown[] = Array.isArray(routes) ? routes : []
  return [
    ...fault(upstream, ['upstream']),
    ...list.flatMap((route, index) => (isObject(route) ? fault(route.upstream, ['routes', index, 'upstream']) : [])),
  ]
}

function ownNames(): OwnNames {
  const addresses = Object.values(networkInterfaces()).flatMap((list = []) => list.map(({ address }) => address))
  return { hostname: hostname(), addresses }
}

/** What `parse` makes of a text; undefined: it is no text, or `parse` refuses it. */
export function readOrNothing<T>(value: unknown, parse: (text: string) => T): T | undefined {
  if (typeof value !== 'string') return undefined
  try {
    return parse(value)
  } catch {
    return undefined
  }
}

/** Whether a connection to the URL, made on this machine, certainly ends at `listen`. Unsure is false. */
function isSame(listen: Address, url: string, own: OwnNames): boolean {
  if (BUILT_IN.includes(url)) return false
  const { hostname, port, protocol } = new URL(url)
  if (listen.port !== (Number(port) || (protocol === 'https:' ? 443 : 80))) return false
  // A connection to the "any" address goes to loopback.
  const target = asAddress(hostname)
    .replace(/^0\.0\.0\.0$/, '127.0.0.1')
    .replace(/^::$/, '::1')
  const host = asAddress(listen.host)
  if (host === '::') return target === '::1' || isLocal(target) || isOwn(target, own)
  if (host === '0.0.0.0') return isLocal(target) || (!isIPv6(target) && isOwn(target, own))
  if (host === 'localhost' || target === 'localhost') return [host, target].every(each => LOCALHOST.includes(each))
  return host === target
}

const LOCALHOST = ['localhost', '127.0.0.1', '::1']

/** Whether IPv4 reaches this machine by that name. */
function isLocal(host: string): boolean {
  return host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))
}

/** Whether it is the name or an address of this machine. The system resolves its name to itself. */
function isOwn(host: string, own: OwnNames): boolean {
  return host === asAddress(own.hostname) || own.addresses.some(address => asAddress(address) === host)
}

/** A host in one spelling: lower case, IPv6 in its short form, mapped IPv4 addresses as IPv4. */
export function asAddress(host: string): string {
  const bare = host.replace(/^\[|\]$|%.*$/g, '').toLowerCase()
  if (!isIPv6(bare)) return bare
  const short = new URL(`http://[${bare}]`).hostname.slice(1, -1)
  const [, high, low] = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(short) ?? []
  if (high === undefined || low === undefined) return short
  const bytes = Buffer.from(`${high.padStart(4, '0')}${low.padStart(4, '0')}`, 'hex')
  return [...bytes].join('.')
}
