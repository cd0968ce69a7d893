import { BlockList, isIP, type Socket } from 'node:net'
import type { TLSSocket } from 'node:tls'
import ipaddr from 'ipaddr.js'
import { ownValue } from '../../core/structures/own-value.js'
import { ipv4Inside, ipv6Network } from '../../http/matching/address-ranges.js'

const NAMED_NETWORKS: Record<string, readonly string[]> = {
  loopback: ['127.0.0.0/8', '::1/128'],
  linklocal: ['169.254.0.0/16', 'fe80::/10'],
  uniquelocal: ['10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'],
}

const MAX_HOPS = 100

/** Reads an address as proxies write it: in brackets, with a port or a zone, as IPv4 in IPv6. Undefined: it is none. */
export function readAddress(text: string): string | undefined {
  const address = bareAddress(text)
  return address === undefined ? undefined : canonical(address)
}

function bareAddress(text: string): string | undefined {
  let address = text.trim()
  const bracketed = /^\[([^\]]*)\](?::\d+)?$/.exec(address)
  if (bracketed) address = bracketed[1]!
  else if (/^[^:]+:\d+$/.test(address)) address = address.slice(0, address.indexOf(':'))
  const zone = address.indexOf('%')
  if (zone >= 0) address = address.slice(0, zone)
  return isIP(address) === 0 ? undefined : address
}

/** The canonical spelling. An IPv4 address mapped into IPv6 becomes IPv4. */
function canonical(address: string): string {
  return isIP(address) === 6 ? ipaddr.process(address).toString() : address
}

/**
 * The key `ip` of an address. IPv6 hosts own a whole /64, so the key is that network. Behind NAT64 all of IPv4 is one network, so
 * the key is the IPv4 address.
 *
 * @param prefix bits of another network, for IPv6
 */
export function addressKey(address: string, prefix = 64): string {
  if (isIP(address) !== 6) return address
  const { parts } = ipaddr.parse(address) as ipaddr.IPv6
  return ipv4Inside(parts) ?? ipv6Network(parts, prefix)
}

export interface PeerAddress {
  readonly peer: string
  readonly peerKey: string
  /** The SHA-256 fingerprint of its certificate, 64 hex digits. Undefined: it needs none. */
  readonly certificate: string | undefined
}

type PeerSocket = Pick<Socket, 'remoteAddress'> & Partial<Pick<TLSSocket, 'authorized' | 'getPeerX509Certificate'>>

/** Addresses of clients by the socket of their balancer. */
const named = new WeakMap<object, string>()

/** @param address of the client of a connection, as the balancer before us says */
export function nameClient(socket: Socket, address: string): void {
  named.set(socket, address)
}

/** Stands for the address of all clients of a Unix socket. */
export const UNIX = 'unix'

export function unixPeerOf(socket: PeerSocket): PeerAddress {
  return { peer: UNIX, peerKey: UNIX, certificate: certificateOf(socket) }
}

/** @returns undefined: it has reset the connection before it was accepted. Nobody is there, and nobody knows who it was */
export function peerOf(socket: PeerSocket): PeerAddress | undefined {
  // Node does not declare the socket below TLS. Tested with Node 20.
  const { remoteAddress, _parent: below } = socket as PeerSocket & { readonly _parent?: Socket }
  const peer = remoteAddress === undefined ? undefined : readAddress(named.get(below ?? socket) ?? remoteAddress)
  if (peer === undefined) return undefined
  return { peer, peerKey: addressKey(peer), certificate: certificateOf(socket) }
}

function certificateOf(socket: PeerSocket): string | undefined {
  const certificate = socket.authorized ? socket.getPeerX509Certificate?.() : undefined
  return certificate?.fingerprint256.replaceAll(':', '').toLowerCase()
}

/** Whether the hop at `distance` (0: the peer itself) may name the hop before it. */
export type Trust = (address: string, distance: number) => boolean

export function createTrust(setting: boolean | number | readonly string[]): Trust {
  if (typeof setting === 'boolean') return () => setting
  if (typeof setting === 'number') return (_address, distance) => distance < setting
  const trusted = new BlockList()
  for (const network of setting.flatMap(entry => ownValue(NAMED_NETWORKS, entry) ?? [entry])) {
    const [address, prefix] = network.split('/') as [string, string | undefined]
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (prefix === undefined) trusted.addAddress(address, family)
    else trusted.addSubnet(address, Number(prefix), family)
  }
  // A client of a Unix socket is on this machine.
  const trustsUnix = setting.includes('loopback')
  return address => (address === UNIX ? trustsUnix : trusted.check(address, isIP(address) === 6 ? 'ipv6' : 'ipv4'))
}

/**
 * The client's address: the nearest hop that is not trusted, read from the right of X-Forwarded-For. If an entry is no
 * address, it is the trusted hop that wrote the entry. Reads at most 100 entries, and only as many as needed.
 *
 * @param forwardedFor the values of all X-Forwarded-For lines, in order
 */
export function clientAddress(peer: string, forwardedFor: readonly string[], trust: Trust): string {
  let client = peer
  let distance = 0
  for (const entry of fromTheRight(forwardedFor)) {
    // Empty list elements are ignored (RFC 9110 5.6.1).
    if (entry.trim() === '') continue
    if (!trust(client, distance)) break
    const before = bareAddress(entry)
    if (before === undefined) break
    client = before
    distance += 1
  }
  return canonical(client)
}

/** The entries of consecutive lists, last first, at most `MAX_HOPS`. */
function* fromTheRight(lists: readonly string[]): Generator<string> {
  let hops = 0
  for (let at = lists.length - 1; at >= 0 && hops < MAX_HOPS; at -= 1) {
    const list = lists[at]!
    for (let end = list.length; end >= 0 && hops < MAX_HOPS; hops += 1) {
      const comma = end === 0 ? -1 : list.lastIndexOf(',', end - 1)
      yield list.slice(comma + 1, end)
      end = comma
    }
  }
}
