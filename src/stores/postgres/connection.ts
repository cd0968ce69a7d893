/**
 * One connection to PostgreSQL, for one statement at a time.
 *
 * It leaves no settings in its session: behind a pooler such as PgBouncer others get that session next. What statements need is set
 * for the function that decides (schema.ts).
 */
import { Socket } from 'node:net'
import pg from 'pg'

/** ms that connecting may take. */
const CONNECT_TIMEOUT = 1_000

/** ms that an orderly end may take. */
const FAREWELL = 200

/** Modes that pg treats as "verify-full", with a warning: encrypted and verified. */
const VERIFIED = /([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/

export interface PostgresConnection {
  readonly client: pg.Client
  /** There is a pooler in between. Its sessions may change with each transaction: nothing can be prepared in them. */
  isPooled: boolean
  /** Whether a statement runs. */
  busy: boolean
  /** Ends it at once, whatever the server does. */
  destroy(): void
  /** Ends it in order, or at once if that takes long. */
  end(): Promise<void>
}

/**
 * @param url its password appears in no error
 * @param lost called once when an open connection has ended, for whatever reason
 * @throws Error when it cannot be opened
 */
export async function connect(
  url: string,
  lost: (connection: PostgresConnection, error: Error) => void = () => {},
): Promise<PostgresConnection> {
  const socket = new Socket()
  const client = createClient(url, socket)
  const connection: PostgresConnection = {
    client,
    isPooled: false,
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
  let late: NodeJS.Timeout | undefined
  try {
    await client.connect()
    // A pooler takes a client before it has a session for it.
    late = setTimeout(() => socket.destroy(), CONNECT_TIMEOUT)
    connection.isPooled = (await sessionOf(connection)) !== (client as { readonly processID?: number }).processID
  } catch (error) {
    socket.destroy()
    throw error
  } finally {
    clearTimeout(late)
  }
  open = true
  return connection
}

/** The server's process that carries out its statements now. A pooler tells its clients numbers of its own. */
export async function sessionOf({ client }: PostgresConnection): Promise<number> {
  const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
  return rows[0]!.pid
}

function createClient(url: string, socket: Socket): pg.Client {
  const config = {
    connectionString: url.replace(VERIFIED, '$1verify-full'),
    connectionTimeoutMillis: CONNECT_TIMEOUT,
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
