/** Our own HTTP servers for clients: they accept their connections, and know them until they are closed. */
import { createServer, type Server, type Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import { createServer as createTlsServer, type TLSSocket, Server as TlsServer } from 'node:tls'
import type { TlsFiles } from '../../config/checks/readable-files.js'
import type { ServerLimits, Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { isOnUnixSocket } from '../../http/listening.js'
import type { ProxyContext } from '../context.js'
import { Deadlines } from '../deadlines.js'
import type { OpenConnection } from '../http/client.js'
import { type PeerAddress, peerOf, unixPeerOf } from '../http/client-address.js'
import { LOOK } from '../http/http2.js'
import { ClientTimeouts, type ConnectionHome, LastCalls } from './home.js'
import { Http1Connection } from './http1-connection.js'
import { Http2Connection } from './http2-connection.js'
import { EXCESS, Handshakes, OpenConnections } from './open-connections.js'
import { ProxyHeaders } from './proxy-protocol.js'

export interface ClientServer {
  /** One for each `listen`. */
  readonly servers: readonly Server[]
  readonly connections: ReadonlySet<OpenConnection>
  /** Hands everything that clients send to exchanges. Called once, before they listen. */
  accept(context: ProxyContext): void
  limit(limits: ServerLimits): void
  /** @param files for new connections, as at the start */
  renew(files: readonly (TlsFiles | undefined)[]): void
  /**
   * Accepts no more once it has accepted the connections that have come, and ends idle ones. Called after the context is draining.
   * Resolves when connections have had their last call, or are waited for (`LastCalls`).
   */
  leave(): Promise<void>
  /** Takes no further request, and closes what comes now. Resolves when all connections are closed. */
  close(): Promise<void>
}

/** The most connections that the kernel accepts for us: Node's default. */
const BACKLOG = 511

/** What OpenSSL says of first bytes that are no TLS, other than those of HTTP. */
const NO_TLS = 'ERR_SSL_WRONG_VERSION_NUMBER'

/** @param files for TLS, with `ca` for clients that need a certificate; undefined: plain HTTP */
function createListener(files: TlsFiles | undefined, { headersTimeout }: ServerLimits): Server {
  if (files === undefined) return createServer({ allowHalfOpen: true, noDelay: true })
  // Over TLS a client that leaves during the handshake has to be noticed, so no half-open sockets there.
  const options = {
    ...{ noDelay: true, ...files, requestCert: files.ca !== undefined },
    ...{ ALPNProtocols: ['h2', 'http/1.1'], handshakeTimeout: headersTimeout },
  }
  // Node leaves it to us to end a handshake that fails or takes too long.
  return createTlsServer(options).on('tlsClientError', (_error, socket) => socket.destroy())
}

/** @param files for TLS, one for each `listen`; undefined: plain HTTP */
export function createClientServer(
  { listen, limits }: Settings,
  files: readonly (TlsFiles | undefined)[],
  clock: Clock,
): ClientServer {
  const servers = files.map(each => createListener(each, limits))
  /** The last ones are in use. */
  const allTimeouts = [timeoutsOf(limits, clock)]
  const looks = new Deadlines(clock, LOOK)
  const proxyHeaders = listen.map(
    ({ proxyProtocol }) => proxyProtocol && new ProxyHeaders(proxyProtocol, clock, limits.headersTimeout),
  )
  const open = new OpenConnections(() => takeIdle(allTimeouts))
  let inUse = limits
  let lastCalls: LastCalls | undefined
  let empty = (): void => undefined
  let accepted = 0
  let isClosing = false
  const closed = Promise.all(servers.map(server => new Promise(resolve => server.once('close', resolve))))
  return {
    servers,
    connections: open.all,
    accept(context) {
      lastCalls = new LastCalls(clock, context)
      const home: ConnectionHome = {
        context,
        looks,
        lastCalls,
        headLimits: limits,
        get timeouts() {
          return allTimeouts.at(-1)!
        },
        replaced(connection, by) {
          by.excess = connection.excess
          open.delete(connection)
          open.add(by)
          if (context.draining) by.leave()
        },
        closed(connection) {
          open.delete(connection)
          if (open.all.size === 0) empty()
        },
      }
      const handshakes = new Handshakes()
      const take = (socket: Socket, peer: PeerAddress | undefined): void => {
        const room = isClosing || peer === undefined ? 'none' : open.makeRoomFor(peer, context)
        // What a client has sent before it reset its connection could still be read.
        if (peer === undefined || room === 'none') return void socket.destroy()
        const isHttp2 = (socket as Partial<TLSSocket>).alpnProtocol === 'h2'
        const connection = new (isHttp2 ? Http2Connection : Http1Connection)(home, socket, peer)
        connection.excess = room === 'excess'
        open.add(connection)
        if (context.draining) connection.leave()
      }
      for (const [index, server] of servers.entries()) {
        server.maxConnections = context.maxConnections + EXCESS
        const isTls = server instanceof TlsServer
        let addressOf: (socket: Socket) => PeerAddress | undefined = peerOf
        server.on('listening', () => {
          if (isOnUnixSocket(server)) addressOf = unixPeerOf
        })
        server.on(isTls ? 'secureConnection' : 'connection', (socket: Socket) => take(socket, addressOf(socket)))
        if (isTls) server.on('connection', (socket: Socket) => handshakes.add(socket, addressOf(socket), context))
        if (proxyHeaders[index] !== undefined) {
          proxyHeaders[index].guard(server, context.observer)
          // Before the socket is destroyed, which then has no address.
          server.prependListener('tlsClientError', ({ code }: NodeJS.ErrnoException, socket: Socket) => {
            const peer = code === NO_TLS ? peerOf(socket)?.peer : undefined
            if (peer !== undefined) context.observer.unlisted?.(peer)
          })
        }
        server.on('connection', () => {
          accepted += 1
        })
      }
    },
    limit(changed) {
      const { headersTimeout, keepAliveTimeout, maxConnections } = changed
      // Node counts what it accepts, over TLS also before the handshake is over.
      for (const server of servers) server.maxConnections = maxConnections + EXCESS
      if (headersTimeout === inUse.headersTimeout && keepAliveTimeout === inUse.keepAliveTimeout) return
      inUse = changed
      // What runs ends in the old time.
      allTimeouts.push(timeoutsOf(changed, clock))
    },
    renew(renewed) {
      for (const [index, server] of servers.entries())
        if (server instanceof TlsServer) server.setSecureContext(renewed[index]!)
    },
    async leave() {
      // One is accepted in each turn of the event loop, and what clients have sent is read in it.
      let before = -1
      for (let turns = 0; before !== accepted && turns < BACKLOG; turns += 2) {
        before = accepted
        await turn()
        await turn()
      }
      for (const server of servers) server.close()
      for (const connection of open.all) connection.leave()
    },
    async close() {
      isClosing = true
      for (const headers of proxyHeaders) headers?.close()
      for (const connection of open.all) connection.last()
      await closed
      if (open.all.size > 0) await new Promise<void>(resolve => (empty = resolve))
      for (const timeouts of allTimeouts) timeouts.close()
      looks.close()
      lastCalls?.deadlines.close()
    },
  }
}

/** Takes out the connection that has been idle longest. One that has never sent a byte may be about to: it goes last. */
function takeIdle(allTimeouts: readonly ClientTimeouts[]): OpenConnection | undefined {
  const lists = [...allTimeouts.map(({ idle }) => idle), ...allTimeouts.map(({ opening }) => opening)]
  for (const list of lists) {
    const connection = list?.takeOldest()
    if (connection !== undefined) return connection as Http1Connection | Http2Connection
  }
  return undefined
}

function timeoutsOf({ headersTimeout, keepAliveTimeout }: ServerLimits, clock: Clock): ClientTimeouts {
  return new ClientTimeouts(clock, headersTimeout, keepAliveTimeout)
}
