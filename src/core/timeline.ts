/** What a Timeline orders: `due` in ms; `place` is the Timeline's own (-1 while outside). */
export interface Timed {
  due: number
  place: number
}

/**
 * What is due next: a binary heap by `due` whose entries know their place, so that any of them leaves in O(log n).
 * `due` may be changed only while the entry is outside, or by `move`.
 */
export class Timeline<E extends Timed> {
  readonly #heap: E[] = []

  get size(): number {
    return this.#heap.length
  }

  /** The entry due first. */
  get next(): E | undefined {
    return this.#heap[0]
  }

  add(entry: E): void {
    entry.place = this.#heap.length
    this.#heap.push(entry)
    this.#rise(entry)
  }

  /** False: it was not in here. */
  remove(entry: E): boolean {
    const { place } = entry
    if (place < 0) return false
    entry.place = -1
    const last = this.#heap.pop()!
    if (last !== entry) {
      this.#put(last, place)
      this.#settle(last)
    }
    return true
  }

  /** Changes when an entry in here is due. */
  move(entry: E, due: number): void {
    entry.due = due
    this.#settle(entry)
  }

  #settle(entry: E): void {
    this.#sink(entry)
    this.#rise(entry)
  }

  #rise(entry: E): void {
    let place = entry.place
    while (place > 0) {
      const above = (place - 1) >> 1
      const parent = this.#heap[above]!
      if (parent.due <= entry.due) break
      this.#put(parent, place)
      place = above
    }
    this.#put(entry, place)
  }

  #sink(entry: E): void {
    const heap = this.#heap
    let place = entry.place
    for (;;) {
      let below = 2 * place + 1
      if (below >= heap.length) break
      if (below + 1 < heap.length && heap[below + 1]!.due < heap[below]!.due) below += 1
      const child = heap[below]!
      if (child.due >= entry.due) break
      this.#put(child, place)
      place = below
    }
    this.#put(entry, place)
  }

  #put(entry: E, place: number): void {
    this.#heap[place] = entry
    entry.place = place
  }
}
