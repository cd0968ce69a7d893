/**
 * Sends calls in batches, one for each connection at a time, and settles each call in time.
 *
 * The calls of one turn of the event loop, or of the time while all connections are busy, go in one call of the function: one
 * transaction that locks each row once. A call that is not sent or answered by its deadline is rejected. The function does
 * nothing for a call that arrives after its deadline, so a call that was rejected as late either did nothing, or its answer
 * was on its way. A call is sent again only if the server says that it did nothing.
 */
import type { Clock } from '../../core/clock.js'
import { StoreError } from '../../core/store.js'
import { Offset } from '../clock-offset.js'
import { RoundTrip } from '../round-trip.js'
import type { PostgresConnection } from './connection.js'
import { encodeBatch, isTooLate, type PostgresOperation, Reader } from './wire.js'

/** The most calls in a batch, and the most that wait. */
const MOST = { batch: 64, waiting: 10_000 }

/** ms. A connection whose answer is overdue by more is given up. */
const STUCK = 1_000

/** The transaction was undone and may be tried again: serialization failure, deadlock, changed plan. */
const PASSING = new Set(['40001', '40P01', '0A000'])

/** A call fails with the others of its batch, so one retry would not do: rows of another may be pruned again. */
const MOST_TRIES = 3

/** A function, table, column or schema is missing. */
const MISSING = new Set(['42883', '42P01', '42703', '3F000'])

interface Call {
  readonly operation: PostgresOperation
  /** By our clock, in ms. */
  readonly expires: number
  tries: number
  settled: boolean
  resolve(value: unknown): void
  reject(error: StoreError): void
}

export interface BatcherOptions {
  readonly clock: Clock
  /** ms */
  readonly timeout: number
  /** SQL */
  readonly decide: string
  /** An idle connection. Undefined: `pump` is called when there is one. */
  take(): PostgresConnection | undefined
  giveBack(connection: PostgresConnection): void
  /** Why no call can be answered. */
  failure(): Error | undefined
  /** Creates what is missing. */
  repair(connection: PostgresConnection): Promise<void>
}

