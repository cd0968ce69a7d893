import { isIPv4, isIPv6 } from 'node:net'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { formatListen } from '../schema/address.js'
import type { Listen, UpstreamSettings } from '../settings.js'
import { isObject } from './partial-config.js'

interface Valid {
  readonly listen: Listen
  readonly upstream?: UpstreamSettings
  readonly routes?: readonly { readonly upstream?: UpstreamSettings }[]
}

/**
 * Upstreams that are the address that is listened on: every request would come back.
 *
 * @param raw what `valid` was written as
 */
export function loopFaults({ listen, upstream, routes = [] }: Valid, raw: unknown): Finding[] {
  const written = isObject(raw) ? raw : {}
  const list = Array.isArray(written.routes) ? written.routes : []
  const fault = (settings: UpstreamSettings | undefined, at: PropertyKey[], from: unknown): Finding[] => {
    if (settings === undefined || !isSame(listen, settings.url)) return []
    const where = `${quote(settings.url)} is where shaper itself listens ("listen": ${quote(formatListen(listen))})`
    const remedy = 'so every request would come back; name the address of the upstream, or listen elsewhere'
    return [{ path: isObject(from) ? [...at, 'url'] : at, message: `${where}, ${remedy}` }]
  }
  return [
    ...fault(upstream, ['upstream'], written.upstream),
    ...routes.flatMap((route, index) => fault(route.upstream, ['routes', index, 'upstream'], list[index]?.upstream)),
  ]
}

/** Whether a connection to the URL, made on this machine, surely ends where it is listened. */
function isSame(listen: Listen, url: string): boolean {
  if (url === 'echo:') return false
  const { hostname, port, protocol } = new URL(url)
  if (listen.port !== (Number(port) || (protocol === 'https:' ? 443 : 80))) return false
  // A connection to "any" address is one to loopback.
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

/** As IPv4 reaches this machine. */
function isLocal(host: string): boolean {
  return host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))
}

/** A host in one spelling: lower case, IPv6 in its short form, and IPv4 as such. */
function asAddress(host: string): string {
  const bare = host.replace(/^\[|\]$|%.*$/g, '').toLowerCase()
  if (!isIPv6(bare)) return bare
  const short = new URL(`http://[${bare}]`).hostname.slice(1, -1)
  const [, high, low] = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(short) ?? []
  if (high === undefined || low === undefined) return short
  const bytes = Buffer.from(`${high.padStart(4, '0')}${low.padStart(4, '0')}`, 'hex')
  return [...bytes].join('.')
}
