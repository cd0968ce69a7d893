/**
 * Tunnels for upgrade requests. http-proxy sends the request and joins the sockets. This file adds what it lacks:
 * sockets that break early, answers other than 101, exact paths and headers, timeouts, and exactly one end.
 */
import type { ClientRequest, IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { createRequire } from 'node:module'
import { connect, type LookupFunction, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { checkServerIdentity } from 'node:tls'
import type HttpProxy from 'http-proxy'
import type { TlsFiles } from '../../config/checks/readable-files.js'
import type { ConnectionLimit } from './connection-limit.js'
import type { ServerAddress } from './opener.js'
import type { UpstreamServer } from './upstream-server.js'

// http-proxy takes `util._extend` while it loads. From Node 22 on, its first call would print DEP0060.
const require = createRequire(import.meta.url)
const util = require('node:util')
const { _extend } = util
util._extend = Object.assign
const { createProxyServer } = require('http-proxy') as typeof HttpProxy
util._extend = _extend

const TUNNEL_LINGER = 5_000 // ms for one peer to close after the other side has ended
const MAX_EARLY = 16 * 1024 // bytes read ahead to notice a hang-up; a client that sends more hides its hang-up
/** Hop-by-hop headers that are made anew. Trailer has no meaning without chunks. Upgrade stays: it is part of the answer. */
const DROPPED = ['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding']
const ignore = () => undefined

/** `host` is a name or an address (IPv6 without brackets). `servername` is the name to ask for and to verify instead. */
interface TunnelTarget extends ServerAddress, TlsFiles {
  readonly protocol: 'http:' | 'https:'
  readonly lookup?: LookupFunction
  readonly servername?: string
  readonly checkServerIdentity?: typeof checkServerIdentity
}

export interface TunnelOptions {
  readonly target: TunnelTarget
  readonly socket: Duplex // the client's, no longer read as HTTP
  readonly head: Buffer // bytes that came behind the request
  readonly path: string // byte for byte
  readonly headers: readonly string[] // names and values in turn, no hop-by-hop ones, Host first
  /** In ms, 0 for none: until a connection (with TLS), from there until the answer, and between bytes of that answer. */
  readonly connectTimeout: number
  readonly handshakeTimeout: number
  readonly idleTimeout: number
  /** In ms, 0 for none: how long a tunnel may be without a byte in either direction. */
  readonly tunnelIdleTimeout: number
  /** Headers to add to the answer, 101 or not: names and values in turn. */
  readonly answerHeaders?: (() => readonly string[]) | undefined
  /** The upstream answered: with 101, or with something else that the client gets instead of a tunnel. */
  readonly onResponse?: ((status: number, headers: IncomingHttpHeaders) => void) | undefined
  /** Called exactly once, after `openTunnel` has returned. */
  readonly onEnd: (end: TunnelEnd) => void
}

/** After `failed` and `abandoned` the client's socket is untouched, and the caller answers it. All others are destroyed. */
export type TunnelEnd =
  | { readonly kind: 'closed'; readonly idle?: true }
  | { readonly kind: 'answered'; readonly status: number }
  | { readonly kind: 'client-gone' }
  | { readonly kind: 'abandoned' }
  | {
      readonly kind: 'failed'
      readonly status: 502 | 504
      readonly error: Error
      /** There was no connection: the upstream has seen nothing of it. */
      readonly unconnected: boolean
    }

export interface Tunnel {
  close(): void
}

export function openTunnel(options: TunnelOptions): Tunnel {
  const { target, headers } = options
  const socket = options.socket as Socket
  let over = false
  let connected = false
  let end: TunnelEnd = { kind: 'client-gone' } // until there is an answer
  let request: ClientRequest | undefined
  let timer: NodeJS.Timeout | undefined
  const cut = () => finish(end)
  const unwatch = watchUpgradeSocket(socket, cut)

  function finish(how: TunnelEnd): void {
    if (over) return
    over = true
    clearTimeout(timer)
    unwatch()
    request?.destroy()
    request?.socket?.destroy()
    if (how.kind !== 'failed' && how.kind !== 'abandoned') socket.destroy()
    process.nextTick(options.onEnd, how)
  }

  function fail(status: 502 | 504, error: Error): void {
    if (end.kind === 'client-gone') finish({ kind: 'failed', status, error, unconnected: !connected })
  }

  function limit(ms: number, what: string): void {
    clearTimeout(timer)
    if (ms > 0) timer = setTimeout(() => fail(504, new Error(`${what} within ${ms} ms`)), ms)
  }

  function added(): [name: string, value: string][] {
    return pairsOf(options.answerHeaders?.() ?? [])
  }

  /** From here on the client's socket is ours. Once everything is written to it, it only has to close. */
  function answered({ statusCode, headers }: IncomingMessage, how: TunnelEnd, idleTimeout: number): void {
    end = how
    clearTimeout(timer)
    unwatch()
    socket.once('close', cut).once('finish', () => (timer = setTimeout(cut, TUNNEL_LINGER)))
    const idle = () => finish(how.kind === 'closed' ? { kind: 'closed', idle: true } : how)
    if (idleTimeout > 0) socket.setTimeout(idleTimeout, idle)
    options.onResponse?.(statusCode!, headers)
  }

  /** Runs before http-proxy's own listener. That one writes the 101 from `headers` and joins the sockets. */
  function relay(response: IncomingMessage, upgraded: Socket): void {
    answered(response, { kind: 'closed' }, options.tunnelIdleTimeout)
    if (options.head.length > 0 && !socket.readableEnded) socket.unshift(options.head)
    const byName = new Map<string, string[]>()
    for (const [name, value] of [...passedOn(response.rawHeaders), ...added()])
      byName.set(name, [...(byName.get(name) ?? []), value])
    response.headers = Object.fromEntries(byName) as unknown as IncomingMessage['headers']
    socket.setDefaultEncoding('latin1')
    // The client's socket holds everything received. What it still sends has no reader, so read it once it is unpiped.
    upgraded.once('close', () => process.nextTick(() => socket.resume().end()))
    // The client has closed and the upstream has everything. The upstream may still send, but must not be silent.
    upgraded.once('finish', () => upgraded.setTimeout(TUNNEL_LINGER, () => socket.writableLength === 0 && cut()))
  }

  /** Replaces http-proxy's handler, which garbles chunks and trailers. Here the end of the connection ends the body. */
  function answer(response: IncomingMessage): void {
    const status = response.statusCode!
    if (status === 101) return fail(502, new Error('a 101 of the upstream names no protocol'))
    // The parser reads the status as a number and loses leading zeros.
    if (status < 200 || status > 599) return fail(502, new Error(`the upstream answered with the status ${status}`))
    answered(response, { kind: 'answered', status }, options.idleTimeout)
    // After a FIN a cut answer would look complete. In TLS the missing close_notify tells.
    const plain = socket.remoteAddress !== undefined && !('encrypted' in socket)
    const broken = () => response.complete || over || (plain ? socket.resetAndDestroy() : cut())
    response.on('error', ignore).once('close', broken)
    request!.on('error', broken)
    socket.once('end', cut)
    const lines = [...passedOn(response.rawHeaders, 'close'), ...added()].map(
      ([name, value]) => `${name}: ${value}\r\n`,
    )
    socket.write(`HTTP/1.1 ${status} ${response.statusMessage}\r\n${lines.join('')}\r\n`, 'latin1')
    response.pipe(socket.resume())
  }

  function prepare(outgoing: ClientRequest): void {
    request = outgoing.on('error', ignore).once('upgrade', relay)
    const ready = target.protocol === 'https:' ? 'secureConnect' : 'connect'
    outgoing.once('socket', to =>
      to.once(ready, () => {
        connected = true
        limit(options.handshakeTimeout, 'no answer of the upstream')
      }),
    )
    // http-proxy would collapse slashes; Node does not check what is assigned.
    if (/[^\x21-\xff]/.test(options.path)) throw new TypeError('the path does not fit in a request line')
    outgoing.path = options.path
    for (const name of outgoing.getHeaderNames()) outgoing.removeHeader(name)
    for (let at = 0; at < headers.length; at += 2) outgoing.appendHeader(headers[at]!, headers[at + 1]!)
    outgoing.setHeader('Connection', 'Upgrade').setHeader('Upgrade', 'websocket')
  }

  const tunnel: Tunnel = { close: () => finish(end.kind === 'client-gone' ? { kind: 'abandoned' } : end) }
  if (socket.destroyed) return tunnel
  try {
    const { protocol, host, port, path, ca, cert, key, ...identity } = target
    // No Host header here: Node would check the certificate against the client's Host instead of the target.
    const ssl = { ...identity, maxHeaderSize: 64 * 1024 }
    const settings = {
      target: { protocol, host, port, socketPath: path, ca, cert, key },
      ssl,
    } as HttpProxy.ServerOptions
    const minimal = { method: 'GET', url: '/', headers: { connection: 'upgrade', upgrade: 'websocket' }, socket }
    const proxy = createProxyServer().once('proxyReqWs', prepare)
    limit(options.connectTimeout, 'no connection to the upstream')
    proxy.ws(minimal as unknown as IncomingMessage, socket, Buffer.alloc(0), settings, ignore)
    // http-proxy's own error listener would end the client's socket, which is still needed for a 502.
    request!.removeAllListeners('error').on('error', error => fail(502, error))
    request!.removeAllListeners('response').once('response', answer)
  } catch (error) {
    fail(502, error as Error)
  }
  return tunnel
}

/**
 * Notices that the client of a waiting upgrade request hangs up (a FIN counts), and calls `gone` once. `gone` destroys
 * the socket. From now on errors of the socket are caught. Bytes that had to be read are given back.
 *
 * @returns stops watching; call it before `openTunnel`, which watches for itself
 */
export function watchUpgradeSocket(socket: Duplex, gone: () => void): () => void {
  let early = Buffer.alloc(0)
  const leave = () => stop() && gone()

  function read(): void {
    if (early.length < MAX_EARLY) early = Buffer.concat([early, socket.read() ?? Buffer.alloc(0)])
  }

  function stop(): boolean {
    if (!socket.listeners('readable').includes(read)) return false
    socket.off('readable', read).off('end', leave).off('error', leave).off('close', leave)
    if (early.length > 0 && !socket.destroyed && !socket.readableEnded) socket.unshift(early)
    return true
  }

  if (!socket.listeners('error').includes(ignore)) socket.on('error', ignore)
  socket.on('readable', read).on('end', leave).on('error', leave).on('close', leave)
  if (socket.destroyed || socket.readableEnded) process.nextTick(leave)
  else read()
  return stop
}

/** The headers of an answer that the client gets. */
function passedOn(raw: readonly string[], close?: 'close'): [name: string, value: string][] {
  const pairs = pairsOf(raw)
  const named = pairs.flatMap(([name, value]) => (/^connection$/i.test(name) ? value.toLowerCase().split(/[, ]+/) : []))
  const dropped = new Set([...DROPPED, ...named.filter(name => name !== 'upgrade')])
  const connection = [close, named.includes('upgrade') && 'Upgrade'].filter(Boolean).join(', ')
  return [...pairs.filter(([name]) => !dropped.has(name.toLowerCase())), ['Connection', connection]]
}

function pairsOf(raw: readonly string[]): [name: string, value: string][] {
  return Array.from({ length: raw.length / 2 }, (_, at) => [raw[2 * at]!, raw[2 * at + 1]!])
}

/**
 * Tunnels for CONNECT: a connection to the other side, and bytes in both directions.
 *
 * A side that has sent all it has may close its half. The tunnel goes on in the other direction, for a limited time of silence.
 *
 * Opens a tunnel for a CONNECT that has been released. `idleTimeout` is for the silence of the other side once the client has ended.
 */
export function openConnectTunnel(options: TunnelOptions): Tunnel {
  const { target, head, onEnd } = options
  const client = options.socket as Socket
  let joined = false
  let over = false
  const { host, port, lookup } = target
  const usual = { allowHalfOpen: true, noDelay: true, keepAlive: true } as const
  const upstream = connect({ host, port, ...(lookup && { lookup }), ...usual })
  const late = () => finish(failed(504, new Error(`no connection to the upstream within ${options.connectTimeout} ms`)))
  let timer = options.connectTimeout > 0 ? setTimeout(late, options.connectTimeout) : undefined
  const cut = () => finish({ kind: joined ? 'closed' : 'client-gone' })
  const unwatch = watchUpgradeSocket(client, cut)

  function finish(end: TunnelEnd): void {
    if (over) return
    over = true
    clearTimeout(timer)
    unwatch()
    upstream.destroy()
    if (end.kind !== 'failed' && end.kind !== 'abandoned') client.destroy()
    process.nextTick(onEnd, end)
  }

  function join(): void {
    clearTimeout(timer)
    unwatch()
    joined = true
    answer()
    if (head.length > 0 && !client.readableEnded) client.unshift(head)
    if (options.tunnelIdleTimeout > 0) {
      client.setTimeout(options.tunnelIdleTimeout, () => finish({ kind: 'closed', idle: true }))
    }
    client.once('close', cut)
    // It has all that came for it, and only has to close.
    client.once('finish', () => {
      timer = setTimeout(cut, TUNNEL_LINGER)
    })
    upstream.once('finish', () => {
      if (options.idleTimeout > 0) upstream.setTimeout(options.idleTimeout, cut)
    })
    upstream.pipe(client).pipe(upstream)
  }

  function answer(): void {
    // First: it counts as answered before the headers tell how long that took.
    options.onResponse?.(200, {})
    const headers = options.answerHeaders?.() ?? []
    let text = 'HTTP/1.1 200 Connection Established\r\n'
    for (let at = 0; at < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
    client.write(`${text}\r\n`, 'latin1')
  }

  upstream.once('connect', () => over || join())
  upstream.on('error', error => finish(joined ? { kind: 'closed' } : failed(502, error)))
  return { close: () => finish({ kind: joined ? 'closed' : 'abandoned' }) }
}

function failed(status: 502 | 504, error: Error): TunnelEnd {
  return { kind: 'failed', status, error, unconnected: true }
}

/** The place and the connection of a WebSocket, from its release until it is closed. */
export class TunnelPlace {
  readonly #limit: ConnectionLimit
  readonly #server: UpstreamServer
  #isAnswered = false
  /** How it leaves its place. Undefined: the request has it in the gate. */
  #leavePlace: (() => void) | undefined
  #leaveConnection: (() => void) | undefined

  /** @param from where its request has a place: in the gate, or none yet @param open called when it may connect */
  constructor(
    limit: ConnectionLimit,
    server: UpstreamServer,
    from: 'gate' | 'outside',
    open: (place: TunnelPlace) => void,
  ) {
    this.#limit = limit
    this.#server = server
    if (from === 'gate') {
      this.#leaveConnection = server.budget.openTunnel(() => open(this))
      return
    }
    const giveUp = limit.enter(() => {
      this.#leavePlace = limit.leave
      this.#leaveConnection = (limit.countsAll ? server.budget : limit.unbounded).openTunnel(() => open(this))
    })
    this.#leavePlace ??= giveUp
  }

  /** It is answered. Its request leaves the gate, and the connection stays. */
  answered(): void {
    this.#isAnswered = true
    if (this.#leavePlace !== undefined) return
    this.#limit.keepForTunnel()
    this.#leavePlace = () => this.#limit.tunnelClosed()
  }

  close(): void {
    if (this.#isAnswered) this.#server.tunnelClosed()
    this.#isAnswered = false
    this.#leaveConnection?.()
    this.#leaveConnection = undefined
    this.#leavePlace?.()
    this.#leavePlace = undefined
  }
}
