/**
 * The instances of one bucket, by key. Most keys of a proxy have no request on its way, and there may be a million of them.
 * Such an instance sleeps: it is a row of numbers and not an object, so that it takes little memory and the garbage collector
 * has nothing to visit. An instance is awake from the moment that someone asks for it until nobody counts on it
 * any more (`sleep`). While it is awake there is one object for it.
 *
 * It is a hash table with chains. Rows are dense: the last one fills the place of one that goes. They are in chunks, so
 * that growing copies none of them.
 */

import { type BucketLimits, QueuedBucket } from './bucket/queued-bucket.js'
import { KeyedBucket, type KeyedBuckets } from './keyed-bucket.js'
import type { SharedBucket } from './queue/lane.js'

/** Rows in a chunk: a power of two. The first chunk starts small. */
const CHUNK = 4096
const CHUNK_BITS = 12
const LEAST = 16

const NONE = -1

/** A row of numbers: a hash and the next row of its chain (two 32-bit numbers), what is held, and since when in ms. */
const NUMBERS = 3
const LINKS = 2 * NUMBERS

/** Of a row: the key, and the bucket if it is awake, else its limits. */
const REFS = 2

class Chunk {
  readonly numbers: Float64Array
  readonly links: Int32Array
  readonly refs: (string | SharedBucket | BucketLimits | undefined)[]

  constructor(rows: number, from?: Chunk) {
    this.numbers = new Float64Array(NUMBERS * rows)
    this.links = new Int32Array(this.numbers.buffer)
    this.refs = new Array(REFS * rows).fill(undefined)
    if (from === undefined) return
    this.numbers.set(from.numbers)
    for (const [at, ref] of from.refs.entries()) this.refs[at] = ref
  }
}

export class Instances implements KeyedBuckets {
  size = 0
  readonly #chunks = [new Chunk(LEAST)]
  #capacity = LEAST
  /** The first row of each chain. */
  #heads = new Int32Array(LEAST).fill(NONE)
  readonly #seed = Math.floor(Math.random() * 2 ** 32)
  /** How often a row has moved. */
  #moves = 0
  /** The row that `next` returns. */
  #hand = 0

