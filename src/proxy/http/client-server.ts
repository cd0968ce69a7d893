import type { Server } from 'node:net'
import type { KeyPair } from '../../config/checks/readable-files.js'
import type { ServerLimits } from '../../config/settings.js'
import type { ProxyContext } from '../context.js'
import type { ClientConnection } from './client-connection.js'

/** Connections above `maxConnections` that still get a 503. Further ones are closed without an answer. */
export const EXCESS = 256

/** A server for clients. */
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
