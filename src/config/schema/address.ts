/** Addresses: where to listen, where to forward, which proxies to trust. */
import { isIP, isIPv4, isIPv6 } from 'node:net'
import * as z from 'zod'
import { readAuthority } from '../../http/authority.js'
import { hint, quote, quoteUrl, type RefusedValue, wants } from '../messages.js'
import type { Listen } from '../settings.js'
import { flag, object, read, text, whole } from './values.js'

/** Where to listen when the file does not say. */
export const DEFAULT_LISTEN = '127.0.0.1:8080'

/** The URL of an upstream that stands for the proxy that asks. */
export const GATE = 'gate:'

/** Upstreams that shaper is itself. */
export const BUILT_IN: readonly string[] = ['echo:', GATE]

const DEFAULT_HOST = '127.0.0.1'
const LISTEN_PORT = 8080
const ADMIN_PORT = 9090
const GRPC_PORT = 50_051
const MOST_PORT = 65_535
const useAddress = (port: number) => `use e.g. "127.0.0.1:${port}", "[::1]:${port}"`
const noSuchPort = (shown: string, more = '') => `${shown} has no such port; ports go from 1 to ${MOST_PORT}${more}`
const LISTEN = useAddress(LISTEN_PORT)
const RANGES = ['loopback', 'linklocal', 'uniquelocal']

/**
 * Reads `"host:port"`, `"[::1]:8080"`, `":8080"` or `"8080"`. The default host is 127.0.0.1.
 *
 * @param example the port that messages propose
 * @throws RangeError
 */
export function parseListen(value: string, example = LISTEN_PORT): { host: string; port: number } {
  const [, v6, v4, digits] = /^(?:\[([^\]]*)\]:|([^:[\]]*):)?(\d+)$/.exec(value) ?? []
  const host = v6 ?? (v4 || DEFAULT_HOST)
  if (digits === undefined) throw new RangeError(listenFault(value, example))
  if (Number(digits) > MOST_PORT) throw new RangeError(noSuchPort(quote(value), ', and 0 is any free one'))
  const good = v6 === undefined ? isIPv4(host) || isHostName(host) : isIPv6(host)
  if (!good) throw new RangeError(listenFault(value, example))
  return { host, port: Number(digits) }
}

function listenFault(value: string, port: number): string {
  if (isIPv6(value)) return `${quote(value)} needs brackets and a port; write "[${value}]:${port}"`
  if (isIPv4(value) || isHostName(value)) return `${quote(value)} has no port; write "${value}:${port}"`
  return `${quote(value)} is not an address to listen on; ${useAddress(port)}`
}

function isHostName(value: string): boolean {
  return !value.includes(':') && !isIPv4(value) && readAuthority(value) !== undefined
}

/** Whether only this machine can reach a host. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'))
}

/** The inverse of `parseListen`. */
export function formatListen({ host, port }: { host: string; port: number }): string {
  return isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`
}

/**
 * Reads an upstream's URL down to its origin, `"http://host:port"`, `"echo:"` or `"gate:"`.
 *
 * @throws RangeError with the reason, without the credentials of the URL
 */
export function parseUpstreamUrl(value: string): string {
  if (BUILT_IN.includes(value)) return value
  const shown = quoteUrl(value)
  const url = URL.canParse(value) ? new URL(value) : undefined
  const [, port] = /^https?:\/\/[^/?#]*:(\d+)(?:[/?#]|$)/i.exec(value) ?? []
  if (port !== undefined && !isPort(Number(port))) throw new RangeError(noSuchPort(shown))
  if (!url || !/^https?:\/\//i.test(value)) {
    const near = !value.includes('://') && /^[\w.-]+(:\d+)?$/.test(value) ? `; write "http://${value}"` : undefined
    throw new RangeError(
      `${shown} is not an upstream's URL${near ?? '; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"'}`,
    )
  }
  return originOf(url, value)
}

function isPort(port: number): boolean {
  return port > 0 && port <= MOST_PORT
}

