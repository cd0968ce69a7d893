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

  /** All of them, in one piece. */
  joined(): Buffer {
    return this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces)
  }
}
