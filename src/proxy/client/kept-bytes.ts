/** So many pieces are joined into one. */
const MOST_PIECES = 64

/** Bytes that are kept for later. In however small pieces they come, they take little more memory than their number. */
export class KeptBytes {
  /** How many there are. */
  length = 0
  #pieces: Buffer[] = []

  /** @param bytes nobody else changes them */
  add(bytes: Buffer): void {
    this.length += bytes.length
    this.#pieces.push(bytes)
    if (this.#pieces.length === MOST_PIECES) this.#pieces = [Buffer.concat(this.#pieces)]
  }

  /** All of them, in one piece. */
  joined(): Buffer {
    return this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces)
  }
}
