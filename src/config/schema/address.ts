/** Addresses: where to listen, where to forward, which proxies to trust. */
import { isIP, isIPv4, isIPv6 } from 'node:net'
import { normalize } from 'node:path'
import * as z from 'zod'
import { defined } from '../../core/structures/defined.js'
import { readAuthority } from '../../http/authority.js'
import { faultOfSocketPath, socketPathOf } from '../../http/unix-socket.js'
import { hint, quote, quoteUrl, type RefusedValue, wants } from '../messages.js'
import { alone, flag, maybe, NOT_THIS_FORM, object, read, report, someOf, text, whole } from './values.js'

export const DEFAULT_LISTEN = '127.0.0.1:8080'
/** The URL of an upstream that stands for the proxy that asks. */
export const GATE = 'gate:'
/** The URL of an upstream that stands for all allowed origins. */
export const EGRESS = 'egress:'
/** Upstreams that shaper is itself. */
export const BUILT_IN: readonly string[] = ['echo:', GATE]
const DEFAULT_HOST = '127.0.0.1'
export const LISTEN_PORT = 8080
const ADMIN_PORT = 9090
const MOST_PORT = 65_535
const EXAMPLE_SOCKET = '"unix:/run/shaper.sock"'
const useAddress = (port: number) => `use e.g. "127.0.0.1:${port}", "[::1]:${port}" or ${EXAMPLE_SOCKET}`
const noSuchPort = (shown: string, more = '') => `${shown} has no such port; ports go from 1 to ${MOST_PORT}${more}`
const LISTEN = useAddress(LISTEN_PORT)
/** As FileDescriptorName= of systemd. */
const SOCKET_NAME = /^[^:\p{Cc}]{1,255}$/u
const NO_SOCKET_NAME =
  'does not name a socket of systemd; write "systemd:NAME" with its FileDescriptorName=, or "systemd" for all'
const RANGES = ['loopback', 'linklocal', 'uniquelocal']

/** Where to listen: an address of TCP, the path of a Unix socket, or a socket that systemd gives. */
export type ListenAddress =
  | {
      /** Without the brackets of an IPv6 address. */
      host: string
      /** 0: any free port. */
      port: number
    }
  | { path: string }
  | {
      /** The name of the socket. Empty: all that no other listener names. */
      systemd: string
      /** The file descriptor. Undefined: it is asked for at the start. */
      fd?: number
    }

