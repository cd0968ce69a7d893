/** Our own HTTP server for clients: it accepts their connections, and knows them until they are closed. */
import { createServer, type Server, type Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import { createServer as createTlsServer, type TLSSocket } from 'node:tls'
import type { KeyPair } from '../../config/checks/readable-files.js'
import type { ServerLimits, Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { ProxyContext } from '../context.js'
import { Deadlines } from '../deadlines.js'
import { peerOf } from '../http/client-address.js'
import type { OpenConnection } from '../http/connection/client-connection.js'
import { EXCESS, Handshakes, OpenConnections } from '../http/connection/open-connections.js'
import { LOOK } from '../http2/dead-session.js'
import { ClientTimeouts } from './client-timeouts.js'
import type { ConnectionHome } from './connection-home.js'
import { Http2Connection } from './http2-connection.js'
import { LastCalls } from './last-calls.js'
import { OwnConnection } from './own-connection.js'

export interface ClientServer {
  /** It listens. */
  readonly server: Server
  /** The open connections. */
  readonly connections: ReadonlySet<OpenConnection>
  /** Hands everything that clients send to exchanges. Called once, before it listens. */
  accept(context: ProxyContext): void
  /** Puts changed limits into effect. */
  limit(limits: ServerLimits): void
  /** Uses this certificate for new connections. */
  renew(pair: KeyPair): void
  /**
   * Accepts no more once it has accepted the connections that have come, and ends idle ones. Called after the context is draining.
   * Resolves when connections have had their last call, or are waited for (last-calls.ts).
   */
  leave(): Promise<void>
  /** Takes no further request, and closes what comes now. Resolves when all connections are closed. */
  close(): Promise<void>
}

/** The most connections that the kernel accepts for us: Node's default. */
const BACKLOG = 511

/**
 * @param pair certificate and key for TLS; undefined: plain HTTP
 * @param clock for timeouts
 */
export function createOwnServer({ limits }: Settings, pair: KeyPair | undefined, clock: Clock): ClientServer {
  // Over TLS a client that leaves during the handshake has to be noticed, so no half-open sockets there.
  const tlsOptions = {
    noDelay: true,
    ...pair,
    ALPNProtocols: ['h2', 'http/1.1'],
    handshakeTimeout: limits.headersTimeout,
  }
  const tls = pair === undefined ? undefined : createTlsServer(tlsOptions)
  // Node leaves it to us to end a handshake that fails or takes too long.
  tls?.on('tlsClientError', (_error, socket) => socket.destroy())
  const server = tls ?? createServer({ allowHalfOpen: true, noDelay: true })
  /** The last ones are in use. */
  const allTimeouts = [timeoutsOf(limits, clock)]
  const looks = new Deadlines(clock, LOOK)
  const open = new OpenConnections(() => takeIdle(allTimeouts))
  let inUse = limits
  let lastCalls: LastCalls | undefined
  let empty = (): void => undefined
  let accepted = 0
  let isClosing = false
  const closed = new Promise<unknown>(resolve => server.once('close', resolve))
  server.on('connection', () => {
    accepted += 1
  })
  return {
    server,
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
      server.maxConnections = context.maxConnections + EXCESS
      server.on(tls === undefined ? 'connection' : 'secureConnection', (socket: Socket) => {
        const peer = peerOf(socket)
        const room = isClosing || peer === undefined ? 'none' : open.makeRoomFor(peer, context)
        // What a client has sent before it reset its connection could still be read.
        if (peer === undefined || room === 'none') return void socket.destroy()
        const isHttp2 = (socket as Partial<TLSSocket>).alpnProtocol === 'h2'
        const connection = new (isHttp2 ? Http2Connection : OwnConnection)(home, socket, peer)
        connection.excess = room === 'excess'
        open.add(connection)
        if (context.draining) connection.leave()
      })
      const handshakes = new Handshakes()
      tls?.on('connection', socket => handshakes.add(socket, context))
    },
    limit(changed) {
      const { headersTimeout, keepAliveTimeout, maxConnections } = changed
      // Node counts what it accepts, over TLS also before the handshake is over.
      server.maxConnections = maxConnections + EXCESS
      if (headersTimeout === inUse.headersTimeout && keepAliveTimeout === inUse.keepAliveTimeout) return
      inUse = changed
      // What runs ends in the old time.
      allTimeouts.push(timeoutsOf(changed, clock))
    },
    renew: renewed => tls?.setSecureContext(renewed),
    async leave() {
      // One is accepted in each turn of the event loop, and what clients have sent is read in it.
      let before = -1
      for (let turns = 0; before !== accepted && turns < BACKLOG; turns += 2) {
        before = accepted
        await turn()
        await turn()
      }
      server.close()
      for (const connection of open.all) connection.leave()
    },
    async close() {
      isClosing = true
      for (const connection of open.all) connection.last()
      await closed
      if (open.all.size > 0) await new Promise<void>(resolve => (empty = resolve))
      for (const timeouts of allTimeouts) timeouts.close()
      looks.close()
      lastCalls?.deadlines.close()
    },
  }
}

/**
 * Takes out the connection that has been idle longest. It has no request under way, and no part of the next. One that has
 * never sent a byte may be about to, so those that have had a request go first.
 */
function takeIdle(allTimeouts: readonly ClientTimeouts[]): OpenConnection | undefined {
  const lists = [...allTimeouts.map(({ idle }) => idle), ...allTimeouts.map(({ opening }) => opening)]
  for (const list of lists) {
    const connection = list?.takeOldest()
    if (connection !== undefined) return connection as OwnConnection | Http2Connection
  }
  return undefined
}

function timeoutsOf({ headersTimeout, keepAliveTimeout }: ServerLimits, clock: Clock): ClientTimeouts {
  return new ClientTimeouts(clock, headersTimeout, keepAliveTimeout)
}
