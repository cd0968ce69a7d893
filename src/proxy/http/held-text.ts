import { checkCharacters, ProtocolError } from './fields.js'

/** Bytes. So much is searched at a time. More may follow behind a section, and must not be read again and again. */
const WINDOW = 4 * 1024
const MARK = '\r\n\r\n'

/** Collects a section of header lines, up to its blank line, in any pieces. Each is searched, checked and joined once. */
export class HeldText {
  text = ''
  readonly #most: number
  #pieces: string[] | undefined = undefined
  #length = 0
  /** The last characters before the next piece, at most three. */
  #tail = ''

  constructor(most: number) {
    this.#most = most
  }

  get isEmpty(): boolean {
    return this.#length === 0
  }

  /** The section follows a line that has ended with CRLF. A second CRLF ends it at once. */
  followLine(): void {
    this.#tail = '\r\n'
  }

  clear(): void {
    this.#pieces = undefined
    this.#length = 0
    this.#tail = ''
  }

  /**
   * Takes the bytes of `buffer` from `from` to `end`, or up to the blank line.
   *
   * @returns where the section ends. -1: it goes on, and all bytes are taken
   * @throws ProtocolError if it is too long (431), or if what has come of it can never be valid
   */
  take(buffer: Buffer, from: number, end: number): number {
    for (let at = from; at < end; ) {
      const to = Math.min(end, at + WINDOW)
      const piece = buffer.toString('latin1', at, to)
      const mark = this.#endIn(piece)
      const taken = mark < 0 ? piece.length : mark
      if (this.#length + taken > this.#most) throw new ProtocolError('headers that are too large', 431)
      if (mark >= 0) {
        this.text = (this.#pieces?.join('') ?? '') + piece.slice(0, mark)
        this.clear()
        return at + mark
      }
      this.#hold(piece)
      at = to
    }
    return -1
  }

  /** @returns how much of the piece belongs to the section, to the end of its blank line; -1: all of it */
  #endIn(piece: string): number {
    const tail = this.#tail
    const mark = tail === '' ? piece.indexOf(MARK) : (tail + piece).indexOf(MARK)
    return mark < 0 ? -1 : mark + MARK.length - tail.length
  }

  #hold(piece: string): void {
    // A CR at the end may be the first half of a line end.
    const whole = (this.#tail.endsWith('\r') ? '\r' : '') + piece
    checkCharacters(whole.endsWith('\r') ? whole.slice(0, -1) : whole)
    this.#pieces ??= []
    this.#pieces.push(piece)
    this.#length += piece.length
    this.#tail = (this.#tail + piece).slice(-3)
  }
}
