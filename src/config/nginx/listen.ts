/** Where servers listen, and whom they believe about addresses of clients. */
import { isIP } from 'node:net'
import { socketPathOf } from '../../http/unix-socket.js'
import { quote } from '../messages.js'
import { type Directive, type ImportNote, pathFrom, type SourcePlace } from './directives.js'
import { inherited, type Scopes, settingOf } from './scopes.js'

export type ImportedListen = ImportedListener | readonly ImportedListener[]

type ImportedListener =
  | string
  | { readonly address: string; readonly tls?: Certificate; readonly proxyProtocol?: string[] }

interface Certificate {
  readonly cert: string
  readonly key: string
}

/** Where nginx listens as root without a `listen`. */
const ANYWHERE = '0.0.0.0:80'

interface WrittenListen {
  readonly server: Directive
  readonly place: SourcePlace
  readonly address: string
  readonly args: readonly string[]
  readonly isTls: boolean
}

interface ListenContext {
  readonly http: readonly Directive[]
  readonly folder: string
  readonly notes: ImportNote[]
}

interface ListenChoice {
  readonly listen: ImportedListen
  readonly servers: readonly Directive[]
  /** The one that takes what no other does. */
  readonly last: Directive | undefined
  readonly isIpv6: boolean
}

/**
 * The first address with a certificate, or else the first, among those whose servers have limits if there are any. Unix sockets of
 * its servers come along.
 */
export function listenOf(servers: readonly Directive[], { http, folder, notes }: ListenContext): ListenChoice {
  const written = servers.flatMap(server => listensOf(server, notes))
  const ports = written.filter(each => socketPathOf(each.address) === undefined)
  const all = ports.length === 0 ? written : ports
  const sockets = written.filter(each => !all.includes(each))
  const isLimited = ({ address }: WrittenListen): boolean =>
    all.some(each => each.address === address && hasLimits(each.server.block))
  const limited = http.some(isLimit) ? all : all.filter(isLimited)
  const eligible = limited.length === 0 ? all : limited
  const chosen = eligible.find(({ isTls }) => isTls) ?? eligible[0]
  if (chosen === undefined) return { listen: ANYWHERE, servers, last: servers[0], isIpv6: false }
  // As in nginx, "ssl" of one server counts for all at its address.
  const isChosen = ({ address }: WrittenListen): boolean =>
    address === chosen.address || (isAnywhere(address) && isAnywhere(chosen.address) && isSamePort(address, chosen))
  const listens = all.filter(isChosen)
  // On all addresses of IPv6 is on those of IPv4, too.
  const { address } = listens.find(each => each.address.startsWith('[::]')) ?? chosen
  for (const each of all.filter(one => !isChosen(one))) {
    const also =
      isAnywhere(address) && isSamePort(address, each)
        ? `. It gets the requests to ${each.address}, too, with other limits`
        : ''
    const message = `shaper listens on one address, here ${address}: run another one for this, or keep nginx there${also}`
    notes.push({ place: each.place, message })
  }
  const used = new Set(listens.map(({ server }) => server))
  const beside = sockets.filter(({ server }) => used.has(server))
  tellSockets(
    sockets.filter(each => !beside.includes(each)),
    address,
    notes,
  )
  const there = {
    servers: servers.filter(each => used.has(each)),
    last: (listens.find(({ args }) => args.some(each => /^default(?:_server)?$/.test(each))) ?? listens[0])?.server,
    isIpv6: listens.some(each => isIP(each.address.replace(/:\d+$/, '')) !== 4),
  }
  const tls = chosen.isTls ? certificateOf(listens, { chosen, http, folder, notes }) : undefined
  // As in nginx, "proxy_protocol" of one server counts for all at its address, too.
  const listenerOf = (own: readonly WrittenListen[], shown: string): ImportedListener => {
    const proxies = proxiesOf(own, http, notes)
    const certificate = own.some(({ isTls }) => isTls) ? tls : undefined
    if (certificate === undefined && proxies === undefined) return shown
    return { address: shown, ...(certificate && { tls: certificate }), ...(proxies && { proxyProtocol: proxies }) }
  }
  const main = listenerOf(listens, address)
  const paths = [...new Set(beside.map(each => each.address))]
  const others = paths.map(path =>
    listenerOf(
      beside.filter(each => each.address === path),
      path,
    ),
  )
  return { listen: others.length === 0 ? main : [main, ...others], ...there }
}

