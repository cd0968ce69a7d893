import type { Watched } from '../deadlines.js'
import type { ClientAnswer } from '../http/client.js'
import type { ByteBudget } from '../http/connection/byte-budget.js'
import { clientHeaders } from '../http/headers.js'
import type { RequestFacts } from '../http/request.js'
import type { Upstream } from '../upstream/upstream.js'
import type { SharedAnswer } from './answer-copy.js'

/** Bytes that are given to a client at a time. Without room for them it gets the least: a fast client takes that at once. */
const PIECE = 64 * 1024
const LEAST = 4 * 1024

/** Over TLS what waits for a client is kept as it is and encrypted. */
const COPIES = 2

export interface DeliveryOptions {
  readonly answer: SharedAnswer
  /** The one that the request would have been sent to. */
  readonly upstream: Upstream
  readonly client: string
  /** What waits for the client counts in it. */
  readonly budget: ByteBudget
  readonly facts: RequestFacts
  readonly res: ClientAnswer
  /** Headers of our own: names and values in turn. */
  readonly own: readonly string[]
}

/** Gives a shared answer to one client, as fast as that takes it. */
export class Delivery implements Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly #options: DeliveryOptions
  /** Bytes of the body that have been given to the client. */
  #given = 0
  /** Bytes that it had taken when it was waited for last. */
  #taken = 0
  #isOver = false

  constructor(options: DeliveryOptions) {
    this.#options = options
    options.answer.hold()
  }

  /** The client has not been given all of it. */
  get isPartial(): boolean {
    return !this.#isOver && this.#given < this.#options.answer.body.length
  }

  start(): void {
    const { answer, res, upstream, client, facts, own } = this.#options
    const { status, reason, fields, length } = answer.head
    const headers = clientHeaders(fields, status, length === 0 || facts.oldHttp ? 'unchunked' : 'chunkable')
    const { responseBuffer: ahead } = upstream.settings
    upstream.progress.watch(this)
    res.start({ status, reason, headers: [...headers, ...own], length, ahead, client })
    this.#give()
  }

  #give(): void {
    const { answer, res, upstream, client, budget } = this.#options
    const { body, trailers } = answer
    while (this.#given < body.length) {
      const from = this.#given
      const room = Math.floor(budget.room(client) / COPIES)
      this.#given = Math.min(body.length, from + Math.max(LEAST, Math.min(PIECE, room)))
      if (res.data(body, from, this.#given)) continue
      return res.onceDrained(() => {
        if (this.#isOver) return
        upstream.progress.watch(this)
        this.#give()
      })
    }
    res.complete(trailers)
  }

  /** The client has all of it. */
  flushed(): void {
    this.#end()
  }

  /** The client is gone. */
  abort(): void {
    this.#end()
  }

  /** The client has been waited for. It goes on if it has taken something meanwhile. */
  expired(): void {
    const { res, upstream } = this.#options
    const { taken } = res
    if (taken === this.#taken) {
      this.#end()
      return res.cut()
    }
    this.#taken = taken
    upstream.progress.watch(this)
  }

  #end(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#options.upstream.progress.unwatch(this)
    this.#options.answer.drop()
  }
}
