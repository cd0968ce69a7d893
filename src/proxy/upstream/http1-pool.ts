import type { Clock } from '../../core/clock.js'
import { type Linked, LinkedList } from '../../core/structures/linked-list.js'
import { Deadlines, type Watched } from '../deadlines.js'
import type { BudgetUser, ConnectionBudget } from './connection-limit.js'
import {
  type ConnectionOwner,
  type ResponseHandler,
  UpstreamConnection,
  type UpstreamRequest,
} from './http1-connection.js'
import type { Opens } from './opener.js'

/** Spare connections that are kept ready for coming releases, at most. More are kept while these are too few. */
const READY = 4
const MOST_READY = 256
/** ms. A connection opened ahead is closed after this time unused, because it may occupy a worker of the upstream. */
export const UNUSED = 1_000
/** ms. An upstream that keeps a new connection open for so long takes connections. So does one that answers. */
const SETTLED = 100
/** ms. An idle connection is not reused if the upstream announced to close it within this time. */
const KEEP_ALIVE_MARGIN = 1_000

export interface PoolOptions {
  readonly opener: Opens
  readonly clock: Clock
  readonly connectTimeout: number
  /** How long an idle connection is kept, in ms. 0: each serves one request, and none is opened ahead. */
  readonly keepAlive: number
  /** The age at which a connection serves no other request, in ms. */
  readonly maxAge: number
  /** Bounds its connections, with those of other pools. */
  readonly budget: ConnectionBudget
}

export const NO_LONGER_USED = 'the upstream is no longer used'

export type RequestSender = Pick<ConnectionPool, 'send'>

export interface Waiting extends Linked<Waiting> {
  readonly request: UpstreamRequest
  readonly handler: ResponseHandler
  readonly onFree: (() => void) | undefined
  readonly since: number
}

/** The connections to one server, and the requests that wait for one: first come, first served. */
export abstract class Pool<Connection extends Watched> implements BudgetUser {
  protected readonly options: PoolOptions
  protected readonly clock: Clock
  protected opener: Opens
  protected budget: ConnectionBudget
  /** Connections that are being opened. They all have the same time for it. */
  protected readonly opening: Deadlines<Connection>
  /** Connections that have served a request and wait for the next. */
  protected readonly idle: Deadlines<Connection>
  /** Connections that were opened ahead and have not served yet. */
  protected readonly spare: Deadlines<Connection>
  protected readonly waiting = new LinkedList<Waiting>()
  protected isClosed = false
  protected keepsNone = false

  constructor(options: PoolOptions) {
    const { opener, clock, connectTimeout, keepAlive, budget } = options
    this.options = options
    this.opener = opener
    this.clock = clock
    this.budget = budget
    budget.join(this)
    this.opening = new Deadlines(clock, connectTimeout)
    this.idle = new Deadlines(clock, keepAlive)
    this.spare = new Deadlines(clock, UNUSED)
  }

  /** Starts what waits, as far as there is room, and opens connections for the rest. */
  abstract useRoom(): void
  abstract closeUnused(): boolean

  /** Shares another budget from now on. To be called before it has a connection. */
  share(budget: ConnectionBudget): void {
    this.budget.leave(this)
    this.budget = budget
    budget.join(this)
  }

  protected wait(request: UpstreamRequest, handler: ResponseHandler, onFree: (() => void) | undefined): () => void {
    const since = this.clock.now()
    const waiting: Waiting = { list: undefined, previous: undefined, next: undefined, request, handler, onFree, since }
    this.waiting.push(waiting)
    if (this.isClosed) process.nextTick(() => this.failWaiting(new Error(NO_LONGER_USED)))
    else this.useRoom()
    return () => {
      if (this.waiting.remove(waiting)) onFree?.()
    }
  }

  protected failWaiting(error: Error): void {
    while (this.waiting.size > 0) this.failFirst(error)
  }

  protected failFirst(error: Error): void {
    const waiting = this.waiting.shift()
    waiting?.onFree?.()
    waiting?.handler.failed(error)
  }
}

/**
 * The connections to one upstream. A request takes the connection that has been idle for the shortest time. Without one
 * it waits, first come, first served, and a connection is opened for it if there may be another.
 */
export class ConnectionPool extends Pool<UpstreamConnection> implements ConnectionOwner {
  readonly single: boolean
  readonly #all = new Set<UpstreamConnection>()
  /** ms of the clock. From then on connections are opened ahead. Infinity: the last one failed or was not used, or none was opened. */
  #aheadFrom = Infinity
  #ahead = READY
  /** A connection has opened since that number grew last. */
  #mayGrow = true

  constructor(options: PoolOptions) {
    super(options)
    this.single = options.keepAlive === 0
  }

  /** Requests that have a connection or wait for one. */
  get requests(): number {
    return this.waiting.size + this.#all.size - this.opening.size - this.idle.size - this.spare.size
  }

  /**
   * Sends a request. What becomes of it is told to the handler, never before this returns if no connection is idle.
   *
   * @param onFree called when the request has no connection any more and waits for none
   * @returns gives up the request if it still waits for a connection; undefined: it has one
   */
  send(request: UpstreamRequest, handler: ResponseHandler, onFree?: () => void): (() => void) | undefined {
    const connection = this.#take()
    if (connection !== undefined) {
      connection.onFree = onFree
      connection.send(request, handler)
      return undefined
    }
    this.#miss()
    return this.wait(request, handler, onFree)
  }

