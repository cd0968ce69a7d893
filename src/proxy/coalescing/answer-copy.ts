import type { ByteBudget } from '../http/connection/byte-budget.js'
import { HeldBytes } from '../http/connection/byte-budget.js'
import { type AnswerHeadLines, areForAll } from './shareable.js'

/** Bytes. A longer answer is for its own client only. */
export const LONGEST_SHARED = 1024 * 1024

/** Bytes. Of an answer whose length is not known so much is expected at first. */
const USUAL = 16 * 1024

/** All copies count as those of one client, whose name is no address. So they leave room for what clients need. */
const OWNER = 'coalesced answers'

/** A whole answer, in memory while somebody holds it. */
export class SharedAnswer {
  readonly head: AnswerHeadLines
  readonly body: Buffer
  /** Names and values in turn. */
  readonly trailers: readonly string[]
  readonly #bytes: HeldBytes
  #holders = 0

  constructor(head: AnswerHeadLines, body: Buffer, trailers: readonly string[], bytes: HeldBytes) {
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
  /** Bytes are still copied. */
  isOpen = true
  readonly #head: AnswerHeadLines
  readonly #budget: ByteBudget
  readonly #bytes: HeldBytes
  readonly #owner: CopyOwner
  #body: Buffer = Buffer.alloc(0)
  #length = 0

  constructor(head: AnswerHeadLines, budget: ByteBudget, owner: CopyOwner) {
    this.#head = head
    this.#budget = budget
    this.#bytes = new HeldBytes(budget, OWNER)
    this.#owner = owner
  }

  /** More of the body has come. */
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

  /** Nobody wants it. */
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
