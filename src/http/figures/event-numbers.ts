import { JsonNumbers } from './json-numbers.js'
import type { JsonPath } from './json-path.js'

const LF = 0x0a
const CR = 0x0d
const SPACE = 0x20
const DATA = Buffer.from('data:')
const LINE_END = Buffer.from('\n')

/**
 * Finds numbers in the events of a stream (text/event-stream) whose data are JSON. Of several events with one the last counts.
 * Bytes may come in any pieces. No event is kept.
 */
export class EventNumbers {
  readonly #json: JsonNumbers
  readonly #found: (number | undefined)[]
  /**
   * - `name`: at the beginning of a line, or in `data:`.
   * - `space`: behind `data:`, where one space is left out.
   */
  #part: 'name' | 'space' | 'data' | 'other' = 'name'
  /** Bytes of `data:` that this line begins with. */
  #matched = 0
  /** The last line ended with CR: a LF belongs to that. */
  #isAfterCr = false
  #hasData = false

  constructor(paths: readonly JsonPath[]) {
    this.#json = new JsonNumbers(paths)
    this.#found = paths.map(() => undefined)
  }

  read(bytes: Uint8Array, from: number, to: number): void {
    let at = from
    if (at < to && this.#isAfterCr) {
      this.#isAfterCr = false
      if (bytes[at] === LF) at += 1
    }
    while (at < to) {
      const end = endOfLine(bytes, at, to)
      this.#readLine(bytes, at, end)
      at = end
      if (at === to) return
      this.#endLine()
      if (bytes[at] === CR && at + 1 === to) this.#isAfterCr = true
      at += bytes[at] === CR && bytes[at + 1] === LF && at + 1 < to ? 2 : 1
    }
  }

  /** The stream has ended. An event whose data are whole counts without an empty line behind it. Returns what has been found, by path. */
  end(): readonly (number | undefined)[] {
    this.#endEvent()
    return this.#found
  }

  #readLine(bytes: Uint8Array, from: number, to: number): void {
    let at = from
    while (at < to && this.#part === 'name') {
      this.#part = bytes[at] === DATA[this.#matched] ? 'name' : 'other'
      this.#matched += 1
      if (this.#part === 'name' && this.#matched === DATA.length) this.#beginData()
      at += 1
    }
    if (at < to && this.#part === 'space') {
      this.#part = 'data'
      if (bytes[at] === SPACE) at += 1
    }
    if (this.#part === 'data') this.#json.read(bytes, at, to)
  }

  #beginData(): void {
    this.#part = 'space'
    if (this.#hasData) this.#json.read(LINE_END, 0, 1)
    this.#hasData = true
  }

  #endLine(): void {
    if (this.#part === 'name' && this.#matched === 0) this.#endEvent()
    this.#part = 'name'
    this.#matched = 0
  }

  #endEvent(): void {
    if (!this.#hasData) return
    if (this.#json.isWhole) {
      for (const [path, value] of this.#json.found.entries()) if (value !== undefined) this.#found[path] = value
    }
    this.#json.reset()
    this.#hasData = false
  }
}

function endOfLine(bytes: Uint8Array, from: number, to: number): number {
  for (let at = from; at < to; at += 1) if (bytes[at] === LF || bytes[at] === CR) return at
  return to
}