  /** The row of a key. -1: there is none. It is valid until a row is removed. */
  find(key: string): number {
    const hash = hashOf(key, this.#seed)
    let row = this.#heads[hash & (this.#heads.length - 1)]!
    while (row !== NONE) {
      const { links, refs } = this.#chunkOf(row)
      const at = row & (CHUNK - 1)
      if (links[LINKS * at] === hash && refs[REFS * at] === key) return row
      row = links[LINKS * at + 1]!
    }
    return NONE
  }

  /** Adds an instance of a key that has none. Without a `bucket` it is an empty one. Returns it, awake. */
  add(key: string, limits: BucketLimits, bucket?: SharedBucket): SharedBucket {
    const row = this.size
    if (row === this.#capacity) this.#grow()
    this.size = row + 1
    if (row >= this.#heads.length) this.#rehash()
    const added = bucket ?? new KeyedBucket(limits, this, row)
    const { links, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    refs[REFS * at] = key
    refs[REFS * at + 1] = added
    links[LINKS * at] = hashOf(key, this.#seed)
    this.#link(row)
    return added
  }

  keyOf(row: number): string {
    return this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1))] as string
  }

  /** The instance of a row. It is awake from now on. */
  wake(row: number): SharedBucket {
    const { numbers, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    const ref = refs[REFS * at + 1] as SharedBucket | BucketLimits
    if (ref instanceof QueuedBucket) return ref
    const bucket = new KeyedBucket(ref, this, row)
    bucket.load(numbers, NUMBERS * at + 1)
    refs[REFS * at + 1] = bucket
    return bucket
  }

  /** The instance of a row, to read it. If it sleeps this is a copy. */
  look(row: number): SharedBucket {
    const { numbers, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    const ref = refs[REFS * at + 1] as SharedBucket | BucketLimits
    if (ref instanceof QueuedBucket) return ref
    const copy = new KeyedBucket(ref, this, row)
    copy.load(numbers, NUMBERS * at + 1)
    return copy
  }

  sleep(bucket: KeyedBucket): void {
    const { row } = bucket
    if (bucket.holders > 0 || bucket.waitingState !== undefined || row >= this.size) return
    const { numbers, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    // It may have been removed meanwhile.
    if (refs[REFS * at + 1] !== bucket) return
    bucket.save(numbers, NUMBERS * at + 1)
    refs[REFS * at + 1] = bucket.limits
  }

  /** Removes an instance. The last one takes its row. If `next` has just returned that, it does so again. */
  remove(row: number): void {
    const last = this.size - 1
    this.#unlink(row)
    if (row !== last) this.#move(last, row)
    this.#chunkOf(last).refs.fill(undefined, REFS * (last & (CHUNK - 1)), REFS * ((last & (CHUNK - 1)) + 1))
    this.size = last
    if (row === this.#hand - 1) this.#hand -= 1
    if (this.#capacity - this.size < 2 * CHUNK) return
    this.#chunks.pop()
    this.#capacity -= CHUNK
  }

  /** The next row, round and round. -1: there is none. */
  next(): number {
    if (this.size === 0) return NONE
    if (this.#hand >= this.size) this.#hand = 0
    this.#hand += 1
    return this.#hand - 1
  }

  /**
   * All instances with their keys. One that sleeps is awake only meanwhile. If some are removed on the way, others may come
   * twice, and none that stays is left out.
   */
  *entries(): Generator<[string, SharedBucket]> {
    const moves = this.#moves
    for (let row = 0; row < this.size; row += 1) yield* this.#entry(row)
    if (this.#moves === moves) return
    // A row that has moved to the front may have been missed. On the way back it cannot be.
    for (let row = this.size - 1; row >= 0; row -= 1) if (row < this.size) yield* this.#entry(row)
  }

  *#entry(row: number): Generator<[string, SharedBucket]> {
    const slept = this.#sleeps(row)
    const bucket = this.wake(row)
    yield [this.keyOf(row), bucket]
    if (slept) this.sleep(bucket as KeyedBucket)
  }

  #sleeps(row: number): boolean {
    return !(this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1)) + 1] instanceof QueuedBucket)
  }

  #chunkOf(row: number): Chunk {
    return this.#chunks[row >> CHUNK_BITS]!
  }

  #grow(): void {
    if (this.#capacity < CHUNK) {
      this.#capacity *= 2
      this.#chunks[0] = new Chunk(this.#capacity, this.#chunks[0])
    } else {
      this.#capacity += CHUNK
      this.#chunks.push(new Chunk(CHUNK))
    }
  }

  #rehash(): void {
    this.#heads = new Int32Array(2 * this.#heads.length).fill(NONE)
    for (let row = 0; row < this.size - 1; row += 1) this.#link(row)
  }

  #link(row: number): void {
    const { links } = this.#chunkOf(row)
    const at = LINKS * (row & (CHUNK - 1))
    const head = links[at]! & (this.#heads.length - 1)
    links[at + 1] = this.#heads[head]!
    this.#heads[head] = row
  }

  #unlink(row: number): void {
    this.#relink(row, this.#chunkOf(row).links[LINKS * (row & (CHUNK - 1)) + 1]!)
  }

  /** Lets whatever points to a row of a chain point to another one. */
  #relink(row: number, to: number): void {
    const head = this.#chunkOf(row).links[LINKS * (row & (CHUNK - 1))]! & (this.#heads.length - 1)
    let at = this.#heads[head]!
    if (at === row) {
      this.#heads[head] = to
      return
    }
    for (;;) {
      const { links } = this.#chunkOf(at)
      const place = LINKS * (at & (CHUNK - 1)) + 1
      if (links[place] === row) {
        links[place] = to
        return
      }
      at = links[place]!
    }
  }

  /** Moves a row to a place that is free. */
  #move(row: number, to: number): void {
    this.#moves += 1
    this.#relink(row, to)
    const from = this.#chunkOf(row)
    const chunk = this.#chunkOf(to)
    const at = row & (CHUNK - 1)
    const place = to & (CHUNK - 1)
    // Not as numbers with a fraction: hashes may look like NaN.
    for (let link = 0; link < LINKS; link += 1) chunk.links[LINKS * place + link] = from.links[LINKS * at + link]!
    const bucket = from.refs[REFS * at + 1]
    chunk.refs[REFS * place] = from.refs[REFS * at]
    chunk.refs[REFS * place + 1] = bucket
    if (bucket instanceof KeyedBucket) bucket.row = to
  }
}

/** A 32-bit hash. The seed keeps clients from choosing keys of one chain. */
function hashOf(key: string, seed: number): number {
  let hash = seed
  for (let at = 0; at < key.length; at += 1) {
    hash = Math.imul(hash ^ key.charCodeAt(at), 0x5bd1e995)
    hash ^= hash >>> 15
  }
  hash = Math.imul(hash, 0x85ebca6b)
  return hash ^ (hash >>> 13)
}
