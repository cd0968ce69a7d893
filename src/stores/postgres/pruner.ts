/** Deletes rows that are not needed any more, a few at a time, while nothing else is to be done. */
import type { PostgresConnection } from './connection.js'

/** The default of `every`. */
const INTERVAL = 1_000

/** Rows that one statement looks at, and the most statements in a row. */
const CHUNK = 1_000
const ROUNDS = 10

export interface PrunerOptions {
  /** See prune.sql. */
  readonly sql: string
  /** An idle connection, if nothing waits for one. */
  take(): PostgresConnection | undefined
  giveBack(connection: PostgresConnection): void
  onError(error: Error): void
  /** ms between two looks. Infinity: never. */
  readonly every?: number | undefined
}

export class Pruner {
  readonly #options: PrunerOptions
  readonly #timer: NodeJS.Timeout | undefined
  /** The last key looked at. */
  #hand = ''
  #running = false

  constructor(options: PrunerOptions) {
    this.#options = options
    // Not all instances at the same moment.
    const { every = INTERVAL } = options
    if (every < Infinity) this.#timer = setInterval(() => void this.#run(), every * (0.9 + 0.2 * Math.random())).unref()
  }

  close(): void {
    clearInterval(this.#timer)
  }

  async #run(): Promise<void> {
    if (this.#running) return
    this.#running = true
    try {
      for (let round = 0; round < ROUNDS; round += 1) if (!(await this.#chunk())) break
    } catch (error) {
      this.#options.onError(error as Error)
    } finally {
      this.#running = false
    }
  }

  /** Whether to go on with the next chunk at once. */
  async #chunk(): Promise<boolean> {
    const { sql, take, giveBack } = this.#options
    const connection = take()
    if (connection === undefined) return false
    try {
      const { rows } = await connection.client.query<{ last: string | null; deleted: number }>(sql, [this.#hand, CHUNK])
      const { last, deleted } = rows[0]!
      this.#hand = last ?? ''
      return last !== null && deleted > CHUNK / 10
    } finally {
      giveBack(connection)
    }
  }
}
