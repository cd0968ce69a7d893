/** Checks of the file as written, reported together with all other errors. What cannot be read the schema reports. */
import { isIPv4, isIPv6 } from 'node:net'
import { hostname, networkInterfaces } from 'node:os'
import { orElse } from '../../core/structures/or-else.js'
import { ownValue } from '../../core/structures/own-value.js'
import { socketPathOf } from '../../http/unix-socket.js'
import { ADAPTIVE } from '../derived/adapted-upstreams.js'
import { quote } from '../messages.js'
import { type Finding, formatPath } from '../problems.js'
import {
  BUILT_IN,
  formatListen,
  GATE,
  isLocal,
  type ListenAddress,
  parseListen,
  parseUpstreamUrl,
} from '../schema/address.js'
import { isObject, listensOf, routesOf, upstreamsOf } from './partial-config.js'

export interface OwnNames {
  readonly hostname: string
  readonly addresses: readonly string[]
}

type AsWritten = Record<string, unknown>

interface WrittenListen {
  readonly path: readonly PropertyKey[]
  readonly address: ListenAddress
}

/** Those that can be read. */
function addressesOf(file: AsWritten): WrittenListen[] {
  return listensOf(file).flatMap(({ listen, path }) => {
    const address = readOrNothing(isObject(listen) ? listen.address : listen, parseListen)
    return address === undefined ? [] : [{ path: isObject(listen) ? [...path, 'address'] : path, address }]
  })
}

/** Finds addresses that are listed twice. Port 0 is another one each time. */
export function listenFaults(file: AsWritten): Finding[] {
  const listens = addressesOf(file)
  return listens.flatMap(({ path, address }, index) => {
    const first = listens.slice(0, index).find(other => isSameAddress(other.address, address))
    if (first === undefined) return []
    return [{ path, message: `${quote(formatListen(address))} is listed twice; remove one` }]
  })
}

function isSameAddress(one: ListenAddress, other: ListenAddress): boolean {
  if (!('port' in one) || !('port' in other)) return formatListen(one) === formatListen(other)
  return one.port !== 0 && one.port === other.port && asAddress(one.host) === asAddress(other.host)
}

/** Finds upstreams that are the address that shaper listens on: every request would come back. */
export function loopFaults(file: AsWritten, own: OwnNames = ownNames()): Finding[] {
  const listens = addressesOf(file)
  return upstreamsOf(file).flatMap(({ upstream: value, path }) => {
    const url = readOrNothing(isObject(value) ? value.url : value, parseUpstreamUrl)
    const listen = url === undefined ? undefined : listens.find(({ address }) => isSame(address, url, own))
    if (url === undefined || listen === undefined) return []
    const where = `${quote(url)} is where shaper itself listens ("listen": ${quote(formatListen(listen.address))})`
    const remedy = 'so every request would come back; name the address of the upstream, or listen elsewhere'
    return [{ path: isObject(value) ? [...path, 'url'] : path, message: `${where}, ${remedy}` }]
  })
}

function ownNames(): OwnNames {
  const addresses = Object.values(networkInterfaces()).flatMap((list = []) => list.map(({ address }) => address))
  return { hostname: hostname(), addresses }
}

function readOrNothing<T>(value: unknown, parse: (text: string) => T): T | undefined {
  if (typeof value !== 'string') return undefined
  return orElse(() => parse(value), undefined)
}

/** Whether a connection to the URL, made on this machine, certainly ends at `listen`. Unsure is false. */
function isSame(listen: ListenAddress, url: string, own: OwnNames): boolean {
  if (BUILT_IN.includes(url)) return false
  const socket = socketPathOf(url)
  if (socket !== undefined || !('port' in listen)) return 'path' in listen && listen.path === socket
  const { hostname, port, protocol } = new URL(url)
  if (listen.port !== (Number(port) || (protocol === 'https:' ? 443 : 80))) return false
  // A connection to the "any" address goes to loopback.
  const target = asAddress(hostname)
    .replace(/^0\.0\.0\.0$/, '127.0.0.1')
    .replace(/^::$/, '::1')
  const host = asAddress(listen.host)
  if (host === '::') return target === '::1' || isLocalHost(target) || isOwn(target, own)
  if (host === '0.0.0.0') return isLocalHost(target) || (!isIPv6(target) && isOwn(target, own))
  if (host === 'localhost' || target === 'localhost') return [host, target].every(each => LOCALHOST.includes(each))
  return host === target
}