export class PostgresBatcher {
  readonly #options: BatcherOptions
  readonly #offset = new Offset()
  readonly #roundTrip = new RoundTrip()
  #waiting: Call[] = []
  /** Calls without an answer, the first to expire first. */
  #open: Call[] = []
  #planned = false
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: BatcherOptions) {
    this.#options = options
  }

  /** ms */
  get horizon(): number {
    return this.#roundTrip.horizon
  }

  /** About how late moments of the server's clock are by ours, in ms. */
  get lateness(): number {
    return this.#offset.lateness
  }

  get waiting(): number {
    return this.#waiting.length
  }

  ask<T>(operation: PostgresOperation<T>): Promise<T> {
    const { failure, clock, timeout } = this.#options
    if (this.#closed) return Promise.reject(new StoreError('the store is closed'))
    const reason = failure()
    if (reason !== undefined) return Promise.reject(unavailable(reason))
    if (this.#waiting.length >= MOST.waiting)
      return Promise.reject(new StoreError('too many calls wait for PostgreSQL'))
    return new Promise<T>((resolve, reject) => {
      const call: Call = {
        operation,
        expires: clock.now() + timeout,
        tries: 1,
        settled: false,
        resolve: value => resolve(value as T),
        reject,
      }
      this.#waiting.push(call)
      this.#open.push(call)
      this.#timer ??= setTimeout(this.#expire, timeout)
      this.#plan()
    })
  }

  /** Learns the server's time from an answer. All in ms. */
  learn(sent: number, theirs: number): void {
    const received = this.#options.clock.now()
    this.#offset.learn(sent, received, theirs)
    this.#roundTrip.learn(received - sent, received - this.#offset.ours(theirs))
  }

  /** A moment of the server's clock by ours, in ms. Infinity: nothing is known of its clock. */
  ours(theirs: number): number {
    return this.#offset.ours(theirs)
  }

  /** Sends waiting calls while there are connections. */
  pump = (): void => {
    this.#planned = false
    while (!this.#closed && this.#waiting.length > 0) {
      const connection = this.#options.take()
      if (connection === undefined) return
      const batch = this.#nextBatch()
      if (batch.length > 0) void this.#send(connection, batch)
      else this.#options.giveBack(connection)
    }
  }

  /** Nothing can be sent: rejects all waiting calls. */
  fail(error: Error): void {
    for (const call of this.#waiting.splice(0)) settle(call, () => call.reject(unavailable(error)))
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
    this.#waiting = []
    for (const call of this.#open.splice(0)) settle(call, () => call.reject(new StoreError('the store is closed')))
  }

  #plan(): void {
    if (this.#planned) return
    this.#planned = true
    setImmediate(this.pump)
  }

  #nextBatch(): Call[] {
    const batch: Call[] = []
    let taken = 0
    for (const call of this.#waiting) {
      if (batch.length >= MOST.batch) break
      taken += 1
      if (!call.settled) batch.push(call)
    }
    this.#waiting.splice(0, taken)
    return batch
  }

  async #send(connection: PostgresConnection, batch: Call[]): Promise<void> {
    const { clock, timeout, decide } = this.#options
    let isOver = false
    const stuck = setTimeout(() => {
      // An answer that arrived while this process was suspended is read first.
      setImmediate(() => {
        if (!isOver) connection.destroy()
      })
    }, timeout + STUCK)
    const sent = clock.now()
    try {
      const roundTrip = { horizon: this.horizon, back: this.#roundTrip.back }
      const { keys, ops } = encodeBatch(batch, roundTrip, this.#offset)
      const { client, isPooled } = connection
      const query = { ...(!isPooled && PREPARED), text: decide, values: [keys, ops], types: AS_TEXT }
      const { rows } = await client.query<{ answer: string }>(query)
      this.#read(new Reader(rows[0]!.answer), batch, sent)
    } catch (error) {
      await this.#failed(connection, batch, error as Error & { code?: string })
    } finally {
      isOver = true
      clearTimeout(stuck)
      this.#options.giveBack(connection)
    }
  }

  #read(answer: Reader, batch: Call[], sent: number): void {
    this.learn(sent, answer.number())
    for (const call of batch) {
      const verdict = answer.number()
      if (isTooLate(verdict)) {
        this.#again(call, new StoreError('PostgreSQL got the call too late'))
        continue
      }
      const value = call.operation.read(verdict, answer, this.#offset)
      settle(call, () => call.resolve(value))
    }
  }

  async #failed(connection: PostgresConnection, batch: Call[], error: Error & { code?: string }): Promise<void> {
    const reason = unavailable(error)
    if (error.code !== undefined && MISSING.has(error.code)) {
      try {
        await this.#options.repair(connection)
      } catch (error) {
        for (const call of batch) settle(call, () => call.reject(unavailable(error as Error)))
        return
      }
    } else if (error.code === undefined || !PASSING.has(error.code)) {
      for (const call of batch) settle(call, () => call.reject(reason))
      return
    }
    for (const call of batch) this.#again(call, reason)
  }

  /** The server did nothing for this call: sends it again. */
  #again(call: Call, error: StoreError): void {
    if (call.settled) return
    if (call.tries === MOST_TRIES) return settle(call, () => call.reject(error))
    call.tries += 1
    this.#waiting.push(call)
    this.#plan()
  }

  #expire = (): void => {
    // Answers that arrived while this process was suspended are read first.
    setImmediate(() => {
      const { clock, timeout } = this.#options
      const now = clock.now()
      const late = this.#open.findIndex(({ settled, expires }) => !settled && expires > now)
      for (const call of this.#open.splice(0, late < 0 ? this.#open.length : late))
        settle(call, () => call.reject(new StoreError(`PostgreSQL has not answered within ${timeout} ms`)))
      const next = this.#open[0]
      this.#timer = next === undefined || this.#closed ? undefined : setTimeout(this.#expire, next.expires - now)
    })
  }
}

const PREPARED = { name: 'shaper' }

/** Numbers are read by `Reader`. */
const AS_TEXT = { getTypeParser: () => (text: string) => text }

function settle(call: Call, how: () => void): void {
  if (call.settled) return
  call.settled = true
  how()
}

function unavailable(cause: Error): StoreError {
  const { message, code } = cause as NodeJS.ErrnoException
  return new StoreError(`PostgreSQL does not answer: ${message || code || 'no reason given'}`, { cause })
}
