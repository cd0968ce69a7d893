/** One connection to PostgreSQL, for one statement at a time. */
import { Socket } from 'node:net'
import pg from 'pg'

/** ms that connecting may take. */
const CONNECT_TIMEOUT = 1_000

/** ms that an orderly end may take. */
const FAREWELL = 200

/**
 * Plans must suit a table of any size, though it may be empty when they are made. The state may be lost in a crash.
 */
const SETTINGS = `SELECT set_config('synchronous_commit', 'off', false), set_config('jit', 'off', false),
  set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
  set_config('enable_hashjoin', 'off', false), set_config('enable_mergejoin', 'off', false),
  set_config('plan_cache_mode', 'force_generic_plan', false)`

/** Modes that pg treats as "verify-full", with a warning: encrypted and verified. */
const VERIFIED = /([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/

export interface PostgresConnection {
  readonly client: pg.Client
  /** Whether a statement runs. */
  busy: boolean
  /** Ends it at once, whatever the server does. */
  destroy(): void
  /** Ends it in order, or at once if that takes long. */
  end(): Promise<void>
}

/**
 * @param url its password appears in no error
 * @param statementTimeout ms
 * @param lost called once when an open connection has ended, for whatever reason
 * @throws Error when it cannot be opened
 */
export async function connect(
  url: string,
  statementTimeout: number,
  lost: (connection: PostgresConnection, error: Error) => void = () => {},
): Promise<PostgresConnection> {
  const socket = new Socket()
  const client = createClient(url, statementTimeout, socket)
  const connection: PostgresConnection = {
    client,
    busy: false,
    destroy: () => {
      socket.destroy()
    },
    async end() {
      const timer = setTimeout(() => socket.destroy(), FAREWELL)
      await client.end().catch(() => {})
      clearTimeout(timer)
    },
  }
  let open = false
  let reason = new Error('the connection was closed')
  client.on('error', error => {
    reason = error
    socket.destroy()
  })
  client.on('end', () => {
    if (open) lost(connection, reason)
    open = false
  })
  try {
    await client.connect()
    await client.query(SETTINGS)
  } catch (error) {
    socket.destroy()
    throw error
  }
  open = true
  return connection
}

function createClient(url: string, statementTimeout: number, socket: Socket): pg.Client {
  const config = {
    connectionString: url.replace(VERIFIED, '$1verify-full'),
    connectionTimeoutMillis: CONNECT_TIMEOUT,
    statement_timeout: Math.ceil(statementTimeout),
    application_name: 'shaper',
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
    stream: () => socket,
  }
  try {
    return new pg.Client(config)
  } catch {
    throw new Error('the URL of the PostgreSQL store cannot be read')
  }
}
