import { grown } from './grown.js'

const FIRST_SLOTS = 1 << 12
const FIRST_BYTES = 1 << 16

/**
 * Numbers byte strings from 0, in the order in which they first appear. It makes no string for known bytes: a log is read
 * at millions of lines per second.
 *
 * A hash table with open addressing and linear probing, at most half full.
 */
export class ByteInterner {
  /** id + 1 by slot; 0: free. */
  #slots = new Int32Array(FIRST_SLOTS)
  #hashes = new Int32Array(FIRST_SLOTS >> 1)
  #starts = new Float64Array((FIRST_SLOTS >> 1) + 1)
  #bytes = Buffer.allocUnsafeSlow(FIRST_BYTES)
  #size = 0
  readonly #most: number
  /** The random start of each hash, so that nobody can write a log full of collisions. */
  readonly #basis = (Math.random() * 2 ** 32) | 0

  constructor(most = 2 ** 29 - 1) {
    this.#most = most
  }

  get size(): number {
    return this.#size
  }

  /** The id of these bytes. Unknown bytes get a new one; -1: the table is full. */
  find(bytes: Uint8Array, from: number, to: number): number {
    const hash = this.#hash(bytes, from, to)
    const slots = this.#slots
    const mask = slots.length - 1
    let place = (hash ^ (hash >>> 15)) & mask
    for (let entry = slots[place]!; entry !== 0; entry = slots[place]!) {
      if (this.#hashes[entry - 1] === hash && this.#equals(entry - 1, bytes, from, to)) return entry - 1
      place = (place + 1) & mask
    }
    return this.#size < this.#most ? this.#add(hash, place, bytes.subarray(from, to)) : -1
  }

  text(id: number): string {
    return this.#bytes.toString('utf8', this.#starts[id]!, this.#starts[id + 1]!)
  }

  /** FNV-1a on four bytes at a time, because multiplication is the slow step. The shift mixes high bits into low ones. */
  #hash(bytes: Uint8Array, from: number, to: number): number {
    let hash = this.#basis ^ (to - from)
    let at = from
    for (; at + 4 <= to; at += 4) {
      const four = bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)
      hash = Math.imul(hash ^ four, 0x01000193)
      hash ^= hash >>> 15
    }
    for (; at < to; at += 1) hash = Math.imul(hash ^ bytes[at]!, 0x01000193)
    return hash
  }

  #equals(id: number, bytes: Uint8Array, from: number, to: number): boolean {
    let own = this.#starts[id]!
    if (this.#starts[id + 1]! - own !== to - from) return false
    const kept = this.#bytes
    for (let at = from; at < to; at += 1, own += 1) if (kept[own] !== bytes[at]) return false
    return true
  }

  #add(hash: number, place: number, bytes: Uint8Array): number {
    const id = this.#size
    const start = this.#starts[id]!
    const end = start + bytes.length
    if (end > this.#bytes.length) {
      const more = Buffer.allocUnsafeSlow(Math.max(2 * this.#bytes.length, end))
      more.set(this.#bytes.subarray(0, start))
      this.#bytes = more
    }
    this.#bytes.set(bytes, start)
    this.#slots[place] = id + 1
    this.#hashes[id] = hash
    this.#starts[id + 1] = end
    this.#size += 1
    if (this.#size === this.#hashes.length) this.#grow()
    return id
  }

  #grow(): void {
    const length = 2 * this.#slots.length
    const slots = new Int32Array(length)
    for (let id = 0; id < this.#size; id += 1) {
      const hash = this.#hashes[id]!
      let place = (hash ^ (hash >>> 15)) & (length - 1)
      while (slots[place] !== 0) place = (place + 1) & (length - 1)
      slots[place] = id + 1
    }
    this.#slots = slots
    this.#hashes = grown(this.#hashes, length >> 1)
    this.#starts = grown(this.#starts, (length >> 1) + 1)
  }
}
