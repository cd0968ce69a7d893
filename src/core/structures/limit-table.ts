/**
 * Limits of single keys, maybe of a million. Nothing in it is an object: a key takes about 27 bytes and its text, and 40 more if no
 * other key has the same limits. The garbage collector has nothing to visit, and threads share one without copying it.
 *
 * Entries are in the order of their source: a set, which is the number of their limits, the length of the key, and its text. An index
 * with open addressing finds them. It has the whole hash of each key, so a look-up hardly ever reads another entry, and touches two
 * places of the memory in all.
 */
import { hashOf, randomSeed } from './text.js'

/** What a key may have of its own, in the order of the numbers of a set. */
export const OWN = ['rate', 'capacity', 'weight', 'priority', 'maxInFlight'] as const
/** In the order of `OWN`. NaN: as its bucket says. */
export type OwnLimits = readonly number[]

export const MOST_KEYS = 2 ** 22
/** The index has this many places for each key at least. */
const SPACE = 4 / 3
const NONE = -1
/** A bit of the length of a key: its text has two bytes for each character. */
const WIDE = 2 ** 30
/** Bytes of an entry before its text. Entries begin at multiples of 4. */
const HEAD = 8
/** Sets above this number are not looked for any more. */
const MOST_SHARED = 2 ** 16

export interface TableMemory {
  readonly seed: number
  readonly size: number
  /** For each place the hash of a key, and the word at which its entry begins, counted from 1. 0: it is free. */
  readonly index: Int32Array
  readonly entries: Int32Array
  /** The numbers of all sets. */
  readonly numbers: Float64Array
}

export class LimitTable {
  readonly #text: Uint8Array

  constructor(readonly memory: TableMemory) {
    this.#text = new Uint8Array(memory.entries.buffer)
  }

  get size(): number {
    return this.memory.size
  }

  get bytes(): number {
    const { index, entries, numbers } = this.memory
    return index.byteLength + entries.byteLength + numbers.byteLength
  }

  /** The set of a key. -1: it has none. */
  find(key: string): number {
    const entry = this.entryOf(key)
    return entry === NONE ? NONE : this.setOf(entry)
  }

  /** Where the entry of a key begins. -1: it has none. */
  entryOf(key: string, hash = hashOf(key, this.memory.seed)): number {
    const { index } = this.memory
    const mask = index.length - 2
    for (let at = (hash << 1) & mask; index[at + 1] !== 0; at = (at + 2) & mask)
      if (index[at] === hash && this.has(index[at + 1]! - 1, key)) return index[at + 1]! - 1
    return NONE
  }

  setOf(entry: number): number {
    return this.memory.entries[entry]!
  }

  own(set: number): OwnLimits {
    return Array.from(this.memory.numbers.subarray(OWN.length * set, OWN.length * (set + 1)))
  }

  has(entry: number, key: string): boolean {
    const text = this.#text
    const head = this.memory.entries[entry + 1]!
    const { length } = key
    if ((head & ~WIDE) !== length) return false
    const start = 4 * entry + HEAD
    if (head === length) {
      for (let at = 0; at < length; at += 1) if (text[start + at] !== key.charCodeAt(at)) return false
      return true
    }
    for (let at = 0; at < length; at += 1)
      if ((text[start + 2 * at]! | (text[start + 2 * at + 1]! << 8)) !== key.charCodeAt(at)) return false
    return true
  }

  keyOf(entry: number): string {
    const text = this.#text
    const head = this.memory.entries[entry + 1]!
    const length = head & ~WIDE
    const start = 4 * entry + HEAD
    let key = ''
    for (let at = 0; at < length; at += 1)
      key += String.fromCharCode(
        head === length ? text[start + at]! : text[start + 2 * at]! | (text[start + 2 * at + 1]! << 8),
      )
    return key
  }

  /** Where each entry begins. */
  *all(): Generator<number> {
    for (let entry = 0; entry < this.end; entry = this.next(entry)) yield entry
  }

