/**
 * A few connections, opened when needed and again when lost. While none can be opened it is tried again and again, so that
 * the store comes back by itself. Calls made meanwhile fail at once.
 */
import { connect, type PostgresConnection } from './connection.js'

/** ms. The first and the longest pause between attempts. */
const PAUSE = { first: 20, longest: 250 }

export interface ConnectionsOptions {
  readonly url: string
  readonly size: number
  /** Prepares a new connection. It is closed if that fails. */
  prepare(connection: PostgresConnection): Promise<void>
  /** A connection has become idle, or can be opened now. */
  ready(): void
  /** None is open and none can be opened. */
  down(error: Error): void
  /** An error that no call reports. */
  onError(error: Error): void
}

export class Connections {
  readonly #options: ConnectionsOptions
  readonly #open = new Set<PostgresConnection>()
  #opening = 0
  #failures = 0
  #timer: NodeJS.Timeout | undefined
  #closed = false
  /** Why there is no connection. */
  #failure: Error | undefined

  constructor(options: ConnectionsOptions) {
    this.#options = options
  }

  /** Why there is no connection. Undefined: there is one, or may be soon. */
  get failure(): Error | undefined {
    return this.#open.size > 0 ? undefined : this.#failure
  }

  /** Whether all connections are idle. */
  get idle(): boolean {
    for (const { busy } of this.#open) if (busy) return false
    return true
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
