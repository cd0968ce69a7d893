/** Bytes. Pieces of this size are kept as they are. Smaller ones are copied together. */
const LARGE = 4 * 1024
/** Bytes. The first room for small pieces. */
const SMALLEST = 256
/** Bytes. The most room for small pieces that is copied to grow. */
const MOST = 64 * 1024

/** Bytes for later. In however small pieces, they take at most twice their number in memory. Each is copied a few times. */
export class KeptBytes {
  length = 0
  readonly #pieces: Buffer[] = []
  /** Room for small pieces, after all others. It is not from Node's pool: a byte would keep 8 kB of that. */
  #room: Buffer | undefined
  #used = 0

  /** @param bytes nobody else changes them */
  add(bytes: Buffer): void {
    this.length += bytes.length
    if (bytes.length < LARGE) return this.#copy(bytes)
    this.#seal()
    this.#pieces.push(bytes)
  }

  take(): Buffer | undefined {
    this.#seal()
    const piece = this.#pieces.shift()
    this.length -= piece?.length ?? 0
    return piece
  }

  get pieces(): readonly Buffer[] {
    return this.#room === undefined ? this.#pieces : [...this.#pieces, this.#room.subarray(0, this.#used)]
  }

  joined(): Buffer {
    this.#seal()
    return this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces)
  }

  #copy(bytes: Buffer): void {
    const used = this.#used + bytes.length
    if (used > MOST) {
      this.#seal()
      return this.#copy(bytes)
    }
    if (this.#room === undefined || used > this.#room.length) this.#grow(used)
    bytes.copy(this.#room!, this.#used)
    this.#used = used
  }

  #grow(least: number): void {
    const size = Math.max(SMALLEST, least, Math.min(MOST, 2 * this.#used))
    const room = Buffer.allocUnsafeSlow(size)
    this.#room?.copy(room, 0, 0, this.#used)
    this.#room = room
  }

  /** What comes now begins another piece. */
  #seal(): void {
    if (this.#room !== undefined) this.#pieces.push(this.#room.subarray(0, this.#used))
    this.#room = undefined
    this.#used = 0
  }
}