function certificateOf(
  listens: readonly WrittenListen[],
  { chosen, http, folder, notes }: ListenContext & { chosen: WrittenListen },
): Certificate | undefined {
  const certificates = listens.flatMap(({ server: { block = [] } }) => {
    const [cert, key] = ['ssl_certificate', 'ssl_certificate_key'].map(name => settingOf([block, http], name))
    return cert === undefined || key === undefined ? [] : [{ cert: pathFrom(folder, cert), key: pathFrom(folder, key) }]
  })
  if (new Set(certificates.map(({ cert }) => cert)).size > 1)
    notes.push({ place: chosen.place, message: 'shaper serves one certificate: it has to have all names' })
  if (certificates.length === 0)
    notes.push({ place: chosen.place, message: 'there is no ssl_certificate with its key: add "tls" to "listen"' })
  return certificates[0]
}

/** Who sends a PROXY header there, as far as all servers there believe it. Undefined: nobody. */
function proxiesOf(
  listens: readonly WrittenListen[],
  http: readonly Directive[],
  notes: ImportNote[],
): string[] | undefined {
  const written = listens.find(({ args }) => args.includes('proxy_protocol'))
  if (written === undefined) return undefined
  const { place } = written
  const lists = listens.map(({ server: { block = [] } }) => {
    const scopes: Scopes = [block, http]
    return settingOf(scopes, 'real_ip_header') === 'proxy_protocol' ? hopsOf(scopes, 'proxyProtocol', notes) : []
  })
  const found = commonOf(lists).map(({ address }) => address)
  if (found.length === 0) {
    const message =
      'shaper reads the PROXY protocol only of proxies that it knows: write "listen": { "address": ..., "proxyProtocol": ["ADDRESS OF THE PROXY"] }'
    notes.push({ place, message })
    return undefined
  }
  const message = `only ${found.join(', ')} may begin a connection with a PROXY header here, and has to; nginx wants one of everybody`
  notes.push({ place, message })
  return found
}

function tellSockets(sockets: readonly WrittenListen[], main: string, notes: ImportNote[]): void {
  for (const { address, place } of sockets)
    notes.push({ place, message: `${quote(address)} is left out: none of its servers listens on ${main}` })
}

function isLimit({ name }: Directive): boolean {
  return name === 'limit_req' || name === 'limit_conn'
}

function hasLimits(block: readonly Directive[] = []): boolean {
  return block.some(each => isLimit(each) || hasLimits(each.block))
}

function listensOf(server: Directive, notes: ImportNote[]): WrittenListen[] {
  const listens = (server.block ?? []).filter(({ name }) => name === 'listen')
  if (listens.length === 0) return [{ server, place: server.place, address: ANYWHERE, args: [], isTls: false }]
  // The old form of "listen ... ssl".
  const isTls = settingOf([server.block ?? []], 'ssl') === 'on'
  return listens.flatMap(({ args, place }) => {
    const [text = ''] = args
    const address = addressOf(text)
    if (address !== undefined) return [{ server, place, address, args, isTls: isTls || args.includes('ssl') }]
    notes.push({ place, message: `${quote(text)} is left out: shaper listens on one port` })
    return []
  })
}

/** Undefined: a range of ports. */
function addressOf(text: string): string | undefined {
  if (socketPathOf(text) !== undefined) return text
  if (/(?:^|:)\d+-\d+$/.test(text)) return undefined
  if (/^\d+$/.test(text)) return `0.0.0.0:${text}`
  const [, host = '', port = '80'] = /^(\[[^\]]*\]|[^:]*)(?::(\d+))?$/.exec(text) ?? []
  return `${host === '*' || host === '' ? '0.0.0.0' : host}:${port}`
}

