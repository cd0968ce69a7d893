/** Records arrivals so that they can be played again. */

const PIECE = 1 << 16

/** The most arrivals to keep: about 400 MB. */
const MOST = 32_000_000

export class Recording {
  size = 0
  readonly #times: Float64Array[] = []
  /** The client times 4, and the class of the user agent: the two lowest bits. */
  readonly #tags: Int32Array[] = []
  /** False: there were too many arrivals, and none is kept. */
  complete = true
  readonly #most: number

  constructor(most = MOST) {
    this.#most = most
  }

  arrive(at: number, client: number, agent: number): void {
    if (!this.complete) return
    if (this.size === this.#most) {
      this.complete = false
      this.#times.length = 0
      this.#tags.length = 0
      return
    }
    const within = this.size % PIECE
    if (within === 0) {
      this.#times.push(new Float64Array(PIECE))
      this.#tags.push(new Int32Array(PIECE))
    }
    this.#times[this.#times.length - 1]![within] = at
    this.#tags[this.#tags.length - 1]![within] = client * 4 + agent
    this.size += 1
  }

  play(into: { arrive(at: number, client: number, agent: number): void }): void {
    for (let from = 0; from < this.size; from += PIECE) {
      const times = this.#times[from / PIECE]!
      const tags = this.#tags[from / PIECE]!
      const count = Math.min(PIECE, this.size - from)
      for (let at = 0; at < count; at += 1) into.arrive(times[at]!, tags[at]! >>> 2, tags[at]! & 3)
    }
  }
}
