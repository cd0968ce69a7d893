/**
 * A few connections that are opened when wanted, and again when lost. While none can be opened it is tried again and
 * again, so that the store is back by itself; whoever asks meanwhile is told at once.
 */
import { connect, type PostgresConnection } from './connection.js'

/** The first and the longest pause between attempts, in ms. */
const PAUSE = { first: 20, longest: 250 }

export interface ConnectionsOptions {
  readonly url: string
  readonly size: number
  /** ms */
  readonly statementTimeout: number
  /** Makes a new connection fit for use; it is closed when that fails. */
  prepare(connection: PostgresConnection): Promise<void>
  /** A connection has become idle, or can be opened now. */
  ready(): void
  /** None is open and none can be opened. */
  down(error: Error): void
  /** Something went wrong that nobody waits for. */
  onError(error: Error): void
}

export class Connections {
  readonly #options: ConnectionsOptions
  readonly #open = new Set<PostgresConnection>()
  #opening = 0
  #failures = 0
  #timer: NodeJS.Timeout | undefined
  #closed = false
  /** Why there is none. */
  #failure: Error | undefined

  constructor(options: ConnectionsOptions) {
    this.#options = options
  }

  /** Why there is none; undefined: there is one, or might be soon. */
  get failure(): Error | undefined {
    return this.#open.size > 0 ? undefined : this.#failure
  }

  /** Whether nothing runs on any. */
  get idle(): boolean {
    for (const { busy } of this.#open) if (busy) return false
    return true
  }

  /** An idle one, now busy; undefined: `ready` tells when there is one. */
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
    const { url, statementTimeout, prepare, onError } = this.#options
    this.#opening += 1
    let connection: PostgresConnection | undefined
    try {
      connection = await connect(url, statementTimeout, (lost, error) => {
        if (!this.#open.delete(lost)) return
        onError(error)
        // So that the store is back without anybody asking.
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
      // Told once: it goes on until somebody mends it.
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
