/** Forgets idle entries of a map without a timer: each newcomer looks at a few. */

/** Entries that each newcomer looks at: more than one, so that sweeping outruns arriving. */
const STEPS = 2
/** A search may go round a full map this often before newcomers have to save for it. */
const ROUNDS = 4

export class IdleSweep<V> {
  readonly #entries: Map<string, V>
  #hand: Iterator<[string, V]>

  constructor(entries: Map<string, V>) {
    this.#entries = entries
    this.#hand = entries.entries()
  }

  /** The next entry, round and round. Undefined: there is none. */
  next(): [string, V] | undefined {
    let step = this.#hand.next()
    if (step.done) {
      this.#hand = this.#entries.entries()
      step = this.#hand.next()
    }
    return step.done ? undefined : step.value
  }

  /** To be called for each newcomer: drops the next entries if they are idle. */
  sweep(isIdle: (value: V, key: string) => boolean): void {
    for (let looked = 0; looked < STEPS; looked += 1) {
      const entry = this.next()
      if (entry === undefined) return
      if (isIdle(entry[1], entry[0])) this.#entries.delete(entry[0])
    }
  }
}

/** Bounds searches in a full map: each newcomer saves some steps, and a search spends them. */
export class SearchBudget {
  #steps = 0

  /** @param size how many entries a search may have to look at */
  save(steps: number, size: number): void {
    this.#steps = Math.min(this.#steps + steps, Math.max(steps, ROUNDS * size))
  }

  get empty(): boolean {
    return this.#steps === 0
  }

  spend(): boolean {
    if (this.#steps === 0) return false
    this.#steps -= 1
    return true
  }
}
