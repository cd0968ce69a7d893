/** Our own HTTP server for clients: it accepts their connections, and knows them until they are closed. */
import { createServer, type Server, type Socket } from 'node:net'
import { createServer as createTlsServer } from 'node:tls'
import type { KeyPair } from '../../config/checks/readable-files.js'
import type { ServerLimits, Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { ProxyContext } from '../context.js'
import type { ClientConnection } from '../http/client-connection.js'
import { ClientTimeouts } from './client-timeouts.js'
import { type ConnectionHome, OwnConnection } from './own-connection.js'

/** Connections above `maxConnections` that still get a 503. Further ones are closed without an answer. */
const EXCESS = 256

export interface ClientServer {
  /** It listens. */
  readonly server: Server
  /** The open connections. */
  readonly connections: ReadonlySet<ClientConnection>
  /** Hands everything that clients send to exchanges. Called once, before it listens. */
  accept(context: ProxyContext): void
  /** Puts changed limits into effect. */
  limit(limits: ServerLimits): void
  /** Uses this certificate for new connections. */
  renew(pair: KeyPair): void
  /** Accepts no more, and ends idle connections. Resolves when all are closed. */
  close(): Promise<void>
}

/**
 * @param pair certificate and key for TLS; undefined: plain HTTP
 * @param clock for timeouts
 */
export function createOwnServer({ limits }: Settings, pair: KeyPair | undefined, clock: Clock): ClientServer {
  const connections = new Set<OwnConnection>()
  // Over TLS a client that leaves during the handshake has to be noticed, so no half-open sockets there.
  const tlsOptions = { noDelay: true, ...pair, ALPNProtocols: ['http/1.1'], handshakeTimeout: limits.headersTimeout }
  const tls = pair === undefined ? undefined : createTlsServer(tlsOptions)
  // Node leaves it to us to end a handshake that fails or takes too long.
  tls?.on('tlsClientError', (_error, socket) => socket.destroy())
  const server = tls ?? createServer({ allowHalfOpen: true, noDelay: true })
  /** The last ones are in use. */
  const allTimeouts = [timeoutsOf(limits, clock)]
  let inUse = limits
  let empty = (): void => undefined
  return {
    server,
    connections,
    accept(context) {
      const home: ConnectionHome = {
        context,
        maxHeaderSize: limits.maxHeaderSize,
        get timeouts() {
          return allTimeouts.at(-1)!
        },
        closed(connection) {
          connections.delete(connection)
          if (connections.size === 0) empty()
        },
      }
      server.on(tls === undefined ? 'connection' : 'secureConnection', (socket: Socket) => {
        if (context.draining || connections.size >= context.maxConnections + EXCESS) return void socket.destroy()
        const excess = connections.size >= context.maxConnections
        const connection = new OwnConnection(home, socket)
        connection.excess = excess
        connections.add(connection)
      })
    },
    limit(changed) {
      const { headersTimeout, keepAliveTimeout } = changed
      if (headersTimeout === inUse.headersTimeout && keepAliveTimeout === inUse.keepAliveTimeout) return
      inUse = changed
      // What runs ends in the old time.
      allTimeouts.push(timeoutsOf(changed, clock))
    },
    renew: renewed => tls?.setSecureContext(renewed),
    async close() {
      await new Promise<void>(resolve => {
        server.close(() => resolve())
        for (const connection of connections) if (connection.idle) connection.socket.destroySoon()
      })
      if (connections.size > 0) await new Promise<void>(resolve => (empty = resolve))
      for (const timeouts of allTimeouts) timeouts.close()
    },
  }
}

function timeoutsOf({ headersTimeout, keepAliveTimeout }: ServerLimits, clock: Clock): ClientTimeouts {
  return new ClientTimeouts(clock, headersTimeout, keepAliveTimeout)
}
