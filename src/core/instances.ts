/**
 * The instances of one bucket, by key. There may be a million of them, and most have no request on its way. Such an instance
 * sleeps: it is a row of numbers and not an object, so it takes little memory and the garbage collector has nothing to visit.
 * It is awake, with one object, from the moment that someone asks for it until nobody holds it any more (`sleep`).
 *
 * Rows are dense: the last one fills the place of one that goes. They are in chunks, so growing copies none of them. An index
 * with open addressing finds them. An entry holds the number of a row and, in the bits that are left, a part of the hash of its
 * key. So a look-up hardly ever reads another row than that of its key.
 */
import { type BucketLimits, QueuedBucket } from './bucket/queued-bucket.js'
import type { Lane, SharedBucket, Source } from './queue/lane.js'
import { hashOf, randomSeed } from './structures/text.js'

/** Rows in a chunk: a power of two. The first chunk starts small. */
const CHUNK = 4096
const CHUNK_BITS = 12
const LEAST = 16
const NONE = -1
/** The index is larger than the number of rows by this factor at least. */
const SPACE = 4 / 3
/** Of a row: what is held, and since when in ms. */
const NUMBERS = 2
/** Of a row: the key, and the bucket if it is awake, else its limits. */
const REFS = 2

class Chunk {
  readonly numbers: Float64Array
  readonly hashes: Int32Array
  readonly refs: (string | SharedBucket | BucketLimits | undefined)[]

  constructor(rows: number, from?: Chunk) {
    this.numbers = new Float64Array(NUMBERS * rows)
    this.hashes = new Int32Array(rows)
    this.refs = new Array(REFS * rows).fill(undefined)
    if (from === undefined) return
    this.numbers.set(from.numbers)
    this.hashes.set(from.hashes)
    for (const [at, ref] of from.refs.entries()) this.refs[at] = ref
  }
}

export class Instances {
  size = 0
  readonly #chunks = [new Chunk(LEAST)]
  #capacity = LEAST
  /** Its length is a power of two. The low bits of an entry are a row, the others are those of the hash. */
  #index = new Int32Array(2 * LEAST).fill(NONE)
  readonly #seed = randomSeed()
  #moves = 0
  #hand = 0