/** @throws RangeError: the URL has more than an origin, or no host */
function originOf(url: URL, value: string): string {
  const shown = quoteUrl(value)
  if (readAuthority(url.host) === undefined) {
    throw new RangeError(`${shown} names no host; use e.g. "http://127.0.0.1:9000"`)
  }
  const origin = `${url.protocol}//${url.host}`
  if (url.username || url.password) throw new RangeError(`${shown} carries credentials; write "${origin}"`)
  if (url.search || url.hash || value.includes('?') || value.includes('#')) {
    throw new RangeError(`${shown} has a query or fragment, but requests keep their own; write "${origin}"`)
  }
  if (url.pathname !== '/') throw new RangeError(`${shown} has a path, but requests keep their own; write "${origin}"`)
  return origin
}

/** @throws RangeError */
function parseTrusted(value: string): string {
  if (RANGES.includes(value)) return value
  const [, address = '', prefix] = /^([^/%]+)(?:\/(\d{1,3}))?$/.exec(value) ?? []
  const version = isIP(address)
  const longest = version === 4 ? 32 : 128
  if (version !== 0 && Number(prefix ?? 0) <= longest) return value
  if (version !== 0)
    throw new RangeError(`${quote(value)} has a prefix above ${longest}; use e.g. "${address}/${longest}"`)
  throw new RangeError(
    /^[a-z]+$/i.test(value)
      ? `${quote(value)} is not a named range; ${hint(value, RANGES, 'known ranges')}`
      : `${quote(value)} is not an address or CIDR; use e.g. "10.0.0.0/8", "fd00::/8", "loopback"`,
  )
}

/** As `wants`. To a number that may be a port it says the whole address. */
const wantsAddress = (remedy: string) => (refused: RefusedValue) => {
  const { input } = refused
  if (typeof input !== 'number' || !Number.isInteger(input) || input < 0 || input > MOST_PORT)
    return wants('an address to listen on', remedy)(refused)
  return `${input} is a number, and an address is a text; write "${DEFAULT_HOST}:${input}"`
}
const addressText = (port: number) =>
  read(z.string({ error: wantsAddress(useAddress(port)) }), value => parseListen(value, port))
const listenText = addressText(LISTEN_PORT)
const file = (what: string) => text(`the path of ${what}`, 'use e.g. "/etc/shaper/tls.pem"')

const listenObject = object(
  {
    address: listenText.describe('Where to listen, e.g. "0.0.0.0:8443".'),
    tls: object(
      {
        cert: file('a certificate').describe('PEM file of the certificate chain, e.g. "/etc/shaper/cert.pem".'),
        key: file('a private key').describe('PEM file of the private key, e.g. "/etc/shaper/key.pem".'),
      },
      'an object',
      'use { "cert": "FILE", "key": "FILE" }',
    )
      .exactOptional()
      .describe('Serve HTTPS with these files, e.g. { "cert": "cert.pem", "key": "key.pem" }.'),
    grpc: addressText(GRPC_PORT)
      .exactOptional()
      .describe('Where routes with "upstream": "gate:" are asked by gRPC, as Envoy does, e.g. "127.0.0.1:50051".'),
  },
  'an object',
  'use { "address": "host:port", "tls": { "cert": "FILE", "key": "FILE" } }',
)

export const adminAddress = addressText(ADMIN_PORT)

export const listenSchema = z.union(
  [
    listenText.transform((address): Listen => address),
    listenObject.transform(
      ({ address, tls, grpc }): Listen => ({ ...address, ...(tls && { tls }), ...(grpc && { grpc }) }),
    ),
  ],
  {
    error: wantsAddress(`${LISTEN} or { "address": "host:port", "tls": { "cert": "FILE", "key": "FILE" } }`),
  },
)

const trustError = wants('a choice of trusted proxies', 'use true, false, a hop count, or a list such as ["loopback"]')

export const trustProxy = z.union(
  [
    flag,
    whole('a hop count', 'use a whole number of hops, e.g. 1', 0).transform(hops => (hops === 0 ? false : hops)),
    z.array(read(z.string({ error: wants('an address', 'use e.g. "10.0.0.0/8", "loopback"') }), parseTrusted)),
  ],
  { error: trustError },
)
