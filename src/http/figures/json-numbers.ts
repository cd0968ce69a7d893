/**
 * Finds numbers, and texts if they are wanted, in a JSON document whose bytes come in any pieces.
 *
 * It finds what JSON.parse finds at the same paths, without building the document. Memory is bounded by the paths, whatever the
 * document is: of containers it keeps only those on the way to a number, at most as many as a path has steps. Of all others it
 * counts brackets. Of names and numbers it keeps no more bytes than one that counts can have. The work is linear in the bytes.
 *
 * - JSON.parse lets the last of several members with one name count. So when a member begins again, what was found below it is
 *   forgotten.
 * - Bytes from 128 on occur in strings only and are no delimiters. So pieces may end within a character. Names are decoded when
 *   they are whole.
 * - A document that is not JSON is found out at the latest where the way to a number breaks off. Numbers before that may have
 *   been found.
 */
import { orElse } from '../../core/structures/or-else.js'
import type { JsonPath } from './json-path.js'

const QUOTE = 0x22
const BACKSLASH = 0x5c
const OPEN_LIST = 0x5b
const CLOSE_LIST = 0x5d
const OPEN_OBJECT = 0x7b
const CLOSE_OBJECT = 0x7d
const COMMA = 0x2c
const COLON = 0x3a
const SPACE = 0x20
/** Bytes. A number that is longer says nothing that a double can hold. */
const LONGEST_NUMBER = 64
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

/** A place that paths lead to or through. */
interface Step {
  readonly names: Map<string, Step>
  readonly places: Map<number, Step>
  readonly ends: number[]
  /** The paths that lead here or further. */
  readonly through: number[]
}

/** A container that is open, on the way to a number. */
interface Frame {
  readonly step: Step
  /** The place of the present element. Undefined: it is an object. */
  place: number | undefined
}

type State =
  | 'value'
  /** A name of a member, or the end of the object. */
  | 'name'
  | 'in name'
  | 'colon'
  /** A comma, or the end of the container. */
  | 'after'
  | 'string'
  /** In a string that is looked for. */
  | 'text'
  /** In a number, `true`, `false` or `null`. */
  | 'scalar'
  /** In a container without a number that is looked for. */
  | 'skipped'
  | 'whole'
  | 'broken'

export class JsonNumbers {
  readonly #root: Step
  /** Bytes. A longer name is none that is looked for. */
  readonly #longestName: number
  readonly #found: (number | undefined)[]
  readonly #texts: (string | undefined)[]
  /** Bytes. A longer text is not found; 0: no texts are. */
  readonly #longestText: number
  #state: State = 'value'
  readonly #open: Frame[] = []
  /** That of the value that comes next. Undefined: nothing is looked for in it. */
  #step: Step | undefined
  #text = ''
  /** In a string: the last byte was a backslash that escapes the next one. */
  #isEscaped = false
  /** In what is skipped: how many containers are open, and whether this is a string. */
  #depth = 0
  #isInString = false