  /** Where the one after it begins. */
  next(entry: number): number {
    return entry + wordsFor(this.memory.entries[entry + 1]!)
  }

  get end(): number {
    return this.memory.entries.length
  }
}

function wordsFor(head: number): number {
  return HEAD / 4 + (((head & WIDE ? 2 : 1) * (head & ~WIDE) + 3) >> 2)
}

export class LimitTableBuilder {
  readonly #seed: number
  #index: Int32Array
  #entries: Int32Array
  #text: Uint8Array
  #used = 0
  /** As long as the same keys come in the same order only their sets are new. Undefined: they do not. */
  #followed: LimitTable | undefined
  #numbers = new Float64Array(64)
  #setCount = 0
  /** By their numbers as a text. */
  readonly #known = new Map<string, number>()
  #table: LimitTable | undefined
  size = 0

  /** @param before a table with much the same keys */
  constructor(before?: LimitTable) {
    this.#followed = before
    this.#seed = before?.memory.seed ?? randomSeed()
    this.#index = before?.memory.index ?? new Int32Array(128)
    this.#entries = before === undefined ? new Int32Array(256) : new Int32Array(before.memory.entries)
    this.#text = new Uint8Array(this.#entries.buffer)
  }

  /** @returns the number of a set with these limits */
  setOf(own: OwnLimits): number {
    const isFull = this.#known.size >= MOST_SHARED
    const name = isFull ? '' : own.join()
    const known = this.#known.get(name)
    if (known !== undefined) return known
    const set = this.#setCount
    this.#setCount += 1
    if (OWN.length * this.#setCount > this.#numbers.length) this.#numbers = larger(this.#numbers)
    this.#numbers.set(own, OWN.length * set)
    if (!isFull) this.#known.set(name, set)
    return set
  }

  has(key: string): boolean {
    const entry = this.#present.entryOf(key)
    return entry !== NONE && entry < this.#used
  }

  /** Gives a key a set. `again`: it had one. `full`: there are as many keys as there may be. */
  set(key: string, set: number): 'new' | 'again' | 'full' {
    const followed = this.#followed
    if (followed !== undefined) {
      const entry = this.#used
      if (entry < followed.end && followed.has(entry, key)) {
        this.#entries[entry] = set
        this.#used = followed.next(entry)
        this.size += 1
        return 'new'
      }
      this.#leave(followed)
    }
    const hash = hashOf(key, this.#seed)
    const before = this.#present.entryOf(key, hash)
    if (before !== NONE) {
      this.#entries[before] = set
      return 'again'
    }
    if (this.size >= MOST_KEYS) return 'full'
    this.#enter(hash, this.#write(key, set))
    this.size += 1
    return 'new'
  }

  build(): LimitTable {
    const { size } = this
    if (this.#followed !== undefined && size < this.#followed.size) this.#leave(this.#followed)
    const index = this.#followed === undefined ? shared(Int32Array, this.#index) : this.#index
    return new LimitTable({
      ...{ seed: this.#seed, size, index },
      entries: shared(Int32Array, this.#entries.subarray(0, this.#used)),
      numbers: shared(Float64Array, this.#numbers.subarray(0, OWN.length * this.#setCount)),
    })
  }

  /** As it is so far. */
  get #present(): LimitTable {
    const [seed, index, entries, numbers] = [this.#seed, this.#index, this.#entries, this.#numbers]
    this.#table ??= new LimitTable({ seed, size: 0, index, entries, numbers })
    return this.#table
  }

  /** From now on keys differ from those before. */
  #leave({ memory: { index } }: LimitTable): void {
    this.#followed = undefined
    this.#table = undefined
    this.#index = new Int32Array(index.length)
    for (let at = 0; at < index.length; at += 2)
      if (index[at + 1] !== 0 && index[at + 1]! <= this.#used) place(this.#index, index[at]!, index[at + 1]!)
  }

  /** @returns where the entry begins */
  #write(key: string, set: number): number {
    const { length } = key
    let isWide = false
    for (let at = 0; at < length && !isWide; at += 1) isWide = key.charCodeAt(at) > 255
    const head = isWide ? length | WIDE : length
    const entry = this.#used
    this.#used += wordsFor(head)
    while (this.#used > this.#entries.length) {
      this.#entries = larger(this.#entries)
      this.#text = new Uint8Array(this.#entries.buffer)
      this.#table = undefined
    }
    this.#entries[entry] = set
    this.#entries[entry + 1] = head
    const text = this.#text
    const start = 4 * entry + HEAD
    for (let at = 0; at < length; at += 1) {
      const code = key.charCodeAt(at)
      if (isWide) {
        text[start + 2 * at] = code
        text[start + 2 * at + 1] = code >>> 8
      } else text[start + at] = code
    }
    return entry
  }

  #enter(hash: number, entry: number): void {
    if (SPACE * (this.size + 1) > this.#index.length / 2) {
      const before = this.#index
      this.#index = new Int32Array(2 * before.length)
      this.#table = undefined
      for (let at = 0; at < before.length; at += 2)
        if (before[at + 1] !== 0) place(this.#index, before[at]!, before[at + 1]!)
    }
    place(this.#index, hash, entry + 1)
  }
}

function place(index: Int32Array, hash: number, entry: number): void {
  const mask = index.length - 2
  let at = (hash << 1) & mask
  while (index[at + 1] !== 0) at = (at + 2) & mask
  index[at] = hash
  index[at + 1] = entry
}

type Numbers = Int32Array | Float64Array

function larger<T extends Numbers>(from: T): T {
  // A table without keys has none of them.
  const made = new (from.constructor as new (length: number) => T)(Math.max(64, 2 * from.length))
  made.set(from)
  return made
}

/** A copy that threads share. */
function shared<T extends Numbers>(
  kind: (new (buffer: SharedArrayBuffer) => T) & { BYTES_PER_ELEMENT: number },
  from: T,
): T {
  const made = new kind(new SharedArrayBuffer(kind.BYTES_PER_ELEMENT * from.length))
  made.set(from)
  return made
}

/**
 * The keys that have other limits in one of two tables. Undefined: there are more than `most`.
 *
 * Mostly a source has its keys in the same order as before, so the entry after the last one that was found is tried first.
 */
export function changedKeys(before: LimitTable, after: LimitTable, most: number): string[] | undefined {
  const changed: string[] = []
  let found = 0
  let guess = 0
  for (const entry of after.all()) {
    const old = haveSameKey(before, guess, after, entry) ? guess : before.entryOf(after.keyOf(entry))
    if (old !== NONE) {
      found += 1
      guess = before.next(old)
    }
    if (old !== NONE && haveSame(before, before.setOf(old), after, after.setOf(entry))) continue
    if (changed.push(after.keyOf(entry)) > most) return undefined
  }
  const gone = found === before.size ? [] : keysBeyond(before, after, most - changed.length)
  return gone && [...changed, ...gone]
}

/** The keys of a table that another one does not have. Undefined: there are more than `most`. */
function keysBeyond(table: LimitTable, other: LimitTable, most: number): string[] | undefined {
  const found: string[] = []
  for (const entry of table.all()) {
    const key = table.keyOf(entry)
    if (other.entryOf(key) === NONE && found.push(key) > most) return undefined
  }
  return found
}

function haveSameKey(before: LimitTable, old: number, after: LimitTable, entry: number): boolean {
  const [a, b] = [before.memory.entries, after.memory.entries]
  if (old >= a.length || a[old + 1] !== b[entry + 1]) return false
  const words = after.next(entry) - entry
  for (let at = 2; at < words; at += 1) if (a[old + at] !== b[entry + at]) return false
  return true
}

function haveSame(before: LimitTable, old: number, after: LimitTable, set: number): boolean {
  const [a, b] = [before.memory.numbers, after.memory.numbers]
  for (let at = 0; at < OWN.length; at += 1)
    if (!Object.is(a[OWN.length * old + at], b[OWN.length * set + at])) return false
  return true
}
