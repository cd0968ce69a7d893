/**
 * Sends calls in batches, one per connection at a time, and sees to it that each is answered in time.
 *
 * What is asked for in one turn of the event loop, or while all connections are busy, goes in one call of the function: one
 * transaction that locks each row once. A call that could not be sent or answered by its deadline is rejected; the
 * function does not execute what it gets after the deadline. So a call that was rejected for lateness has not been
 * executed, or its answer was on its way. None is sent twice unless the server told that it did nothing.
 */
import type { Clock } from '../../core/clock.js'
import { HORIZON, longestBackDate, StoreError } from '../../core/store.js'
import { Offset } from '../clock-offset.js'
import type { PostgresConnection } from './connection.js'
import { encodeBatch, isTooLate, type PostgresOperation, Reader } from './wire.js'

/** How many calls go in one batch, and how many wait at most. */
const MOST = { batch: 64, waiting: 10_000 }

/** A connection whose answer is overdue by this much, in ms, is given up. */
const STUCK = 1_000

/** The weight of the last round trip in their mean. */
const SMOOTHING = 1 / 8

/** The horizon in round trips. */
const AHEAD = 2.5

/** The transaction was undone, and is worth another try: serialization failure, deadlock, changed plan. */
const PASSING = new Set(['40001', '40P01', '0A000'])

/** A function, table or schema is missing. */
const MISSING = new Set(['42883', '42P01', '3F000'])

interface Call {
  readonly operation: PostgresOperation
  /** By our clock, in ms. */
  readonly expires: number
  tried: boolean
  settled: boolean
  resolve(value: unknown): void
  reject(error: StoreError): void
}

export interface DispatcherOptions {
  readonly clock: Clock
  /** ms */
  readonly timeout: number
  /** SQL */
  readonly decide: string
  /** An idle connection; undefined: `pump` is called when there is one. */
  take(): PostgresConnection | undefined
  giveBack(connection: PostgresConnection): void
  /** Why no call can be answered. */
  failure(): Error | undefined
  /** Creates what is missing. */
  repair(connection: PostgresConnection): Promise<void>
}

export class PostgresBatcher {
  readonly #options: DispatcherOptions
  readonly #offset = new Offset()
  #waiting: Call[] = []
  /** Those that are not answered, the first to expire first. */
  #open: Call[] = []
  #roundTrip = 0
  #planned = false
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: DispatcherOptions) {
    this.#options = options
  }

  /** ms */
  get horizon(): number {
    return Math.min(HORIZON.most, Math.max(HORIZON.least, this.#roundTrip * AHEAD))
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
        tried: false,
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
    // After an outage come answers that tell how long it was, not how far the server is.
    const took = Math.min(received - sent, HORIZON.most / AHEAD)
    this.#roundTrip = this.#roundTrip === 0 ? took : this.#roundTrip + (took - this.#roundTrip) * SMOOTHING
  }

  /** Sends what waits, as far as there are connections. */
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

  /** Nothing can be sent: rejects all that waits. */
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
    const stuck = setTimeout(() => connection.destroy(), timeout + STUCK)
    const sent = clock.now()
    try {
      const { keys, ops } = encodeBatch(
        batch.map(({ operation, expires }) => ({ operation, deadline: this.#offset.theirs(expires) })),
        { horizon: this.horizon, back: longestBackDate(this.#roundTrip) },
      )
      const query = { name: 'shaper', text: decide, values: [keys, ops], types: AS_TEXT }
      const { rows } = await connection.client.query<{ answer: string }>(query)
      this.#read(new Reader(rows[0]!.answer), batch, sent)
    } catch (error) {
      await this.#failed(connection, batch, error as Error & { code?: string })
    } finally {
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

  /** For a call of which the server has told that it did nothing. */
  #again(call: Call, error: StoreError): void {
    if (call.settled) return
    if (call.tried) return settle(call, () => call.reject(error))
    call.tried = true
    this.#waiting.push(call)
    this.#plan()
  }

  #expire = (): void => {
    // Answers that have arrived while this process was paused are read first.
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