  constructor(paths: readonly JsonPath[], longestText = 0) {
    this.#root = newStep()
    for (const [index, path] of paths.entries()) add(this.#root, path, index)
    // An escaped character takes 6 bytes.
    this.#longestName = 6 * Math.max(0, ...paths.flat().map(step => String(step).length))
    this.#found = paths.map(() => undefined)
    this.#texts = paths.map(() => undefined)
    this.#longestText = longestText
    this.#step = this.#root
  }

  get isWhole(): boolean {
    return this.#state === 'whole'
  }

  /** What has been found so far, by path. Nothing where the bytes are not JSON. */
  get found(): readonly (number | undefined)[] {
    return this.#state === 'broken' ? this.#found.map(() => undefined) : this.#found
  }

  /** The strings that have been found, by path: nothing in a document that is not whole. */
  get texts(): readonly (string | undefined)[] {
    return this.isWhole ? this.#texts : []
  }

  /** The bytes have ended. Returns what has been found, by path: nothing in a document that is not whole. */
  end(): readonly (number | undefined)[] {
    return this.isWhole ? this.#found : []
  }

  reset(): void {
    this.#found.fill(undefined)
    this.#texts.fill(undefined)
    this.#state = 'value'
    this.#open.length = 0
    this.#step = this.#root
    this.#isEscaped = false
    this.#isInString = false
  }

  read(bytes: Uint8Array, from: number, to: number): void {
    for (let at = from; at < to; ) {
      if (this.#state === 'skipped') at = this.#skip(bytes, at, to)
      else if (this.#state === 'string') at = this.#skipString(bytes, at, to)
      else if (this.#state === 'scalar') at = this.#readScalar(bytes, at, to)
      else if (this.#state === 'in name') at = this.#readName(bytes, at, to)
      else if (this.#state === 'text') at = this.#readText(bytes, at, to)
      else if (this.#state === 'broken') return
      else at = this.#readMark(bytes, at)
    }
  }

  /** A mark between the parts of the document, or the first byte of a part. */
  #readMark(bytes: Uint8Array, at: number): number {
    if (!isSpace(bytes[at]!)) this.#take(bytes[at]!)
    // A scalar has no mark where it begins.
    return this.#state === 'scalar' ? at : at + 1
  }

  #take(byte: number): void {
    if (this.#state === 'value') this.#begin(byte)
    else if (this.#state === 'name' && byte !== CLOSE_OBJECT) {
      this.#text = ''
      this.#state = byte === QUOTE ? 'in name' : 'broken'
    } else if (this.#state === 'colon') this.#state = byte === COLON ? 'value' : 'broken'
    else if (this.#state === 'whole') this.#state = 'broken'
    else if (this.#state === 'after' && byte === COMMA) this.#next()
    else this.#close(byte)
  }

  #begin(byte: number): void {
    this.#text = ''
    if (byte === QUOTE) this.#state = this.#longestText > 0 && this.#step?.ends.length ? 'text' : 'string'
    else if (byte === OPEN_OBJECT || byte === OPEN_LIST) this.#enter(byte)
    else if (byte === CLOSE_LIST) this.#close(byte)
    else this.#state = byte === COMMA || byte === COLON || byte === CLOSE_OBJECT ? 'broken' : 'scalar'
  }

  #enter(byte: number): void {
    const step = this.#step
    const isList = byte === OPEN_LIST
    if (step === undefined || (isList ? step.places : step.names).size === 0) {
      this.#state = 'skipped'
      this.#depth = 1
      return
    }
    this.#open.push({ step, place: isList ? 0 : undefined })
    if (isList) this.#expect(step.places.get(0))
    else this.#state = 'name'
  }

  /** The value that comes next has this step. What was found there before does not count. */
  #expect(step: Step | undefined): void {
    this.#step = step
    for (const path of step?.through ?? NO_PATHS) this.#found[path] = this.#texts[path] = undefined
    this.#state = 'value'
  }

  /** A comma: the next member or element follows. */
  #next(): void {
    const frame = this.#open.at(-1)!
    if (frame.place === undefined) this.#state = 'name'
    else {
      frame.place += 1
      this.#expect(frame.step.places.get(frame.place))
    }
  }

  #close(byte: number): void {
    const frame = this.#open.at(-1)
    const isList = frame?.place !== undefined
    if (frame === undefined || byte !== (isList ? CLOSE_LIST : CLOSE_OBJECT)) this.#state = 'broken'
    else {
      this.#open.pop()
      this.#ended()
    }
  }

  #ended(): void {
    this.#state = this.#open.length === 0 ? 'whole' : 'after'
  }

  #skip(bytes: Uint8Array, from: number, to: number): number {
    if (this.#isInString) {
      const end = this.#endOfString(bytes, from, to)
      this.#isInString = end < 0
      return end < 0 ? to : end + 1
    }
    let depth = this.#depth
    let at = from
    for (; at < to && depth > 0 && bytes[at] !== QUOTE; at += 1) depth += depthChange(bytes[at]!)
    this.#depth = depth
    if (depth === 0) this.#ended()
    if (depth === 0 || at === to) return at
    this.#isInString = true
    return at + 1
  }

  #skipString(bytes: Uint8Array, from: number, to: number): number {
    const end = this.#endOfString(bytes, from, to)
    if (end < 0) return to
    this.#ended()
    return end + 1
  }

  /** The place of the quotation mark that ends a string. -1: it has not come. */
  #endOfString(bytes: Uint8Array, from: number, to: number): number {
    let isEscaped = this.#isEscaped
    let at = from
    for (; at < to; at += 1) {
      const byte = bytes[at]!
      if (isEscaped) isEscaped = false
      else if (byte === BACKSLASH) isEscaped = true
      else if (byte === QUOTE) break
    }
    this.#isEscaped = isEscaped
    return at < to ? at : -1
  }

