/**
 * How much of a body has to come before its request is sent (contract 8.2).
 *
 * A short body has to be there as a whole, so that a slow client does not occupy the upstream. A body of unknown length, too,
 * unless it is longer than the buffer, or has not ended some time after the turn of its request: it may be one that waits for
 * the answer. Then it is sent as it comes, but only one such of each client at a time.
 */
import type { Watched } from '../../deadlines.js'
import type { RequestBody } from '../../http/client.js'
import type { BodyLimits } from './body-limits.js'
import type { OpenBodies } from './open-bodies.js'

export interface BodyArrivalOptions {
  readonly body: RequestBody
  /** The client whose body it is. */
  readonly client: string
  /** Whether its length is known. */
  readonly sized: boolean
  readonly limits: BodyLimits
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
    options.body.onReady = () => this.#isReady()
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
    const { sized, limits } = this.#options
    this.#state = 'late'
    limits.whole.watch(this)
    if (!sized) limits.unended.watch(this.#unended)
  }

  /** The request is over. */
  end(): void {
    this.#unwatch()
    this.#leave()
    this.#state = 'ready'
  }

  expired(): void {
    if (this.#state === 'late') this.#options.onLate()
  }

  /** As much of it has come as has to, or all of one that is sent as it comes. */
  #isReady(): void {
    if (this.#state === 'late') {
      this.#state = 'ready'
      this.#unwatch()
      this.#leave()
      this.#options.onReady()
    } else if (this.#options.body.whole) this.#leave()
  }

  #sendOpen(): void {
    const { client, open } = this.#options
    if (open.take(client, this.#takePlace)) this.#takePlace()
    else this.#open = 'waiting'
  }

  readonly #takePlace = (): void => {
    this.#open = 'open'
    this.#state = 'ready'
    this.#unwatch()
    this.#options.onReady()
  }

  /** It is not, or no longer, sent as it comes. */
  #leave(): void {
    const { client, open } = this.#options
    const wasOpen = this.#open === 'open'
    if (this.#open === 'waiting') open.leave(client, this.#takePlace)
    this.#open = 'no'
    if (wasOpen) open.end(client)
  }

  #unwatch(): void {
    const { whole, unended } = this.#options.limits
    whole.unwatch(this)
    unended.unwatch(this.#unended)
  }
}
