/**
 * Egress: programs name the server that a request is for, and it goes there if the configuration allows it.
 *
 * Each allowed origin is an upstream like any other (config/derived/egress-routes.ts), so a request only has to say which one it
 * means. What it says is read into one spelling and looked up among the allowed ones. Nothing that a client sends reaches the
 * connection, the certificate check or the Host header: those come from the entry that was found.
 *
 * A name is resolved once for each connection. The addresses are checked here, and the socket connects to those that pass, so
 * a second answer of the DNS changes nothing.
 */
import { type LookupAddress, type LookupOptions, lookup as lookupName } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import ipaddr from 'ipaddr.js'
import { type EgressOrigins, originsOf } from '../../config/derived/egress-routes.js'
import type { EgressSettings } from '../../config/settings.js'
import { createTokenCheck, pageDenial } from '../../http/access.js'
import { formatAuthority, readAuthority } from '../../http/authority.js'
import { AddressRanges, parseRange } from '../../http/matching/address-ranges.js'
import { type Destination, type EgressReader, firstLine, hasSeveralLines, Refusal } from '../http/request.js'
import { FORBIDDEN_ADDRESS } from '../upstream/upstream-error.js'

/** Finds all addresses of a name. That of the system, but for tests. */
export type ResolveName = (
  name: string,
  options: LookupOptions & { readonly all: true },
  done: (error: NodeJS.ErrnoException | null, addresses: LookupAddress[]) => void,
) => void

/** Characters of an authority that a refusal repeats. */
const LONGEST_SHOWN = 100
const PORTS = { http: 80, https: 443 } as const

export class Egress implements EgressReader {
  readonly #resolve: ResolveName
  #isToken: ((sent: string) => boolean) | undefined
  #origins!: EgressOrigins

  constructor(settings: EgressSettings, resolve: ResolveName = lookupName) {
    this.#resolve = resolve
    this.configure(settings)
  }

  configure(settings: EgressSettings): void {
    this.#isToken = settings.token === undefined ? undefined : createTokenCheck(settings.token)
    this.#origins = originsOf(settings.allow)
  }

  /** The origin of a destination, as in `RouteSettings.origin`. */
  find(destination: Destination): string | Refusal {
    const denied = this.#denial(destination)
    if (denied !== undefined) return denied
    const { form, scheme, authority } = destination
    const { host, port = form === 'connect' ? undefined : PORTS[scheme] } = readAuthority(authority) ?? {}
    if (host === undefined || port === undefined) {
      return new Refusal(400, 'the authority of the request target is malformed', 'close')
    }
    const origins = this.#origins.get(formatAuthority(host, port))
    const origin = form === 'connect' ? (origins?.https ?? origins?.http) : origins?.[scheme]
    if (origin !== undefined) return origin
    const shown = authority.length > LONGEST_SHOWN ? `${authority.slice(0, LONGEST_SHOWN)}...` : authority
    const what = form === 'connect' ? shown : `${scheme}://${shown}`
    return new Refusal(
      403,
      `${what} is not allowed; the operator can add its host and port to "egress": { "allow": [...] }`,
    )
  }

  #denial({ form, rawHeaders, host, encrypted }: Destination): Refusal | undefined {
    if (this.#isToken !== undefined) {
      const isSingle = !hasSeveralLines(rawHeaders, 'proxy-authorization')
      const sent = tokenIn(firstLine(rawHeaders, 'proxy-authorization') ?? '')
      if (isSingle && sent !== undefined && this.#isToken(sent)) return undefined
      return new Refusal(407, 'send the token as Proxy-Authorization, e.g. as the password in the URL of the proxy')
    }
    // No page makes a browser send the other forms to a server that is not its proxy.
    if (form !== 'path') return undefined
    const [origin, fetchSite] = [firstLine(rawHeaders, 'origin'), firstLine(rawHeaders, 'sec-fetch-site')]
    const status = pageDenial({ host, origin, fetchSite }, encrypted ? 'https' : 'http')
    if (status === 421) return new Refusal(status, 'use an IP address or localhost in the URL, or give egress a token')
    return status && new Refusal(status, 'requests from pages of other sites are not allowed')
  }

  /** In the place of `dns.lookup`, for connections to this port: finds only addresses that may be connected to. */
  lookupFor(port: number): LookupFunction {
    return (name, options, callback) => {
      this.#resolve(name, { ...options, all: true }, (error, found) => {
        if (error !== null) return callback(error, '')
        const allowed = found.filter(({ address }) => this.#mayConnect(address, port))
        const [first] = allowed
        if (first === undefined) return callback(forbidden(name, found), '')
        if (options.all) callback(null, allowed)
        else callback(null, first.address, first.family)
      })
    }
  }

  /** An address that is allowed as such may have names, too. */
  #mayConnect(address: string, port: number): boolean {
    if (!isSpecialAddress(address)) return true
    return ipaddr.isValid(address) && this.#origins.has(formatAuthority(ipaddr.process(address).toString(), port))
  }
}

/** A token as `Bearer TOKEN`, or as the password or the only part of `Basic`. */
function tokenIn(authorization: string): string | undefined {
  const [, scheme = '', value = ''] = /^(Bearer|Basic) +([A-Za-z0-9\-._~+/]+=*) *$/i.exec(authorization) ?? []
  if (scheme.toLowerCase() !== 'basic') return value || undefined
  const [user = '', ...rest] = Buffer.from(value, 'base64').toString('latin1').split(':')
  return rest.join(':') || user || undefined
}

function forbidden(name: string, found: readonly LookupAddress[]): Error {
  const addresses = found.map(({ address }) => address).join(', ') || 'nothing'
  return Object.assign(new Error(`${name} resolves to ${addresses}, which may not be connected to`), {
    code: FORBIDDEN_ADDRESS,
  })
}

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
const special = new AddressRanges([
  ...[...SPECIAL_IPV4, ...SPECIAL_IPV6].map(range => [parseRange(range)!, true] as const),
  ...['0.0.0.0/0', '2000::/3'].map(range => [parseRange(range)!, false] as const),
])

/**
 * Whether an address is loopback, private, link-local or otherwise not public. So is a text that is no address.
 *
 * Of IPv6 only global unicast (2000::/3) is public, without what is reserved in it or leads into IPv4. So forms of IPv4 that
 * nobody thought of are special, too. Two forms are judged by the IPv4 address in them: mapped addresses, and those of NAT64,
 * which is all that a name has on a network with IPv6 alone.
 */
export function isSpecialAddress(address: string): boolean {
  const [bare = ''] = address.split('%')
  if (isIP(bare) === 0) return true
  return special.find(ipaddr.process(bare).toString()) !== false
}
