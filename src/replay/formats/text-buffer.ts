/** Collects texts as bytes, for parsers that read lines as text. */
export class TextBuffer {
  bytes = Buffer.allocUnsafeSlow(1 << 12)
  #end = 0

  clear(): void {
    this.#end = 0
  }

  /** The end of the last text, where the next one begins. */
  get end(): number {
    return this.#end
  }

  /** Appends a text. It lies between the old `end` and the new one. */
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
