/** The server that clients connect to: Node's, set up so that a held request is safe in it. */
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { AddressInfo, Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import { groupsOf } from '../config/groups.js'
import type { Settings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import { Keyspace } from '../core/keyspace.js'
import { Shaper } from '../core/shaper.js'
import type { OnOutage } from '../core/shared-shaper.js'
import { type Store, StoreError } from '../core/store.js'
import { Sharing } from '../stores/sharing.js'
import { createTrust } from './address.js'
import { Connection } from './connection.js'
import { Deadlines } from './deadline.js'
import type { Observer } from './events.js'
import { Exchange } from './exchange.js'
import { LearnedLimits } from './learned-limits.js'
import type { Line } from './line.js'
import { PlainTurn } from './plain-turn.js'
import { RefusalTurn } from './refusal-turn.js'
import { applyLearned, applyLimits } from './reload.js'
import { createRoute, type Route } from './route.js'
import { UpgradeExchange } from './upgrade-exchange.js'
import { Upstreams } from './upstreams.js'

/** How long a client may go on sending a body after its answer, in ms. */
const LINGER = 5_000

export interface RunningProxy {
  /** Where it listens: `http://host:port`. */
  readonly url: string
  readonly line: Line
  /**
   * Stops accepting, lets what is queued and in flight go on for up to `timeout` ms, answers the rest 503.
   * Resolves when every connection is closed. Called again, it is the same drain.
   */
  drain(timeout: number): Promise<void>
  /**
   * Puts another configuration into effect, whole or (when it throws) not at all. Who waits goes on waiting, in the same
   * order and at the new rates; levels stay. `listen` and `maxHeaderSize` stay as they were.
   *
   * @returns how many waiters were answered 503 because they would now exceed their `maxWait`, by route
   */
  reload(settings: Settings): Promise<Map<string, number>>
}

export interface ProxyOptions {
  readonly settings: Settings
  /** Paces releases. */
  readonly pacer: Clock
  /** For timeouts, where a few ms do not matter. */
  readonly clock: Clock
  readonly observer?: Observer
  /** Where buckets are kept for all instances. */
  readonly shared?: { readonly store: Store; readonly onOutage: OnOutage }
}

/**
 * @throws when the address cannot be listened on, a certificate cannot be read, or the store does not answer and without
 *   it everything is to be closed
 */
export async function startProxy(options: ProxyOptions): Promise<RunningProxy> {
  const { settings, pacer, clock, observer = {}, shared } = options
  const server = createHttpServer(settings)
  const upstreams = new Upstreams(clock)
  const prepare = async (next: Settings): Promise<() => Route[]> => {
    const prepared = await upstreams.prepare(next.routes.map(route => route.upstream))
    return () => {
      upstreams.commit(prepared)
      for (const { quota } of prepared.values()) quota?.join(line)
      const previous = new Map(line.routes.map(route => [route.name, route]))
      return next.routes.map(route => createRoute(route, prepared.get(route.upstream)!, previous.get(route.name)))
    }
  }
  let drained = (): void => undefined
  const sharing =
    shared &&
    new Sharing({
      ...shared,
      clock,
      id: randomUUID(),
      changed: (state, instances) => observer.shared?.(state, instances),
    })
  const line: Line = {
    clock: pacer,
    wallNow: Date.now,
    shaper: new Shaper({
      clock: pacer,
      maxQueued: settings.limits.maxQueued,
      ...(sharing && { store: sharing.store, unanswered: (lane, askedAt) => sharing.unanswered(lane.stack, askedAt) }),
    }),
    keyspace: new Keyspace(settings.limits.maxKeys, sharing && ((limits, key) => sharing.createBucket(limits, key))),
    sharing,
    learned: new LearnedLimits(),
    relearned: quota => applyLearned(line, quota),
    routes: [],
    trust: createTrust(settings.trustProxy),
    observer,
    linger: new Deadlines(clock, LINGER),
    draining: false,
    inProgress: 0,
    idle: () => drained(),
  }
  line.routes = (await prepare(settings))()
  const connections = serve(server, line)
  const close = async (): Promise<void> => {
    line.linger.close()
    await Promise.all([upstreams.close(), sharing?.close()])
  }
  sharing?.group(groupsOf(settings.routes))
  const joined = await sharing?.join({
    shaper: line.shaper,
    clock: pacer,
    buckets: () => line.keyspace.all(),
    gates: () => [...upstreams].map(upstream => upstream.gate),
  })
  if (joined === false && shared?.onOutage === 'closed') {
    await close()
    throw new StoreError('the store does not answer')
  }
  await listen(server, settings).catch(async error => {
    await close()
    throw error
  })

  const drain = async (timeout: number): Promise<void> => {
    line.draining = true
    const closed = new Promise<void>(resolve => server.close(() => resolve()))
    await new Promise<void>(resolve => {
      const cancel = clock.at(clock.now() + timeout, resolve)
      drained = () => {
        cancel()
        resolve()
      }
      if (line.inProgress === 0) drained()
    })
    for (const connection of connections) connection.cutOff()
    // What was just answered is written before its connection is closed.
    const cancel = clock.at(clock.now() + LINGER, () => {
      for (const { socket } of connections) socket.destroy()
    })
    for (const connection of connections) if (connection.current === undefined) connection.socket.destroySoon()
    await closed
    cancel()
    await close()
  }
  let draining: Promise<void> | undefined
  return {
    url: urlOf(server, settings),
    line,
    drain: timeout => (draining ??= drain(timeout)),
    async reload(next) {
      const commit = await prepare(next)
      line.routes = commit()
      sharing?.group(groupsOf(next.routes))
      line.trust = createTrust(next.trustProxy)
      line.shaper.maxQueued = next.limits.maxQueued
      line.keyspace.maxKeys = next.limits.maxKeys
      server.headersTimeout = next.limits.headersTimeout
      server.keepAliveTimeout = next.limits.keepAliveTimeout
      return applyLimits(line, next, upstreams)
    },
  }
}

function createHttpServer({ listen, limits }: Settings): Server {
  const options = {
    maxHeaderSize: limits.maxHeaderSize,
    headersTimeout: limits.headersTimeout,
    keepAliveTimeout: limits.keepAliveTimeout,
    // A held request whose body is unread must live.
    requestTimeout: 0,
    connectionsCheckingInterval: Math.min(1_000, Math.max(50, limits.headersTimeout / 4)),
    // We answer with a problem document instead.
    requireHostHeader: false,
    noDelay: true,
  }
  const server =
    listen.tls === undefined
      ? createServer(options)
      : createTlsServer({
          ...options,
          handshakeTimeout: limits.headersTimeout,
          cert: readFileSync(listen.tls.cert),
          key: readFileSync(listen.tls.key),
        })
  server.timeout = 0
  server.maxHeadersCount = 0
  return server
}

/** Returns the open connections. */
function serve(server: Server, line: Line): ReadonlySet<Connection> {
  const connections = new Set<Connection>()
  const known = new WeakMap<Socket, Connection>()
  const connectionOf = (socket: Socket): Connection => {
    const existing = known.get(socket)
    if (existing !== undefined) return existing
    const connection = new Connection(socket)
    known.set(socket, connection)
    connections.add(connection)
    socket.once('close', () => connections.delete(connection))
    return connection
  }
  // Also those that never send anything: they must not outlive the server.
  server.on(isTls(server) ? 'secureConnection' : 'connection', connectionOf)
  const onRequest = (req: IncomingMessage, res: ServerResponse): void => {
    const connection = connectionOf(req.socket)
    connection.add(new Exchange(line, connection, req, res))
  }
  server.on('request', onRequest)
  // With a listener Node leaves the 100 to us: it is sent at the release.
  server.on('checkContinue', onRequest)
  server.on('checkExpectation', onRequest)
  server.on('upgrade', (req, _socket, head) => {
    const connection = connectionOf(req.socket)
    if (isWebSocket(req)) connection.add(new UpgradeExchange(line, connection, req, head))
    else connection.add(new PlainTurn(server, connection, req, head))
  })
  server.on('connect', req => {
    const connection = connectionOf(req.socket)
    connection.add(new RefusalTurn(line, connection, 405, 'CONNECT is not spoken here'))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, duplex) => {
    const socket = duplex as Socket
    const { code = '' } = error
    const silent = code === 'ERR_HTTP_REQUEST_TIMEOUT' && socket.bytesRead === 0
    if (silent || GONE.has(code) || !socket.writable) {
      socket.destroy()
      return
    }
    const connection = connectionOf(socket)
    const [status, detail] = CLIENT_ERRORS[code] ?? [400, 'the request is malformed']
    connection.spoil(new RefusalTurn(line, connection, status, detail))
  })
  return connections
}

/** Errors that tell of a client's end, also in the middle of a request. */
const GONE = new Set(['ECONNRESET', 'EPIPE', 'HPE_INVALID_EOF_STATE'])

const CLIENT_ERRORS: Record<string, [number, string]> = {
  HPE_HEADER_OVERFLOW: [431, 'the request headers are too large'],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too large'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'the request headers did not come in time'],
}

/** Only this is tunnelled: what an h2c tunnel carries we could not limit. */
function isWebSocket({ method, headers, httpVersionMinor }: IncomingMessage): boolean {
  if (method !== 'GET' || httpVersionMinor === 0) return false
  if (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) return false
  return headers.upgrade?.trim().toLowerCase() === 'websocket'
}

function isTls(server: Server): boolean {
  return server instanceof TlsServer
}

function listen(server: Server, settings: Settings): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(settings.listen.port, settings.listen.host, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

function urlOf(server: Server, { listen }: Settings): string {
  const { address, family, port } = server.address() as AddressInfo
  const any = address === '0.0.0.0' || address === '::'
  const host = any ? '127.0.0.1' : family === 'IPv6' ? `[${address}]` : address
  return `${listen.tls === undefined ? 'http' : 'https'}://${host}:${port}`
}
