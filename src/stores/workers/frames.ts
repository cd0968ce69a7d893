/** Messages over a pipe between two processes of ours: each is a value, and its length before it. */
import type { Duplex } from 'node:stream'

const HEADER = 4

export interface Frames {
  send(value: unknown): void
  close(): void
}

/** @param closed called once, when no more messages can come or go */
export function openFrames(pipe: Duplex, received: (value: unknown) => void, closed: () => void): Frames {
  const encoder = new Encoder()
  const decoder = new Decoder()
  let rest: Buffer[] = []
  let restLength = 0
  let isOpen = true

  /** The messages that are complete with this. @throws RangeError: they cannot be read */
  function read(chunk: Buffer): unknown[] {
    rest.push(chunk)
    restLength += chunk.length
    if (restLength < HEADER) return []
    let bytes = rest.length === 1 ? chunk : Buffer.concat(rest)
    const values: unknown[] = []
    for (let end = endOf(bytes); end <= bytes.length; end = endOf(bytes)) {
      values.push(decoder.decode(bytes.subarray(HEADER, end)))
      bytes = bytes.subarray(end)
    }
    rest = bytes.length > 0 ? [bytes] : []
    restLength = bytes.length
    return values
  }

  function close(): void {
    if (!isOpen) return
    isOpen = false
    pipe.destroy()
    closed()
  }

  pipe.on('data', (chunk: Buffer) => {
    let values: unknown[]
    try {
      values = read(chunk)
    } catch {
      // One end does not understand the other any more.
      return close()
    }
    // The pipes of tests deliver an answer at once, so `read` may be called again meanwhile.
    for (const value of values) received(value)
  })
  // An end of the pipe is the end of its process.
  pipe.on('end', close).on('error', close).on('close', close)
  return {
    send(value) {
      if (!isOpen) return
      const bytes = encoder.encode(value, HEADER)
      bytes.writeUInt32BE(bytes.length - HEADER)
      pipe.write(bytes)
    },
    close,
  }
}

/** Infinity: the length itself is incomplete. */
function endOf(bytes: Buffer): number {
  return bytes.length < HEADER ? Infinity : HEADER + bytes.readUInt32BE(0)
}

/** Values begin with one of these. */
const TAG = { undefined: 0, false: 1, true: 2, number: 3, ascii: 4, text: 5, array: 6, object: 7, known: 8, defined: 9 }
/** How many limits are known at a time. A reload brings new ones, and so does each change of a learnt rate. */
const RING = 1_024
/** Names of properties. They are those of the verbs' types, so there are some dozens. */
const MOST_NAMES = 255
/** A name that follows. */
const NEW_NAME = 0
/** The property whose values are known by identity. */
const LIMITS = 'limits'
/** Bytes. */
const FIRST_SIZE = 16_384

/**
 * Plain data as bytes, for one direction of a pipe: undefined, booleans, numbers, strings, arrays, and objects of these.
 *
 * What does not change is sent once. The names of properties are numbered as they come. So are the limits of buckets, by
 * identity: the last `RING` of them keep their numbers. Both ends count alike, so each needs every message of the other.
 */
export class Encoder {
  #bytes = Buffer.allocUnsafe(FIRST_SIZE)
  #view = viewOf(this.#bytes)
  #at = 0
  readonly #names = new Map<string, number>()
  readonly #limits = new WeakMap<object, number>()
  #defined = 0

  /** The bytes of a value, after so many bytes that are left free. They are the caller's. */
  encode(value: unknown, free: number): Buffer {
    this.#at = free
    this.#write(value)
    return Buffer.from(this.#bytes.subarray(0, this.#at))
  }

  #write(value: unknown): void {
    if (this.#at + 16 > this.#bytes.length) this.#grow(16)
    if (typeof value === 'number') {
      this.#tag(TAG.number)
      this.#view.setFloat64(this.#at, value)
      this.#at += 8
    } else if (typeof value === 'string') {
      this.#text(value)
    } else if (typeof value === 'boolean') {
      this.#tag(value ? TAG.true : TAG.false)
    } else if (Array.isArray(value)) {
      this.#tag(TAG.array)
      this.#count(value.length)
      for (const item of value) this.#write(item)
    } else if (value === undefined) {
      this.#tag(TAG.undefined)
    } else if (typeof value === 'object' && value !== null) {
      this.#object(value as Record<string, unknown>)
    } else throw new TypeError(`cannot send a value of type ${typeof value}`)
  }

  #object(value: Readonly<Record<string, unknown>>): void {
    this.#tag(TAG.object)
    const countAt = this.#at
    this.#at += 1
    let count = 0
    for (const name in value) {
      count += 1
      this.#name(name)
      if (name === LIMITS) this.#known(value[name] as object)
      else this.#write(value[name])
    }
    this.#bytes[countAt] = count
  }