  /** The row of a key. -1: there is none. It is valid until a row is removed. */
  find(key: string): number {
    const hash = hashOf(key, this.#seed)
    const index = this.#index
    const mask = index.length - 1
    for (let at = hash & mask; index[at] !== NONE; at = (at + 1) & mask) {
      if (((index[at]! ^ hash) & ~mask) !== 0) continue
      const row = index[at]! & mask
      if (this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1))] === key) return row
    }
    return NONE
  }

  /** Adds an instance of a key that has none. Without a `bucket` it is an empty one. Returns it, awake. */
  add(key: string, limits: BucketLimits, bucket?: SharedBucket): SharedBucket {
    const row = this.size
    if (row === this.#capacity) this.#grow()
    this.size = row + 1
    if (SPACE * this.size > this.#index.length) this.#growIndex()
    const added = bucket ?? new KeyedBucket(limits, this, row)
    const { hashes, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    refs[REFS * at] = key
    refs[REFS * at + 1] = added
    hashes[at] = hashOf(key, this.#seed)
    this.#enter(row)
    return added
  }

  keyOf(row: number): string {
    return this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1))] as string
  }

  wake(row: number): SharedBucket {
    const bucket = this.look(row)
    this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1)) + 1] = bucket
    return bucket
  }

  /** Read-only: of an instance that sleeps it is a copy. */
  look(row: number): SharedBucket {
    const { numbers, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    const ref = refs[REFS * at + 1] as SharedBucket | BucketLimits
    if (ref instanceof QueuedBucket) return ref
    const copy = new KeyedBucket(ref, this, row)
    copy.load(numbers, NUMBERS * at)
    return copy
  }

  /** Puts one to sleep if nobody counts on it, nobody waits and no block lasts. */
  sleep(bucket: KeyedBucket): void {
    const { row } = bucket
    if (bucket.holders > 0 || !bucket.isPlain || row >= this.size) return
    const { numbers, refs } = this.#chunkOf(row)
    const at = row & (CHUNK - 1)
    // It may have been removed meanwhile.
    if (refs[REFS * at + 1] !== bucket) return
    bucket.save(numbers, NUMBERS * at)
    refs[REFS * at + 1] = bucket.limits
  }

  /** The last row takes the place of this one. If `next` has just returned that, it does so again. */
  remove(row: number): void {
    const last = this.size - 1
    this.#vacate(row)
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

  /** Sleeping instances are awake only meanwhile. If some are removed on the way, others may come twice; none is left out. */
  *entries(): Generator<[string, SharedBucket]> {
    const moves = this.#moves
    for (let row = 0; row < this.size; row += 1) yield* this.#entry(row)
    if (this.#moves === moves) return
    // A row that has moved to the front may have been missed. On the way back it cannot be.
    for (let row = this.size - 1; row >= 0; row -= 1) if (row < this.size) yield* this.#entry(row)
  }

  /** All keys that are there from the first to the last step, and maybe others. Some may come twice. None wakes. */
  *keys(): Generator<string> {
    // From the end on: the last row takes the place of one that goes, and has come already.
    for (let row = this.size - 1; row >= 0; row -= 1) if (row < this.size) yield this.keyOf(row)
  }

  *#entry(row: number): Generator<[string, SharedBucket]> {
    const slept = !(this.#chunkOf(row).refs[REFS * (row & (CHUNK - 1)) + 1] instanceof QueuedBucket)
    const bucket = this.wake(row)
    try {
      yield [this.keyOf(row), bucket]
    } finally {
      // Also if the caller breaks off here.
      if (slept) this.sleep(bucket as KeyedBucket)
    }
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

  #growIndex(): void {
    this.#index = new Int32Array(2 * this.#index.length).fill(NONE)
    for (let row = 0; row < this.size - 1; row += 1) this.#enter(row)
  }

  #hashOf(row: number): number {
    return this.#chunkOf(row).hashes[row & (CHUNK - 1)]!
  }

  #entryOf(row: number): number {
    return (this.#hashOf(row) & -this.#index.length) | row
  }

  #enter(row: number): void {
    const index = this.#index
    const mask = index.length - 1
    let at = this.#hashOf(row) & mask
    while (index[at] !== NONE) at = (at + 1) & mask
    index[at] = this.#entryOf(row)
  }

  #placeOf(row: number): number {
    const index = this.#index
    const mask = index.length - 1
    const entry = this.#entryOf(row)
    let at = this.#hashOf(row) & mask
    while (index[at] !== entry) at = (at + 1) & mask
    return at
  }

  /** Removes the entry of a row. Those after it move up as far as their hashes allow. */
  #vacate(row: number): void {
    const index = this.#index
    const mask = index.length - 1
    let free = this.#placeOf(row)
    for (let at = (free + 1) & mask; index[at] !== NONE; at = (at + 1) & mask) {
      const first = this.#hashOf(index[at]! & mask) & mask
      if (((at - first) & mask) < ((at - free) & mask)) continue
      index[free] = index[at]!
      free = at
    }
    index[free] = NONE
  }

  #move(row: number, to: number): void {
    this.#moves += 1
    const from = this.#chunkOf(row)
    const chunk = this.#chunkOf(to)
    const at = row & (CHUNK - 1)
    const place = to & (CHUNK - 1)
    const entry = this.#placeOf(row)
    chunk.hashes[place] = from.hashes[at]!
    this.#index[entry] = this.#entryOf(to)
    chunk.numbers[NUMBERS * place] = from.numbers[NUMBERS * at]!
    chunk.numbers[NUMBERS * place + 1] = from.numbers[NUMBERS * at + 1]!
    const bucket = from.refs[REFS * at + 1]
    chunk.refs[REFS * place] = from.refs[REFS * at]
    chunk.refs[REFS * place + 1] = bucket
    if (bucket instanceof KeyedBucket) bucket.row = to
  }
}

/** A bucket instance that can be put to sleep: two numbers are all that the table keeps then. */
export class KeyedBucket extends QueuedBucket<Source, Lane> {
  declare readonly home: Instances
  declare row: number
  declare holders: number

  constructor(limits: BucketLimits, home: Instances, row: number) {
    super(limits)
    this.home = home
    this.row = row
    this.holders = 0
  }

  load(numbers: Float64Array, at: number): void {
    this.held = numbers[at]!
    this.heldAt = numbers[at + 1]!
  }

  /** Writes its two numbers. From then on this object is a copy. */
  save(numbers: Float64Array, at: number): void {
    numbers[at] = this.held
    numbers[at + 1] = this.heldAt
  }
}