/** `"host:port"`, `"[::1]:8080"`, `":8080"`, `"8080"`, `"unix:/path"`, `"systemd"` or `"systemd:NAME"`. @param example a port for messages. @throws RangeError */
export function parseListen(value: string, example = LISTEN_PORT): ListenAddress {
  const path = socketPathOf(value)
  if (path !== undefined) {
    checkSocket(value, path)
    return { path: normalize(path) }
  }
  const [, systemd, colon, name = ''] = /^(systemd)(?:(:)(.*))?$/s.exec(value) ?? []
  if (systemd !== undefined) {
    if (colon !== undefined && !SOCKET_NAME.test(name)) throw new RangeError(`${quote(value)} ${NO_SOCKET_NAME}`)
    return { systemd: name }
  }
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

/** Whether certainly only programs of this machine can connect. */
export function isLocal(address: ListenAddress): boolean {
  if ('systemd' in address) return false
  if ('path' in address) return true
  const { host } = address
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'))
}

export function formatListen(address: ListenAddress): string {
  if ('path' in address) return `unix:${address.path}`
  if ('systemd' in address) return address.systemd === '' ? 'systemd' : `systemd:${address.systemd}`
  const { host, port } = address
  return isIPv6(host) ? `[${host}]:${port}` : `${host}:${port}`
}

/** Down to its origin: `"http://host:port"`, `"unix:/path"`, `"echo:"` or `"gate:"`. @throws RangeError without credentials of the URL */
export function parseUpstreamUrl(value: string): string {
  if (BUILT_IN.includes(value)) return value
  const path = socketPathOf(value)
  if (path !== undefined) {
    checkSocket(value, path)
    return `unix:${normalize(path)}`
  }
  const shown = quoteUrl(value)
  const [, socket] = /^https?:\/\/unix:([^:]*)/i.exec(value) ?? []
  if (socket !== undefined) throw new RangeError(`${shown} is how nginx writes it; write "unix:${socket}"`)
  const url = URL.canParse(value) ? new URL(value) : undefined
  const [, port] = /^https?:\/\/[^/?#]*:(\d+)(?:[/?#]|$)/i.exec(value) ?? []
  if (Number(port) === 0 || Number(port) > MOST_PORT) throw new RangeError(noSuchPort(shown))
  if (!url || !/^https?:\/\//i.test(value)) {
    const near = !value.includes('://') && /^[\w.-]+(:\d+)?$/.test(value) ? `; write "http://${value}"` : undefined
    throw new RangeError(
      `${shown} is not an upstream's URL${near ?? '; use e.g. "http://127.0.0.1:9000", "https://api.example.com" or "echo:"'}`,
    )
  }
  return originOf(url, value)
}

/** @throws RangeError */
function checkSocket(value: string, path: string): void {
  const fault = faultOfSocketPath(path)
  if (fault !== undefined) throw new RangeError(`${quote(value)} ${fault}`)
}

/** @throws RangeError: the URL has more than an origin, or no host */
function originOf(url: URL, value: string): string {
  const shown = quoteUrl(value)
  if (readAuthority(url.host) === undefined)
    throw new RangeError(`${shown} names no host; use e.g. "http://127.0.0.1:9000"`)
  const origin = `${url.protocol}//${url.host}`
  if (url.username || url.password) throw new RangeError(`${shown} carries credentials; write "${origin}"`)
  if (url.search || url.hash || value.includes('?') || value.includes('#'))
    throw new RangeError(`${shown} has a query or fragment, but requests keep their own; write "${origin}"`)
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
  read(z.string({ error: wantsAddress(useAddress(port)) }), value => parseListen(value, port), formatListen)
const listenText = addressText(LISTEN_PORT)
const file = (what: string) => text(`the path of ${what}`, 'use e.g. "/etc/shaper/tls.pem"')

const trusted = read(z.string({ error: wants('an address', 'use e.g. "10.0.0.0/8", "loopback"') }), parseTrusted)
const BALANCERS = 'use the addresses of what is in front, e.g. ["10.0.0.0/8"]'
const LISTEN_OBJECT = '{ "address": "host:port", "tls": { "cert": "FILE", "key": "FILE" } }'
const MODE_REMEDY = 'use e.g. "0660"'
const mode = read(
  z.string({ error: wants('the mode of a file', MODE_REMEDY) }),
  value => {
    if (!/^0?[0-7]{3}$/.test(value)) throw new RangeError(`${quote(value)} is not the mode of a file; ${MODE_REMEDY}`)
    return Number.parseInt(value, 8)
  },
  bits => `0${bits.toString(8).padStart(3, '0')}`,
)

const socketMode = maybe(mode).describe('Who may connect to a Unix socket, e.g. "0660"; as the umask says when absent.')

function checkMode(given: number | undefined, address: ListenAddress, ctx: Parameters<typeof report>[0]): void {
  if (given === undefined || 'path' in address) return
  const fault = 'host' in address ? 'only a Unix socket has a mode' : 'systemd makes the socket, with its SocketMode='
  report(ctx, 'mode', `${fault}; remove it`)
}

/** Said of a Unix socket with `proxyProtocol`. */
export const NO_PEER_ADDRESS = 'peers on a Unix socket have no address; remove it, or listen on an address'

const listenObject = object(
  {
    address: listenText.describe('Where to listen, e.g. "0.0.0.0:8443", "unix:/run/shaper.sock" or "systemd".'),
    mode: socketMode,
    tls: maybe(
      object(
        {
          cert: file('a certificate').describe('PEM file of the certificate chain, e.g. "/etc/shaper/cert.pem".'),
          key: file('a private key').describe('PEM file of the private key, e.g. "/etc/shaper/key.pem".'),
          clientCa: maybe(file('a CA file')).describe(
            'PEM file of the authorities whose certificate each client needs, e.g. "/etc/shaper/clients.pem".',
          ),
        },
        'use { "cert": "FILE", "key": "FILE" }',
      ),
    ).describe('Serve HTTPS with these files, e.g. { "cert": "cert.pem", "key": "key.pem" }.'),
    proxyProtocol: maybe(someOf(trusted, wants('a list of addresses', BALANCERS), BALANCERS)).describe(
      'Who has to begin each connection with a PROXY header, e.g. ["10.0.0.0/8"].',
    ),
  },
  `use ${LISTEN_OBJECT}`,
).superRefine(({ address, mode: given, proxyProtocol }, ctx) => {
  checkMode(given, address, ctx)
  if (proxyProtocol !== undefined && 'path' in address) report(ctx, 'proxyProtocol', NO_PEER_ADDRESS)
})

const adminAddress = addressText(ADMIN_PORT)
const adminObject = object(
  {
    address: adminAddress.describe('Where to listen, e.g. "127.0.0.1:9090" or "unix:/run/shaper-admin.sock".'),
    mode: socketMode,
  },
  'use { "address": "unix:/run/shaper-admin.sock", "mode": "0660" }',
).superRefine(({ address, mode: given }, ctx) => checkMode(given, address, ctx))

type AdminListen = ListenAddress & { mode?: number }

/** Where the admin server listens. */
export const adminListen = z.union(
  [
    read(
      adminAddress,
      (address): AdminListen => address,
      ({ mode: given, ...address }) => {
        if (given !== undefined) throw NOT_THIS_FORM
        return address
      },
    ),
    read(
      adminObject,
      ({ address, ...rest }): AdminListen => ({ ...address, ...rest }),
      ({ mode: given, ...address }) => ({ address, ...defined({ mode: given }) }),
    ),
  ],
  { error: wantsAddress(useAddress(ADMIN_PORT)) },
)

type Listen = ListenAddress & {
  mode?: number
  tls?: { cert: string; key: string; clientCa?: string }
  proxyProtocol?: string[]
}

const plainListen = read(
  listenText,
  (address): Listen => address,
  ({ mode: given, tls, proxyProtocol, ...address }) => {
    if (given !== undefined || tls !== undefined || proxyProtocol !== undefined) throw NOT_THIS_FORM
    return address
  },
)
const fullListen = read(
  listenObject,
  ({ address, ...rest }): Listen => ({ ...address, ...rest }),
  ({ mode: given, tls, proxyProtocol, ...address }) => ({ address, ...defined({ mode: given, tls, proxyProtocol }) }),
)
const wantsListen = wantsAddress(
  `use e.g. "127.0.0.1:${LISTEN_PORT}", ${EXAMPLE_SOCKET}, ${LISTEN_OBJECT} or a list of these`,
)

export const listenSchema = z.union(
  [
    alone(plainListen),
    alone(fullListen),
    z
      .array(z.union([plainListen, fullListen], { error: wantsListen }))
      .min(1, { error: `the list is empty; ${LISTEN}` }),
  ],
  { error: wantsListen },
)

const trustError = wants('a choice of trusted proxies', 'use true, false, a hop count, or a list such as ["loopback"]')

export const trustProxy = z.union(
  [
    flag,
    read(whole('a hop count', 'use a whole number of hops, e.g. 1', 0), hops => (hops === 0 ? false : hops), Number),
    z.array(trusted),
  ],
  { error: trustError },
)
