/** An entry. `place` is the heap's own; -1 while outside. */
export interface Timed {
  place: number
}

const LEAST_ROOM = 8

/**
 * The entry that is due first: a heap of which any entry leaves in O(log n).
 *
 * Each position has four below it: half as many levels as with two, and the four dues are in one or two cache lines.
 * Reordering touches numbers only. Of a hundred thousand entries few are in the cache, so an entry has a number while it is
 * in here, its `place`, and the heap holds that number.
 */
export class DueHeap<E extends Timed> {
  size = 0
  /** When the next one is due, in ms. Infinity: there is none. */
  nextDue = Infinity
  readonly #entries: (E | undefined)[] = []
  /** Where each number stands in the two arrays below. */
  #positions = new Int32Array(0)
  /** The numbers in heap order, then those that are free. */
  #numbers = new Int32Array(0)
  #dues = new Float64Array(0)

  get next(): E | undefined {
    return this.size === 0 ? undefined : this.#entries[this.#numbers[0]!]
  }

  /** When an entry is due, in ms. Infinity: it is not in here. */
  dueOf({ place }: E): number {
    return place < 0 ? Infinity : this.#dues[this.#positions[place]!]!
  }

  /** The position of an entry. Adding all entries in this order to an empty heap makes the same heap. Infinity: it is not in here. */
  positionOf({ place }: E): number {
    return place < 0 ? Infinity : this.#positions[place]!
  }

  *all(): Generator<E> {
    for (const entry of this.#entries) if (entry !== undefined) yield entry
  }

  find(test: (entry: E) => boolean): E | undefined {
    return this.#entries.find(entry => entry !== undefined && test(entry))
  }

  /** @param due ms. The entry is outside so far. */
  add(entry: E, due: number): void {
    const position = this.size
    if (position === this.#numbers.length) this.#grow()
    const number = this.#numbers[position]!
    this.size = position + 1
    this.#entries[number] = entry
    entry.place = number
    this.#rise(number, position, due)
  }

  remove(entry: E): boolean {
    const { place } = entry
    if (place < 0) return false
    entry.place = -1
    this.#entries[place] = undefined
    const last = this.size - 1
    this.size = last
    const position = this.#positions[place]!
    const moved = this.#numbers[last]!
    this.#numbers[last] = place
    if (position < last) this.#settle(moved, position, this.#dues[last]!)
    else if (last === 0) this.nextDue = Infinity
    return true
  }

  move(entry: E, due: number): void {
    this.#settle(entry.place, this.#positions[entry.place]!, due)
  }

  #grow(): void {
    const { length } = this.#numbers
    const room = Math.max(LEAST_ROOM, 2 * length)
    const positions = new Int32Array(room)
    const numbers = new Int32Array(room)
    const dues = new Float64Array(room)
    positions.set(this.#positions)
    numbers.set(this.#numbers)
    dues.set(this.#dues)
    for (let number = length; number < room; number += 1) numbers[number] = number
    this.#positions = positions
    this.#numbers = numbers
    this.#dues = dues
  }

  /** Puts a number where it belongs, starting at a position that is free. */
  #settle(number: number, from: number, due: number): void {
    const position = this.#sink(from, due)
    if (position === from) this.#rise(number, from, due)
    else this.#put(number, position, due)
  }

  #rise(number: number, from: number, due: number): void {
    const dues = this.#dues
    let position = from
    while (position > 0) {
      const above = (position - 1) >> 2
      if (dues[above]! <= due) break
      this.#put(this.#numbers[above]!, position, dues[above]!)
      position = above
    }
    this.#put(number, position, due)
  }

  /** Moves up what is due before `due`, from below a free position. Returns the position that is free then. */
  #sink(from: number, due: number): number {
    const dues = this.#dues
    const size = this.size
    let position = from
    for (;;) {
      const first = (position << 2) + 1
      if (first >= size) break
      const end = Math.min(first + 4, size)
      let below = first
      for (let other = first + 1; other < end; other += 1) if (dues[other]! < dues[below]!) below = other
      if (dues[below]! >= due) break
      this.#put(this.#numbers[below]!, position, dues[below]!)
      position = below
    }
    return position
  }

  #put(number: number, position: number, due: number): void {
    this.#numbers[position] = number
    this.#dues[position] = due
    this.#positions[number] = position
    if (position === 0) this.nextDue = due
  }
}
