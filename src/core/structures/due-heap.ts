/** An entry: `due` in ms. `place` is the heap's own; -1 while outside. */
export interface Timed {
  due: number
  place: number
}

/**
 * The entry that is due first: a binary heap whose entries know their place, so that any of them leaves in O(log n).
 * `due` may change only while the entry is outside, or by `move`.
 */
export class DueHeap<E extends Timed> {
  readonly #heap: E[] = []
  /** The `due` of each. Comparing does not touch entries: of a hundred thousand few are in the cache. */
  readonly #dues: number[] = []

  get size(): number {
    return this.#heap.length
  }

  /** The entry due first. */
  get next(): E | undefined {
    return this.#heap[0]
  }

  /** One of the entries, in no order. */
  find(test: (entry: E) => boolean): E | undefined {
    return this.#heap.find(test)
  }

  add(entry: E): void {
    entry.place = this.#heap.length
    this.#heap.push(entry)
    this.#dues.push(entry.due)
    this.#rise(entry, entry.place, entry.due)
  }

  /** False: it was not in here. */
  remove(entry: E): boolean {
    const { place } = entry
    if (place < 0) return false
    entry.place = -1
    const last = this.#heap.pop()!
    const due = this.#dues.pop()!
    if (last !== entry) this.#settle(last, place, due)
    return true
  }

  /** Changes when an entry in here is due. */
  move(entry: E, due: number): void {
    entry.due = due
    this.#settle(entry, entry.place, due)
  }

  /** Puts an entry where it belongs, starting at its own place or at one that is free. */
  #settle(entry: E, from: number, due: number): void {
    const place = this.#sink(from, due)
    if (place === from) this.#rise(entry, from, due)
    else this.#put(entry, place, due)
  }

  #rise(entry: E, from: number, due: number): void {
    const dues = this.#dues
    let place = from
    while (place > 0) {
      const above = (place - 1) >> 1
      if (dues[above]! <= due) break
      this.#put(this.#heap[above]!, place, dues[above]!)
      place = above
    }
    this.#put(entry, place, due)
  }

  /** Moves up the entries due before `due`, from below a free place. Returns the place that is free then. */
  #sink(from: number, due: number): number {
    const dues = this.#dues
    const { length } = dues
    let place = from
    for (;;) {
      let below = 2 * place + 1
      if (below >= length) break
      if (below + 1 < length && dues[below + 1]! < dues[below]!) below += 1
      if (dues[below]! >= due) break
      this.#put(this.#heap[below]!, place, dues[below]!)
      place = below
    }
    return place
  }

  #put(entry: E, place: number, due: number): void {
    this.#heap[place] = entry
    this.#dues[place] = due
    entry.place = place
  }
}