  #name(name: string): void {
    if (this.#at + 16 > this.#bytes.length) this.#grow(16)
    const known = this.#names.get(name)
    if (known !== undefined) {
      this.#tag(known)
      return
    }
    if (this.#names.size === MOST_NAMES) throw new RangeError('too many names of properties')
    this.#names.set(name, this.#names.size + 1)
    this.#tag(NEW_NAME)
    this.#text(name)
  }

  #known(limits: object): void {
    const number = this.#limits.get(limits) ?? -Infinity
    if (number >= this.#defined - RING) {
      this.#tag(TAG.known)
      this.#count(number % RING)
      return
    }
    this.#limits.set(limits, this.#defined)
    this.#defined += 1
    this.#tag(TAG.defined)
    this.#write(limits)
  }

  #text(text: string): void {
    // A UTF-16 unit takes three bytes of UTF-8 at most.
    this.#grow(5 + 3 * text.length)
    const start = this.#at + 5
    let length = this.#bytes.write(text, start, 'utf8')
    const isAscii = length === text.length
    // UTF-8 has no halves of surrogate pairs.
    if (!isAscii) length = this.#bytes.write(text, start, 'utf16le')
    this.#tag(isAscii ? TAG.ascii : TAG.text)
    this.#count(length)
    this.#at += length
  }

  #tag(tag: number): void {
    this.#bytes[this.#at] = tag
    this.#at += 1
  }

  #count(count: number): void {
    this.#view.setUint32(this.#at, count)
    this.#at += 4
  }

  #grow(by: number): void {
    if (this.#at + by <= this.#bytes.length) return
    const larger = Buffer.allocUnsafe(2 * (this.#at + by))
    this.#bytes.copy(larger, 0, 0, this.#at)
    this.#bytes = larger
    this.#view = viewOf(larger)
  }
}

export class Decoder {
  #bytes: Buffer = Buffer.alloc(0)
  #view = viewOf(this.#bytes)
  #at = 0
  readonly #names: string[] = ['']
  readonly #limits: unknown[] = []
  #defined = 0

  /** @throws RangeError: it is not what an encoder has made */
  decode(bytes: Buffer): unknown {
    this.#bytes = bytes
    this.#view = viewOf(bytes)
    this.#at = 0
    return this.#read()
  }

  #read(): unknown {
    const tag = this.#tag()
    switch (tag) {
      case TAG.number:
        this.#at += 8
        return this.#view.getFloat64(this.#at - 8)
      case TAG.ascii:
        return this.#text('latin1')
      case TAG.text:
        return this.#text('utf16le')
      case TAG.array: {
        const list: unknown[] = []
        for (let left = this.#count(); left > 0; left -= 1) list.push(this.#read())
        return list
      }
      case TAG.object:
        return this.#object()
      case TAG.known:
        return this.#limits[this.#count()]
      case TAG.defined: {
        const limits = this.#read()
        this.#limits[this.#defined % RING] = limits
        this.#defined += 1
        return limits
      }
      case TAG.undefined:
        return undefined
      default:
        if (tag !== TAG.true && tag !== TAG.false) throw new RangeError('no such value')
        return tag === TAG.true
    }
  }

  #object(): unknown {
    const object: Record<string, unknown> = {}
    for (let left = this.#tag(); left > 0; left -= 1) {
      const number = this.#tag()
      if (number === NEW_NAME) this.#names.push(String(this.#read()))
      const name = this.#names[number === NEW_NAME ? this.#names.length - 1 : number]!
      object[name] = this.#read()
    }
    return object
  }

  #text(encoding: 'latin1' | 'utf16le'): string {
    const length = this.#count()
    this.#at += length
    return this.#bytes.toString(encoding, this.#at - length, this.#at)
  }

  #tag(): number {
    this.#at += 1
    return this.#bytes[this.#at - 1]!
  }

  #count(): number {
    this.#at += 4
    return this.#view.getUint32(this.#at - 4)
  }
}

function viewOf({ buffer, byteOffset, length }: Buffer): DataView {
  return new DataView(buffer, byteOffset, length)
}
