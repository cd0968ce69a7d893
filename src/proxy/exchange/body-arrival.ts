/**
 * How much of a body has to come before its request is sent (contract 8.2).
 *
 * A short body has to be there as a whole, so that a slow client does not occupy the upstream. A body of unknown length, too,
 * unless it is longer than the buffer, or has not ended some time after the turn of its request: it may be one that waits for
 * the answer. Then it is sent as it comes, but only one such of each client at a time.
 */
import type { Deadlines, Watched } from '../deadlines.js'
import type { RequestBody } from '../http/client.js'

/** Deadlines of bodies that are still coming when it is the turn of their requests. */
export interface BodyDeadlines {
  /** From the turn until it has to be there (`limits.bodyTimeout`). */
  readonly whole: Deadlines
  /** From the turn until a body of unknown length is sent as it comes. */
  readonly unended: Deadlines
}

/** ms. */
export const UNENDED = 1_000

/** Clients with a body that is sent as it comes, and their requests that wait to be the next. */
export class OpenBodies {
  readonly #open = new Map<string, Set<() => void>>()

  /**
   * @param next called if it is this body's turn later
   * @returns false if the client has such a body already
   */
  take(client: string, next: () => void): boolean {
    const waiting = this.#open.get(client)
    if (waiting === undefined) this.#open.set(client, new Set())
    else waiting.add(next)
    return waiting === undefined
  }

  /** No longer waits. */
  leave(client: string, next: () => void): void {
    this.#open.get(client)?.delete(next)
  }

  /** The body has ended. The next one takes its place. */
  end(client: string): void {
    const waiting = this.#open.get(client)!
    const [next] = waiting
    if (next === undefined) this.#open.delete(client)
    else {
      waiting.delete(next)
      next()
    }
  }
}

export interface BodyArrivalOptions {
  readonly body: RequestBody
  /** The client whose body it is. */
  readonly client: string
  /** Whether its length is known. */
  readonly sized: boolean
  readonly deadlines: BodyDeadlines
  readonly open: OpenBodies
  /** It is the request's turn, and now it can be sent. Called once. */
  onReady(): void
  /** It has not come in time. */
  onLate(): void
}

export class BodyArrival implements Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly #options: BodyArrivalOptions
  /** The deadline after which it is sent as it comes. */
  readonly #unended: Watched
  #state: 'coming' | 'late' | 'ready' = 'coming'
  /** It is sent as it comes: no other of its client is. */
  #open: 'no' | 'waiting' | 'open' = 'no'

  constructor(options: BodyArrivalOptions) {
    this.#options = options
    const expired = (): void => this.#sendOpen()
    this.#unended = { list: undefined, previous: undefined, next: undefined, dueAt: 0, expired }
  }

  /** Whether the request can be sent. */
  get ready(): boolean {
    return this.#state === 'ready' || this.#options.body.ready
  }

  /** It is the request's turn, and it is not ready. */
  awaitRest(): void {
    if (this.#state !== 'coming') return
    const { body, sized, deadlines } = this.#options
    this.#state = 'late'
    body.onReady = () => this.#isReady()
    deadlines.whole.watch(this)
    if (!sized) deadlines.unended.watch(this.#unended)
  }

  /** The request is over, or all of its body has been sent. */
  end(): void {
    const { client, open } = this.#options
    this.#unwatch()
    this.#leave()
    this.#state = 'ready'
    if (this.#open !== 'open') return
    this.#open = 'no'
    open.end(client)
  }

  expired(): void {
    if (this.#state === 'late') this.#options.onLate()
  }

  #isReady(): void {
    if (this.#state !== 'late') return
    this.#state = 'ready'
    this.#unwatch()
    this.#leave()
    this.#options.onReady()
  }

  #sendOpen(): void {
    const { client, open } = this.#options
    this.#open = open.take(client, this.#next) ? 'open' : 'waiting'
    if (this.#open === 'open') this.#isReady()
  }

  readonly #next = (): void => {
    this.#open = 'open'
    this.#isReady()
  }

  #leave(): void {
    if (this.#open !== 'waiting') return
    this.#options.open.leave(this.#options.client, this.#next)
    this.#open = 'no'
  }

  #unwatch(): void {
    const { whole, unended } = this.#options.deadlines
    whole.unwatch(this)
    unended.unwatch(this.#unended)
  }
}