const LOCALHOST = ['localhost', '127.0.0.1', '::1']

/** Whether IPv4 reaches this machine by that name. */
function isLocalHost(host: string): boolean {
  return host === 'localhost' || (isIPv4(host) && host.startsWith('127.'))
}

function isOwn(host: string, own: OwnNames): boolean {
  return host === asAddress(own.hostname) || own.addresses.some(address => asAddress(address) === host)
}

/** A host in one spelling: lower case, IPv6 in its short form, mapped IPv4 addresses as IPv4. */
function asAddress(host: string): string {
  const bare = host.replace(/^\[|\]$|%.*$/g, '').toLowerCase()
  if (!isIPv6(bare)) return bare
  const short = new URL(`http://[${bare}]`).hostname.slice(1, -1)
  const [, high, low] = /^::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(short) ?? []
  if (high === undefined || low === undefined) return short
  const bytes = Buffer.from(`${high.padStart(4, '0')}${low.padStart(4, '0')}`, 'hex')
  return [...bytes].join('.')
}

export function adminAddressFaults(file: AsWritten): Finding[] {
  const { admin } = file
  const { listen: given } = isObject(admin) ? admin : {}
  const own = readOrNothing(isObject(given) ? given.address : given, parseListen)
  const same = own && addressesOf(file).find(({ address }) => isSameAddress(address, own))
  if (own === undefined || same === undefined) return []
  const other = 'port' in own ? 'port' : 'path' in own ? 'path' : 'socket'
  const message = `${quote(formatListen(own))} is also where the proxy listens ("listen": ${quote(formatListen(same.address))}); choose another ${other} for one of them`
  return [{ path: ['admin', 'listen', ...(isObject(given) ? ['address'] : [])], message }]
}

export function adaptFaults(file: AsWritten): Finding[] {
  const { buckets } = file
  const adapted = upstreamsOf(file).flatMap(adaptOf)
  const findings: Finding[] = []
  if (isObject(buckets) && ADAPTIVE in buckets) {
    const message = `${quote(ADAPTIVE)} is the name of the bucket that "upstream.adapt" makes; use another name`
    findings.push({ path: ['buckets', ADAPTIVE], message })
  }
  for (const [index, { path, url, targets }] of adapted.entries()) {
    const first = adapted.slice(0, index).find(other => other.url === url)
    if (first === undefined || first.targets === targets) continue
    const message = `${quote(url)} has other targets at ${formatPath(first.path)}, and one rate for all routes to it; make them the same`
    findings.push({ path, message })
  }
  return findings
}

function adaptOf({ upstream, path }: ReturnType<typeof upstreamsOf>[number]) {
  if (!isObject(upstream) || upstream.adapt === undefined) return []
  const url = readOrNothing(upstream.url, parseUpstreamUrl)
  return url === undefined ? [] : [{ path: [...path, 'adapt'], url, targets: JSON.stringify(upstream.adapt) }]
}

export function egressFaults(file: AsWritten): Finding[] {
  const { egress } = file
  if (egress === undefined) {
    const message = 'the file does not say where requests may go; add "egress": { "allow": ["api.example.com:443"] }'
    return [{ path: ['--egress'], message }]
  }
  const open = addressesOf(file).find(({ address }) => !isLocal(address))
  if (open === undefined || !isObject(egress) || 'token' in egress) return []
  const where = quote(formatListen(open.address))
  const message = `other machines can reach ${where}, so a token is needed; set "egress": { "token": "\${SHAPER_TOKEN}" }, or listen on 127.0.0.1`
  return [{ path: ['egress', 'token'], message }]
}

const UPSTREAM = `"upstream": ${quote(GATE)}`