  reserve(until: number): UpstreamConnection | undefined {
    const connection = this.#take()
    if (connection === undefined) {
      this.#miss()
      return undefined
    }
    if (connection.descriptor !== undefined && connection.usableUntil > until) return connection
    this.putBack(connection)
    return undefined
  }

  /** Gives back a reserved connection that was not used. It does not live longer for it. */
  putBack(connection: UpstreamConnection): void {
    if (!connection.usable || this.clock.now() >= connection.usableUntil) return connection.close()
    if (this.#serveWaiting(connection)) return
    if (this.keepsNone || this.budget.crowded) connection.close()
    else if (connection.served) this.idle.watch(connection)
    else this.spare.watch(connection)
  }

  /** Opens connections in advance if few are ready for so many requests in the queue, and the upstream takes connections. */
  keepReady(queued: number): void {
    if (this.isClosed || this.single || this.clock.now() < this.#aheadFrom) return
    let ready = this.opening.size - this.waiting.size + this.spare.size + this.idle.size
    for (const enough = Math.min(this.#ahead, queued); ready < enough && this.budget.hasRoom; ready += 1) this.#open()
  }

  /** Closes what is not in use, and keeps no connection after its request: another pool needs the room. */
  keepNone(): void {
    this.keepsNone = true
    while (this.closeUnused());
  }

  /** Opens new connections in another way. Those opened in advance are closed; those that have served stay. */
  change(opener: Opens): void {
    this.opener = opener
    for (const connection of [...this.#all]) if (!connection.opened) connection.close()
    for (let spare = this.spare.takeNewest(); spare !== undefined; spare = this.spare.takeNewest()) spare.close()
    this.useRoom()
  }

  close(): void {
    this.isClosed = true
    this.budget.leave(this)
    for (const connection of [...this.#all]) connection.close()
    for (const each of [this.opening, this.idle, this.spare]) each.close()
    this.failWaiting(new Error(NO_LONGER_USED))
  }

  ready(connection: UpstreamConnection): void {
    const { onFree } = connection
    connection.onFree = undefined
    this.opening.unwatch(connection)
    if (!connection.served) this.#mayGrow = true
    const now = this.clock.now()
    this.#aheadFrom = connection.served ? now : Math.min(this.#aheadFrom, now + SETTLED)
    if (connection.served && now >= connection.oldAt) connection.close()
    else if (!this.#serveWaiting(connection)) this.#keep(connection, now)
    onFree?.()
  }

  closed(connection: UpstreamConnection, error: Error | undefined): void {
    // Here an idle one is taken out of its list first.
    const leftByUpstream = this.idle.unwatch(connection)
    for (const each of [this.opening, this.spare]) each.unwatch(connection)
    this.#all.delete(connection)
    if (error !== undefined || !connection.served || leftByUpstream) {
      this.#aheadFrom = Infinity
      this.#ahead = READY
    }
    if (!this.isClosed && !connection.opened && error !== undefined && this.#isForFirst()) this.failFirst(error)
    this.budget.closed()
    connection.onFree?.()
  }

  /**
   * Whether a connection that could not be opened was the first request's that waits. One opened ahead fails silently, unless
   * that request has waited for so long that it had a connection of its own.
   */
  #isForFirst(): boolean {
    const { first } = this.waiting
    if (first === undefined) return false
    return this.waiting.size > this.opening.size || this.clock.now() - first.since >= this.options.connectTimeout
  }

  useRoom(): void {
    while (this.opening.size < this.waiting.size && this.budget.hasRoom) this.#open()
    // Those of another server may have all the room.
    if (this.opening.size < this.waiting.size) this.budget.makeRoom()
  }

  closeUnused(): boolean {
    const unused =
      this.idle.takeNewest() ??
      this.spare.takeNewest() ??
      (this.opening.size > this.waiting.size ? this.opening.takeNewest() : undefined)
    unused?.close()
    return unused !== undefined
  }

  #keep(connection: UpstreamConnection, now: number): void {
    if (this.single || this.keepsNone || this.budget.crowded) return connection.close()
    if (!connection.served) {
      connection.usableUntil = now + UNUSED
      return this.spare.watch(connection)
    }
    const { keepAlive = Infinity } = connection
    connection.usableUntil = Math.min(
      now + this.options.keepAlive,
      now + keepAlive - KEEP_ALIVE_MARGIN,
      connection.oldAt,
    )
    if (keepAlive <= KEEP_ALIVE_MARGIN) connection.close()
    else this.idle.watch(connection)
  }

  #serveWaiting(connection: UpstreamConnection): boolean {
    const waiting = this.waiting.shift()
    if (waiting === undefined) return false
    connection.onFree = waiting.onFree
    connection.send(waiting.request, waiting.handler)
    waiting.handler.sentLate()
    return true
  }

  #take(): UpstreamConnection | undefined {
    for (;;) {
      const connection = this.idle.takeNewest() ?? this.spare.takeNewest()
      if (connection === undefined) return undefined
      if (connection.usable && this.clock.now() < connection.usableUntil) return connection
      connection.close()
    }
  }

  /** A request finds no connection ready. If others are being opened already, that takes too long for so few. */
  #miss(): void {
    if (this.opening.size < this.#ahead || !this.#mayGrow) return
    this.#mayGrow = false
    this.#ahead = Math.min(MOST_READY, 2 * this.#ahead)
  }

  #open(): void {
    const connection = new UpstreamConnection(this.opener, this)
    connection.oldAt = this.clock.now() + this.options.maxAge
    this.#all.add(connection)
    this.budget.opened()
    this.opening.watch(connection)
  }
}
