import { isIPv4, isIPv6 } from 'node:net'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { DEFAULT_LISTEN, formatListen, parseListen, parseUpstreamUrl } from '../schema/address.js'
import { isObject } from './partial-config.js'

type Address = ReturnType<typeof parseListen>

/**
 * Finds upstreams that are the address that shaper listens on: every request would come back.
 *
 * Looks at the file as written, so that this is reported together with all other errors. Addresses that cannot be
 * read are left out: the schema reports them.
 */
export function loopFaults(file: Record<string, unknown>): Finding[] {
  const { listen: given = DEFAULT_LISTEN, upstream, routes } = file
  const listen = readOrNothing(isObject(given) ? given.address : given, parseListen)
  if (listen === undefined) return []
  const fault = (value: unknown, path: PropertyKey[]): Finding[] => {
    const url = readOrNothing(isObject(value) ? value.url : value, parseUpstreamUrl)
    if (url === undefined || !isSame(listen, url)) return []
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
function isSame(listen: Address, url: string): boolean {
  if (url === 'echo:') return false
  const { hostname, port, protocol } = new URL(url)
  if (listen.port !== (Number(port) || (protocol === 'https:' ? 443 : 80))) return false
  // A connection to the "any" address goes to loopback.
  const target = asAddress(hostname)
    .replace(/^0\.0\.0\.0$/, '127.0.0.1')
    .replace(/^::$/, '::1')
  const host = asAddress(listen.host)
  if (host === '::') return target === '::1' || isLocal(target)
  if (host === '0.0.0.0') return isLocal(target)
  if (host === 'localhost' || target === 'localhost') return [host, target].every(each => LOCALHOST.includes(each))
  return host === target
}

const LOCALHOST = ['localhost', '127.0.0.1', '::1']

/** Whether IPv4 reaches this machine by that name. */
function isLocal(host: string): boolean {
  return host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))
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
