/**
 * A connection beside those for decisions: it hears the news, and carries what instances leave for each other. It is opened
 * when it is first needed, and again whenever it breaks or does not answer. What is told meanwhile is lost.
 */
import type { Client, QueryResultRow } from 'pg'
import { StoreError } from '../../core/store.js'
import { describeTrouble } from '../describe-error.js'
import { inTime } from '../in-time.js'
import { connect, type PostgresConnection, sessionOf } from './connection.js'

/** ms between two attempts to connect, and between two looks at the connection. */
const AGAIN = 250
const LOOK = 2_000

/**
 * ms. The server gives up a connection whose client does not read for so long: one that is stuck in the middle of news
 * would keep the tables from being cleaned.
 */
const UNREAD = 10_000

export interface SideConnectionOptions {
  readonly url: string
  /** ms for one statement. */
  readonly timeout: number
  /** The channel for news. */
  readonly channel: string
  /** Prepares a new connection. */
  prepare(client: Client): Promise<void>
  received(payload: string): void
}

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

  /** From now on it hears the news. */
  listen(): void {
    if (this.#isListening) return
    this.#isListening = true
    this.#keepOpen()
  }

  /** Runs one statement, after those before it. @throws StoreError */
  query<Row extends QueryResultRow>(text: string, values: readonly unknown[] = []): Promise<Row[]> {
    return this.run(async client => (await client.query<Row>(text, [...values])).rows)
  }

  /**
   * Runs statements that belong together, after those before them.
   *
   * @throws StoreError
   */
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

/**
 * Whether a pooler leaves a connection its session between transactions. Without that nobody hears news, and others would get it.
 * Two connections that take turns have two sessions then, and keep them.
 */
async function keepsSession(url: string, one: PostgresConnection): Promise<boolean> {
  const other = await connect(url)
  try {
    const sessions: number[] = []
    for (let turn = 0; turn < 2; turn += 1) sessions.push(await sessionOf(one), await sessionOf(other))
    const [first, second] = sessions
    return first !== second && sessions.every((session, at) => session === (at % 2 === 0 ? first : second))
  } finally {
    await other.end()
  }
}
