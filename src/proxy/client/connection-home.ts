import type { ProxyContext } from '../context.js'
import type { Deadlines } from '../deadlines.js'
import type { OpenConnection } from '../http/connection/client-connection.js'
import type { HeadLimits } from '../http1/request-parser.js'
import type { ClientTimeouts } from './client-timeouts.js'
import type { LastCalls } from './last-calls.js'

/** What all connections of a server share. */
export interface ConnectionHome {
  readonly context: ProxyContext
  readonly timeouts: ClientTimeouts
  /** For the looks at sessions of HTTP/2. */
  readonly looks: Deadlines
  readonly lastCalls: LastCalls
  readonly headLimits: HeadLimits
  /** It goes on as another one, on the same socket. */
  replaced(connection: OpenConnection, by: OpenConnection): void
  closed(connection: OpenConnection): void
}
