import { grown } from './grown.js'

/** How many entries a second has room for at first. A long window has many seconds with few. */
const LEAST = 4

/** The entries of one second, in the order in which they came. Only the first `size` entries count. */
export class SecondGroup {
  second = 0
  size = 0
  tags = new Int32Array(LEAST)
  /** ms since the beginning of the second; -1: not known. */
  offsets = new Float64Array(LEAST)
  durations = new Float64Array(LEAST)

  add(offset: number, duration: number, tag: number): void {
    const at = this.size
    if (at === this.tags.length) this.#grow()
    this.tags[at] = tag
    this.offsets[at] = offset
    this.durations[at] = duration
    this.size = at + 1
  }

  /** Sorts by offset. Entries with equal offsets keep their order. */
  sort(): void {
    const { size, tags, offsets } = this
    let sorted = true
    for (let at = 1; at < size && sorted; at += 1) sorted = offsets[at - 1]! <= offsets[at]!
    if (sorted) return
    const order = new Uint32Array(size).map((_, at) => at)
    order.sort((a, b) => offsets[a]! - offsets[b]! || a - b)
    this.tags.set(Int32Array.from(order, at => tags[at]!))
    this.offsets.set(Float64Array.from(order, at => offsets[at]!))
  }

  #grow(): void {
    const length = 2 * this.tags.length
    this.tags = grown(this.tags, length)
    this.offsets = grown(this.offsets, length)
    this.durations = grown(this.durations, length)
  }
}

/** After so many empty seconds in a row, or as many as are open, the window looks for the next second with entries. */
const MOST_EMPTY = 100

/** Collects entries by second, and hands over each second when no more of its entries are expected. */
export class SecondWindow {
  late = 0
  latest = 0
  readonly #length: number
  readonly #settle: (group: SecondGroup) => void
  readonly #open = new Map<number, SecondGroup>()
  readonly #spare: SecondGroup[] = []
  #group: SecondGroup | undefined
  /** The latest second so far, and the first second that is still open. */
  #newest = -Infinity
  #edge = -Infinity

  /**
   * @param length in seconds; an entry further behind the newest second is late
   * @param settle called with the groups in order; a group is reused after the call
   */
  constructor(length: number, settle: (group: SecondGroup) => void) {
    this.#length = length
    this.#settle = settle
  }

  push(second: number, offset: number, duration: number, tag: number): void {
    if (second === this.#group?.second) return this.#group.add(offset, duration, tag)
    if (second < this.#edge) {
      this.late += 1
      this.latest = Math.max(this.latest, this.#edge - second)
      return this.#enter(this.#edge).add(offset < 0 ? offset : 0, duration, tag)
    }
    if (second > this.#newest) this.advance(second)
    this.#group = this.#enter(second)
    this.#group.add(offset, duration, tag)
  }

  advance(second: number): void {
    this.#newest = Math.max(this.#newest, second)
    this.#close(this.#newest - this.#length)
  }

  end(): void {
    this.#close(Infinity)
  }

  #enter(second: number): SecondGroup {
    const open = this.#open.get(second)
    if (open !== undefined) return open
    const group = this.#spare.pop() ?? new SecondGroup()
    group.second = second
    group.size = 0
    this.#open.set(second, group)
    return group
  }

  #next(): number {
    let next = Infinity
    for (const second of this.#open.keys()) next = Math.min(next, second)
    return next
  }

  #close(edge: number): void {
    if (this.#open.size > 0 && this.#edge === -Infinity) this.#edge = Math.min(...this.#open.keys())
    let missed = 0
    while (this.#open.size > 0 && this.#edge < edge) {
      const group = this.#open.get(this.#edge)
      if (group === undefined) {
        missed += 1
        // A quiet night is skipped, not walked second by second.
        this.#edge = missed < Math.max(MOST_EMPTY, this.#open.size) ? this.#edge + 1 : Math.min(edge, this.#next())
        continue
      }
      missed = 0
      this.#edge += 1
      this.#open.delete(group.second)
      if (this.#group === group) this.#group = undefined
      this.#settle(group)
      this.#spare.push(group)
    }
    this.#edge = Math.max(this.#edge, edge)
  }
}
