import { Watched } from '../deadlines.js'
import { type ByteBudget, HeldBytes } from '../http/byte-budget.js'
import type { ClientAnswer } from '../http/client.js'
import { clientHeaders } from '../http/headers.js'
import type { RequestFacts } from '../http/request.js'
import type { ResponseHead } from '../upstream/response-parser.js'
import type { Upstream } from '../upstream/upstream.js'
import { areForAll } from './alike.js'

/** Bytes. A longer answer is for its own client only. */
export const LONGEST_SHARED = 1024 * 1024
/** Bytes. Of an answer whose length is not known so much is expected at first. */
const USUAL = 16 * 1024
/** All copies count as those of one client, whose name is no address. So they leave room for what clients need. */
const OWNER = 'coalesced answers'

export class SharedAnswer {
  readonly head: ResponseHead
  readonly body: Buffer
  readonly trailers: readonly string[]
  readonly #bytes: HeldBytes
  #holders = 0

  constructor(head: ResponseHead, body: Buffer, trailers: readonly string[], bytes: HeldBytes) {
    this.head = head
    this.body = body
    this.trailers = trailers
    this.#bytes = bytes
  }

  hold(): void {
    this.#holders += 1
  }

  drop(): void {
    this.#holders -= 1
    if (this.#holders === 0) this.#bytes.hold(0)
  }
}

/** Copies an answer while its own client gets it. */
export class AnswerCopy {
  isOpen = true
  readonly #head: ResponseHead
  readonly #budget: ByteBudget
  readonly #bytes: HeldBytes
  readonly #owner: CopyOwner
  #body: Buffer = Buffer.alloc(0)
  #length = 0

  constructor(head: ResponseHead, budget: ByteBudget, owner: CopyOwner) {
    this.#head = head
    this.#budget = budget
    this.#bytes = new HeldBytes(budget, OWNER)
    this.#owner = owner
  }

  read(buffer: Buffer, from: number, to: number): void {
    if (!this.isOpen) return
    const length = this.#length + to - from
    if (!this.#makeRoom(length)) return this.#owner.unshared()
    buffer.copy(this.#body, this.#length, from, to)
    this.#length = length
  }

  /** Its own client takes less than comes. It is read on while there is room for what that client leaves. */
  leftBehind(client: string): void {
    if (this.isOpen && this.#budget.room(client) <= 0) this.#owner.unshared()
  }

  #makeRoom(length: number): boolean {
    if (length <= this.#body.length) return true
    if (length > LONGEST_SHARED) return false
    const size = Math.min(LONGEST_SHARED, this.#head.length ?? Math.max(USUAL, 2 * this.#body.length, length))
    if (this.#budget.room(OWNER) < size - this.#bytes.held) return false
    this.#bytes.hold(size)
    const larger = Buffer.allocUnsafe(size)
    this.#body.copy(larger, 0, 0, this.#length)
    this.#body = larger
    return true
  }

  /** The answer is whole. @param trailers names and values in turn */
  end(trailers: readonly string[]): void {
    if (!this.isOpen) return
    if (!areForAll(trailers)) return this.#owner.unshared()
    this.isOpen = false
    const answer = new SharedAnswer(this.#head, this.#body.subarray(0, this.#length), trailers, this.#bytes)
    answer.hold()
    this.#owner.whole(answer)
    answer.drop()
  }

  drop(): void {
    if (!this.isOpen) return
    this.isOpen = false
    this.#body = Buffer.alloc(0)
    this.#bytes.hold(0)
  }
}

export interface CopyOwner {
  whole(answer: SharedAnswer): void
  /** It is longer than is copied, there is no room for it, or its trailers are for one client. */
  unshared(): void
}

/** Bytes that are given to a client at a time. Without room for them it gets the least: a fast client takes that at once. */
const PIECE = 64 * 1024
const LEAST = 4 * 1024
/** Over TLS what waits for a client is kept as it is and encrypted. */
const COPIES = 2

interface DeliveryOptions {
  readonly answer: SharedAnswer
  readonly upstream: Upstream
  readonly client: string
  /** What waits for the client counts in it. */
  readonly budget: ByteBudget
  readonly facts: RequestFacts
  readonly res: ClientAnswer
  readonly own: readonly string[]
}

export class Delivery extends Watched {
  readonly #options: DeliveryOptions
  #given = 0
  #taken = 0
  #isOver = false

  constructor(options: DeliveryOptions) {
    super()
    this.#options = options
    options.answer.hold()
  }

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

  flushed(): void {
    this.abort()
  }

  /** The client has been waited for. It goes on if it has taken something meanwhile. */
  expired(): void {
    const { res, upstream } = this.#options
    const { taken } = res
    if (taken === this.#taken) {
      this.abort()
      return res.cut()
    }
    this.#taken = taken
    upstream.progress.watch(this)
  }

  abort(): void {
    if (this.#isOver) return
    this.#isOver = true
    this.#options.upstream.progress.unwatch(this)
    this.#options.answer.drop()
  }
}