function isSamePort(address: string, other: WrittenListen): boolean {
  return /\d+$/.exec(address)![0] === /\d+$/.exec(other.address)![0]
}

function isAnywhere(address: string): boolean {
  return /^(?:0\.0\.0\.0|\[::\]):/.test(address)
}

/** The hops of `set_real_ip_from` that all servers believe: in a server that does not, clients could take any address. */
export function trustedOf(servers: readonly Directive[], http: readonly Directive[], notes: ImportNote[]): string[] {
  const places: Scopes[] = servers.length === 0 ? [[http]] : servers.map(({ block = [] }) => [block, http])
  const lists = places.map(scopes => believedIn(scopes, notes))
  for (const { block = [] } of servers) tellInside(block, notes)
  const common = commonOf(lists)
  const all = [...new Map(lists.flat().map(hop => [hop.address, hop])).values()]
  for (const { address, place } of all.filter(hop => !common.some(each => each.address === hop.address))) {
    const message = `${quote(address)} is left out of "trustProxy", which holds for all servers: not all of them have this set_real_ip_from. Behind that proxy all clients count as one here: run another shaper for this server`
    notes.push({ place, message })
  }
  const [first] = common
  if (first !== undefined && places.some(scopes => settingOf(scopes, 'real_ip_recursive') !== 'on')) {
    const message =
      'without "real_ip_recursive on" nginx takes the last address of X-Forwarded-For. shaper goes on to the one before while that is in "trustProxy", so clients in there could name any address: list proxies only'
    notes.push({ place: first.place, message })
  }
  return common.map(({ address }) => address)
}

interface Hop {
  readonly address: string
  readonly place: SourcePlace
}

/** Those that are in each list. */
function commonOf(lists: readonly (readonly Hop[])[]): Hop[] {
  const [first = [], ...others] = lists
  const all = new Map(first.map(hop => [hop.address, hop]))
  return [...all.values()].filter(hop => others.every(list => list.some(each => each.address === hop.address)))
}

function believedIn(scopes: Scopes, notes: ImportNote[]): Hop[] {
  const all = inherited(scopes, 'set_real_ip_from')
  const [header] = inherited(scopes, 'real_ip_header')
  if (all.length === 0) return []
  if (header?.args[0]?.toLowerCase() !== 'x-forwarded-for') {
    const { place } = header ?? all[0]!
    const name = header?.args[0] ?? 'X-Real-IP'
    const isOfListener = inherited(scopes, 'listen').some(({ args }) => args.includes('proxy_protocol'))
    if (name === 'proxy_protocol' && isOfListener) return []
    const message = `shaper takes addresses of clients from X-Forwarded-For, not from ${name}: let the proxy before it send that, and add "trustProxy"`
    notes.push({ place, message })
    return []
  }
  return hopsOf(scopes, 'trustProxy', notes)
}

function hopsOf(scopes: Scopes, key: 'trustProxy' | 'proxyProtocol', notes: ImportNote[]): Hop[] {
  return inherited(scopes, 'set_real_ip_from').flatMap(({ args: [address = ''], place }) => {
    if (isIP(address.replace(/\/\d+$/, '')) !== 0) return [{ address, place }]
    if (address === 'unix:') {
      const message = `"unix:" becomes "loopback" in ${key}, which also trusts programs of this machine over TCP`
      notes.push({ place, message })
      return [{ address: 'loopback', place }]
    }
    notes.push({ place, message: `${address} is no address or CIDR; left out of ${key}` })
    return []
  })
}

function tellInside(block: readonly Directive[], notes: ImportNote[]): void {
  for (const location of block.filter(({ name }) => name === 'location')) {
    const own = location.block ?? []
    const found = own.find(({ name }) => name === 'set_real_ip_from' || name === 'real_ip_header')
    if (found !== undefined) {
      const message = `"${found.name}" in a location is left out: "trustProxy" holds for all requests`
      notes.push({ place: found.place, message })
    }
    tellInside(own, notes)
  }
}
