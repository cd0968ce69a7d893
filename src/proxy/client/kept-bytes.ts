/** Bytes. Larger pieces are not copied to be joined with others. */
const LARGE = 64 * 1024

/** Bytes that are kept for later. In however small pieces they come, they take little more memory than their number. */
export class KeptBytes {
  /** How many there are. */
  length = 0
  #pieces: Buffer[] = []

  /**
   * Joins pieces of like size, as a binary counter carries: each byte is copied at most once for each doubling.
   *
   * @param bytes nobody else changes them
   */
  add(bytes: Buffer): void {
    const pieces = this.#pieces
    this.length += bytes.length
    pieces.push(bytes)
    while (pieces.length > 1 && pieces.at(-2)!.length <= Math.min(LARGE, pieces.at(-1)!.length)) {
      const last = pieces.pop()!
      pieces.push(Buffer.concat([pieces.pop()!, last]))
    }
  }

  /** Takes out all of them, or if these are more than `most`, some of the first. There are some. */
  take(most: number): Buffer {
    if (this.length <= most) {
      const all = this.joined()
      this.#pieces = []
      this.length = 0
      return all
    }
    const first = this.#pieces[0]!
    if (first.length <= most) this.#pieces.shift()
    else this.#pieces[0] = first.subarray(most)
    const taken = first.length <= most ? first : first.subarray(0, most)
    this.length -= taken.length
    return taken
  }

  /** All of them, in one piece. */
  joined(): Buffer {
    return this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces)
  }
}