  #readName(bytes: Uint8Array, from: number, to: number): number {
    const end = this.#endOfString(bytes, from, to)
    this.#keep(bytes, from, end < 0 ? to : end, this.#longestName)
    if (end < 0) return to
    const name = this.#text.length > this.#longestName ? undefined : nameOf(this.#text)
    const { step } = this.#open.at(-1)!
    this.#expect(name === undefined ? undefined : step.names.get(name))
    this.#state = 'colon'
    return end + 1
  }

  #readText(bytes: Uint8Array, from: number, to: number): number {
    const end = this.#endOfString(bytes, from, to)
    this.#keep(bytes, from, end < 0 ? to : end, this.#longestText)
    if (end < 0) return to
    const text = this.#text.length > this.#longestText ? undefined : nameOf(this.#text)
    for (const path of this.#step!.ends) this.#texts[path] = text
    this.#ended()
    return end + 1
  }

  #readScalar(bytes: Uint8Array, from: number, to: number): number {
    let at = from
    while (at < to && !isDelimiter(bytes[at]!)) at += 1
    const ends = this.#step?.ends ?? NO_PATHS
    if (ends.length > 0) this.#keep(bytes, from, at, LONGEST_NUMBER)
    if (at === to) return at
    if (this.#text.length <= LONGEST_NUMBER && NUMBER.test(this.#text))
      for (const path of ends) this.#found[path] = Number(this.#text)
    this.#ended()
    return at
  }

  /** Keeps bytes of a text: no more than show that it is longer than `most`. */
  #keep(bytes: Uint8Array, from: number, to: number, most: number): void {
    const room = most + 1 - this.#text.length
    for (let at = from; at < Math.min(to, from + room); at += 1) this.#text += String.fromCharCode(bytes[at]!)
  }
}

const NO_PATHS: readonly number[] = []

function newStep(): Step {
  return { names: new Map(), places: new Map(), ends: [], through: [] }
}

function add(root: Step, path: JsonPath, index: number): void {
  let step = root
  for (const part of path) {
    const known = typeof part === 'number' ? step.places.get(part) : step.names.get(part)
    const next = known ?? newStep()
    if (typeof part === 'number') step.places.set(part, next)
    else step.names.set(part, next)
    next.through.push(index)
    step = next
  }
  step.ends.push(index)
}

/** What stands between quotation marks. Undefined: it is not JSON. @param text one character for each byte */
function nameOf(text: string): string | undefined {
  const name = Buffer.from(text, 'latin1').toString()
  if (!name.includes('\\')) return name
  return orElse(() => JSON.parse(`"${name}"`) as string, undefined)
}

function depthChange(byte: number): number {
  if (byte === OPEN_OBJECT || byte === OPEN_LIST) return 1
  return byte === CLOSE_OBJECT || byte === CLOSE_LIST ? -1 : 0
}

function isSpace(byte: number): boolean {
  return byte === SPACE || byte === 0x0a || byte === 0x0d || byte === 0x09
}

function isDelimiter(byte: number): boolean {
  return byte === COMMA || byte === CLOSE_OBJECT || byte === CLOSE_LIST || isSpace(byte)
}
