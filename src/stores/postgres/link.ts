/**
 * One connection to PostgreSQL, for one statement at a time.
 *
 * It leaves no settings in its session: behind a pooler such as PgBouncer others get that session next. What statements need is set
 * for the function that decides (schema.ts).
 */
import { randomUUID } from 'node:crypto'
import { Socket } from 'node:net'
import type { Client, QueryResultRow } from 'pg'
import pg from 'pg'
import { StoreError } from '../../sharing/store.js'
import { describeTrouble } from '../describe-error.js'
import { inTime } from '../timing.js'

/** ms that connecting may take. */
const CONNECT_TIMEOUT = 1_000
/** ms that an orderly end may take. */
const FAREWELL = 200
/** Modes that pg treats as "verify-full", with a warning: encrypted and verified. */
const VERIFIED = /([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/

export interface PostgresConnection {
  /** Unique among all. */
  readonly id: string
  readonly client: pg.Client
  /** There is a pooler in between. Its sessions may change with each transaction: nothing can be prepared in them. */
  isPooled: boolean
  busy: boolean
  /** Ends it at once, whatever the server does. */
  destroy(): void
  /** Ends it in order, or at once if that takes long. */
  end(): Promise<void>
}

/** @param url its password appears in no error @param lost called once when an open connection has ended @throws Error */
export async function connect(
  url: string,
  lost: (connection: PostgresConnection, error: Error) => void = () => {},
): Promise<PostgresConnection> {
  const socket = new Socket()
  const client = createClient(url, socket)
  const connection: PostgresConnection = {
    id: randomUUID(),
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
async function sessionOf({ client }: PostgresConnection): Promise<number> {
  const { rows } = await client.query<{ pid: number }>('SELECT pg_backend_pid() AS pid')
  return rows[0]!.pid
}

/** For clients of a database. */
export function clientConfig(url: string) {
  return {
    connectionString: url.replace(VERIFIED, '$1verify-full'),
    connectionTimeoutMillis: CONNECT_TIMEOUT,
    application_name: 'shaper',
    keepAlive: true,
    keepAliveInitialDelayMillis: 10_000,
  }
}

function createClient(url: string, socket: Socket): pg.Client {
  try {
    return new pg.Client({ ...clientConfig(url), stream: () => socket })
  } catch {
    throw new Error('the URL of the PostgreSQL store cannot be read')
  }
}

/** ms. The first and the longest pause between attempts. */
const PAUSE = { first: 20, longest: 250 }

export interface ConnectionsOptions {
  readonly url: string
  readonly size: number
  /** Prepares a new connection. It is closed if that fails. */
  prepare(connection: PostgresConnection): Promise<void>
  /** A connection has become idle, or can be opened now. */
  ready(): void
  down(error: Error): void
  /** An error that no call reports. */
  onError(error: Error): void
}

/** A few connections, opened when needed. While none can be opened it is tried again and again, and calls fail at once. */
export class Connections {
  readonly #options: ConnectionsOptions
  readonly #open = new Set<PostgresConnection>()
  #opening = 0
  #failures = 0
  #timer: NodeJS.Timeout | undefined
  #closed = false
  #failure: Error | undefined

  constructor(options: ConnectionsOptions) {
    this.#options = options
  }

  /** Why there is no connection. Undefined: there is one, or may be soon. */
  get failure(): Error | undefined {
    return this.#open.size > 0 ? undefined : this.#failure
  }

  /** An idle connection, now busy. Undefined: `ready` is called when there is one. */
  take(): PostgresConnection | undefined {
    for (const connection of this.#open) {
      if (connection.busy) continue
      connection.busy = true
      return connection
    }
    if (this.#timer === undefined && this.#opening === 0 && this.#open.size < this.#options.size) void this.#connect()
    return undefined
  }

  giveBack(connection: PostgresConnection): void {
    connection.busy = false
    if (this.#open.has(connection)) this.#options.ready()
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await Promise.all(
      [...this.#open].map(connection => {
        this.#open.delete(connection)
        return connection.busy ? connection.destroy() : connection.end()
      }),
    )
  }

  async #connect(): Promise<void> {
    const { url, prepare, onError } = this.#options
    this.#opening += 1
    let connection: PostgresConnection | undefined
    try {
      connection = await connect(url, (lost, error) => {
        if (!this.#open.delete(lost)) return
        onError(error)
        // So that the store comes back though nobody asks.
        if (this.#open.size === 0) this.#retry()
      })
      await prepare(connection)
      this.#opening -= 1
    } catch (error) {
      this.#opening -= 1
      connection?.destroy()
      if (this.#closed) return
      this.#failures += 1
      this.#retry()
      if (this.#open.size > 0) return onError(error as Error)
      // Once for each reason: it may go on for long.
      if ((error as Error).message !== this.#failure?.message) onError(error as Error)
      this.#failure = error as Error
      this.#options.down(error as Error)
      return
    }
    if (this.#closed) return connection.destroy()
    this.#failures = 0
    this.#failure = undefined
    this.#open.add(connection)
    this.#options.ready()
  }

  #retry(): void {
    if (this.#timer !== undefined || this.#closed) return
    const pause = Math.min(PAUSE.longest, PAUSE.first * 2 ** Math.min(this.#failures, 10))
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      void this.#connect()
    }, pause)
    this.#timer.unref()
  }
}

/** ms between two attempts to connect, and between two looks at the connection. */
const AGAIN = 250
const LOOK = 2_000
/** ms. The server gives up a client that does not read for so long: it would keep the tables from being cleaned. */
const UNREAD = 10_000

export interface SideConnectionOptions {
  readonly url: string
  /** ms for one statement. */
  readonly timeout: number
  readonly channel: string
  prepare(client: Client): Promise<void>
  received(payload: string): void
}

/** A connection for the news and for what instances leave for each other. What is told while it is broken is lost. */
export class SideConnection {
  readonly #options: SideConnectionOptions
  /** Undefined: there is none, and none is being opened. */
  #connection: Promise<PostgresConnection> | undefined
  #isListening = false
  #closed = false
  #timer: NodeJS.Timeout | undefined
  /** The statements that were asked for before. */
  #last: Promise<unknown> = Promise.resolve()

  constructor(options: SideConnectionOptions) {
    this.#options = options
  }

  listen(): void {
    if (this.#isListening) return
    this.#isListening = true
    this.#keepOpen()
  }

  /** Runs one statement, after those before it. @throws StoreError */
  query<Row extends QueryResultRow>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
    return this.run(async client => (await client.query<Row>(text, [...values])).rows)
  }

  /** Runs statements that belong together, after those before them. @throws StoreError */
  run<T>(use: (client: Client) => Promise<T>): Promise<T> {
    const answer = this.#last.then(() => this.#run(use))
    this.#last = answer.catch(() => {})
    return answer
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
    this.#connection?.then(
      connection => connection.destroy(),
      () => {},
    )
  }

  async #run<T>(use: (client: Client) => Promise<T>): Promise<T> {
    const { timeout } = this.#options
    let connection: PostgresConnection | undefined
    const late = (): StoreError => {
      connection?.destroy()
      return new StoreError(`PostgreSQL has not answered within ${timeout} ms`)
    }
    try {
      return await inTime(timeout, late, async check => {
        connection = await this.#open()
        check()
        return use(connection.client)
      })
    } catch (error) {
      if (error instanceof StoreError) throw error
      throw new StoreError(`PostgreSQL: ${describeTrouble(error as Error)}`)
    }
  }

  #open(): Promise<PostgresConnection> {
    if (this.#closed) return Promise.reject(new StoreError('the store is closed'))
    if (this.#connection !== undefined) return this.#connection
    const opening: Promise<PostgresConnection> = this.#connect(() => this.#gone(opening))
    opening.catch(() => this.#gone(opening))
    this.#connection = opening
    return opening
  }

  /** A connection has ended, or could not be opened. There may be another one already. */
  #gone(which: Promise<PostgresConnection>): void {
    if (this.#connection !== which) return
    this.#connection = undefined
    this.#keepOpen(AGAIN)
  }

  async #connect(lost: () => void): Promise<PostgresConnection> {
    const { url, channel, prepare, received } = this.#options
    const connection = await connect(url, lost)
    const { client } = connection
    client.on('notification', ({ payload = '' }) => received(payload))
    try {
      await prepare(client)
      if (!connection.isPooled) await client.query("SELECT set_config('tcp_user_timeout', $1, false)", [String(UNREAD)])
      if (!connection.isPooled || (await keepsSession(url, connection))) await client.query(`LISTEN ${channel}`)
    } catch (error) {
      connection.destroy()
      throw error
    }
    if (this.#closed) connection.destroy()
    return connection
  }

  /** Opens it, and looks from time to time whether the server still answers. */
  #keepOpen(delay = 0): void {
    if (!this.#isListening || this.#closed) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.query('SELECT 1').then(
        () => this.#keepOpen(LOOK),
        () => this.#keepOpen(AGAIN),
      )
    }, delay).unref()
  }
}

/** Beside other traffic a pooler may give two connections different sessions some times in a row, but not so often. */
const TURNS = 10

/** Whether a pooler leaves a connection its session: two that take turns have two then. Else nobody here would hear news. */
async function keepsSession(url: string, one: PostgresConnection): Promise<boolean> {
  const other = await connect(url)
  try {
    const [first, second] = [await sessionOf(one), await sessionOf(other)]
    for (let turn = 1; turn < TURNS; turn += 1)
      if (first === second || (await sessionOf(one)) !== first || (await sessionOf(other)) !== second) return false
    return true
  } finally {
    await other.end()
  }
}

const INTERVAL = 1_000
/** Rows that one statement looks at, and the most statements in a row. */
const CHUNK = 1_000
const ROUNDS = 10

export interface PrunerOptions {
  readonly sql: string
  /** An idle connection, if nothing waits for one. */
  take(): PostgresConnection | undefined
  giveBack(connection: PostgresConnection): void
  onError(error: Error): void
  /** ms between two looks. Infinity: never. */
  readonly every?: number | undefined
}

/** Deletes rows that are not needed any more, a few at a time, while nothing else is to be done. */
export function startPruner({ sql, take, giveBack, onError, every = INTERVAL }: PrunerOptions): { close(): void } {
  let lastKey = ''
  let isRunning = false

  /** Whether to go on with the next chunk at once. */
  async function pruneChunk(): Promise<boolean> {
    const connection = take()
    if (connection === undefined) return false
    try {
      const { rows } = await connection.client.query<{ last: string | null; deleted: number }>(sql, [lastKey, CHUNK])
      const { last, deleted } = rows[0]!
      lastKey = last ?? ''
      return last !== null && deleted > CHUNK / 10
    } finally {
      giveBack(connection)
    }
  }

  async function prune(): Promise<void> {
    if (isRunning) return
    isRunning = true
    try {
      for (let round = 0; round < ROUNDS; round += 1) if (!(await pruneChunk())) break
    } catch (error) {
      onError(error as Error)
    } finally {
      isRunning = false
    }
  }

  if (every === Infinity) return { close() {} }
  // Not all instances at the same moment.
  const timer = setInterval(() => void prune(), every * (0.9 + 0.2 * Math.random())).unref()
  return { close: () => clearInterval(timer) }
}
