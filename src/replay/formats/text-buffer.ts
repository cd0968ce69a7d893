/** Texts as bytes, for parsers that read their lines as text. */
export class TextBuffer {
  bytes = Buffer.allocUnsafeSlow(1 << 12)
  #end = 0

  clear(): void {
    this.#end = 0
  }

  /** Where the next text will begin, or the last one has ended. */
  get end(): number {
    return this.#end
  }

  /** Writes a text; it stands from the `end` before to the `end` after. */
  put(text: string): void {
    const needed = this.#end + 3 * text.length
    if (needed > this.bytes.length) {
      const more = Buffer.allocUnsafeSlow(2 * needed)
      more.set(this.bytes.subarray(0, this.#end))
      this.bytes = more
    }
    this.#end += this.bytes.write(text, this.#end)
  }
}