export function gateFaults(file: AsWritten): Finding[] {
  const { trustProxy = false, upstream, routes } = file
  const own = routesOf({ routes: Array.isArray(routes) ? routes : [{}] }).map(each => {
    return { ...each, isGate: isGate(each.route.upstream ?? upstream) }
  })
  return [
    ...(own.some(({ isGate }) => isGate) && isNobody(trustProxy) ? [UNTRUSTED] : []),
    ...own.flatMap(({ route, path, isGate }) => {
      if (isGate)
        return [
          ...unseenBody(route.cost, path),
          ...(route.mode === 'off' ? [] : unseenKeys(file.buckets, route.buckets)),
          ...unseenPage(route.waitingPage, path),
        ]
      if (route.gate === undefined) return []
      return [{ path: [...path, 'gate'], message: `only goes with ${UPSTREAM}; add that, or remove this` }]
    }),
  ]
}

const UNTRUSTED: Finding = {
  path: ['trustProxy'],
  message: `a route has ${UPSTREAM}, and only from a trusted proxy is known which request it asks for; name the proxies, e.g. ["loopback", "10.0.0.0/8"]`,
}

function isGate(upstream: unknown): boolean {
  return upstream === GATE || (isObject(upstream) && upstream.url === GATE)
}

/** Whether `trustProxy` trusts no hop. */
export function isNobody(trustProxy: unknown): boolean {
  return trustProxy === false || trustProxy === 0 || (Array.isArray(trustProxy) && trustProxy.length === 0)
}

/** A bucket that a gate uses cannot have a key from the body. @param named undefined: the route has all buckets */
function unseenKeys(buckets: unknown, named: unknown): Finding[] {
  return keysOf({ buckets }).flatMap(({ name, parts, path }) => {
    const part = parts.find(each => /^body:/.test(each))
    if (part === undefined || (Array.isArray(named) && !named.includes(name))) return []
    return [
      {
        path,
        message: `${quote(part)} reads a body, and with ${UPSTREAM} none comes here; use e.g. "jwt:sub" or "path:2"`,
      },
    ]
  })
}

/** What keys are made of, as written. */
function keysOf({ buckets }: AsWritten): { name: string; parts: string[]; path: PropertyKey[] }[] {
  return Object.entries(isObject(buckets) ? buckets : {}).map(([name, bucket]) => {
    const key = isObject(bucket) ? bucket.key : undefined
    return { name, ...partsAsWritten(key, ['buckets', name, 'key']) }
  })
}

function partsAsWritten(key: unknown, path: PropertyKey[]): { parts: string[]; path: PropertyKey[] } {
  if (isObject(key)) return partsAsWritten(key.from, [...path, 'from'])
  return { parts: [key].flat().filter(each => typeof each === 'string'), path }
}

/** Finds keys that need a verified token where nothing says how it is verified. */
export function tokenFaults(file: AsWritten): Finding[] {
  if (file.identity !== undefined) return []
  const picks = upstreamsOf(file).map(({ upstream, path }) => {
    const pick = isObject(upstream) ? upstream.pick : undefined
    return partsAsWritten(isObject(pick) ? pick.hash : undefined, [...path, 'pick', 'hash'])
  })
  return [...keysOf(file), ...picks].flatMap(({ parts, path }) => {
    const part = parts.find(each => /^jwt:./.test(each))
    if (part === undefined) return []
    const remedy = 'add e.g. "identity": { "jwt": { "jwksUrl": "https://id.example.com/.well-known/jwks.json" } }'
    return [{ path, message: `${quote(part)} needs a token that is verified, and nothing says how; ${remedy}` }]
  })
}

function unseenPage(page: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(page)) return []
  const message = `a gate answers a proxy, and with ${UPSTREAM} no browser gets a page; remove it`
  return [{ path: [...path, 'waitingPage'], message }]
}

function unseenBody(cost: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(cost) || !isObject(cost.buckets)) return []
  return Object.entries(cost.buckets).flatMap(([name, each]) => {
    if (!isObject(each)) return []
    const read = [...(typeof each.estimate === 'string' ? ['estimate'] : []), 'max', 'after']
    return read
      .filter(key => ownValue(each, key) !== undefined)
      .map(key => ({
        path: [...path, 'cost', 'buckets', name, key],
        message: `reads a body, and with ${UPSTREAM} none comes here; use a number, or a header with the cost`,
      }))
  })
}
