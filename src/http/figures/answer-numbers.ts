/**
 * Finds numbers in an answer while it goes to its client: in a JSON document, or in the last event of an event stream that has
 * them. The caller passes each piece on first. So an answer is never delayed by being read here, but for the time on the CPU.
 *
 * A compressed answer is inflated aside, on the threads of zlib, and what comes out is read here. What that may take is bounded: the pieces that wait for it, and
 * the bytes that come out. Beyond either nothing is found.
 */

import type { Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import type { Fields } from '../quota/field-values.js'
import { EventNumbers } from './event-numbers.js'
import { JsonNumbers } from './json-numbers.js'
import type { JsonPath } from './json-path.js'

/** Bytes that may wait to be inflated. */
const MOST_WAITING = 1024 * 1024
/** Bytes of one answer that are inflated. They are read on the main thread, a piece of 16 kB at a time: up to a second in all. */
const MOST_INFLATED = 16 * 1024 * 1024
/** By path. Undefined: there is none. */
export type Numbers = readonly (number | undefined)[]

export interface AnswerNumbers {
  /** Takes the bytes of a buffer from `from` to before `to`. The buffer is the caller's again when it returns. */
  read(bytes: Buffer, from: number, to: number): void
  /** The answer is whole. `done` is called once, before this returns or later. */
  end(done: (found: Numbers) => void): void
  /** The answer is not whole, or nobody wants to know. `done` is not called any more. */
  drop(): void
}

export function findInAnswer(fields: Fields, paths: readonly JsonPath[]): AnswerNumbers | undefined {
  const type = (fields('content-type') ?? '').split(';', 1)[0]!.trim().toLowerCase()
  const isEvents = type === 'text/event-stream'
  if (!isEvents && !JSON_TYPE.test(type)) return undefined
  const reader = isEvents ? new EventNumbers(paths) : new JsonNumbers(paths)
  const plain: AnswerNumbers = {
    read: (bytes, from, to) => reader.read(bytes, from, to),
    end: done => done(reader.end()),
    drop: () => undefined,
  }
  const coding = (fields('content-encoding') ?? '').trim().toLowerCase()
  return coding === '' || coding === 'identity' ? plain : new Inflated(coding, plain)
}

const JSON_TYPE = /^application\/(?:[^\s/]+\+)?json$/

class Inflated implements AnswerNumbers {
  readonly #coding: string
  readonly #plain: AnswerNumbers
  #inflate: Transform | undefined
  #left = MOST_INFLATED
  #hasFailed = false
  /** What is compressed has ended. The answer may go on: what comes then is not read. */
  #hasEnded = false
  #done: ((found: Numbers) => void) | undefined

  constructor(coding: string, plain: AnswerNumbers) {
    this.#coding = coding
    this.#plain = plain
  }

  read(bytes: Buffer, from: number, to: number): void {
    if (this.#hasFailed || this.#hasEnded || from === to) return
    this.#inflate ??= this.#open(bytes[from]!)
    if (this.#inflate === undefined || this.#inflate.writableLength + to - from > MOST_WAITING) return this.#fail()
    this.#inflate.write(Buffer.from(bytes.subarray(from, to)))
  }

  #open(first: number): Transform | undefined {
    return createInflate(this.#coding, first)
      ?.on('data', (piece: Buffer) => {
        this.#left -= piece.length
        if (this.#left < 0) this.#fail()
        else this.#plain.read(piece, 0, piece.length)
      })
      .on('error', () => this.#fail())
      .on('end', () => {
        this.#hasEnded = true
        const done = this.#done
        this.#done = undefined
        if (done !== undefined) this.#plain.end(done)
      })
  }

  end(done: (found: Numbers) => void): void {
    if (this.#hasFailed || this.#inflate === undefined) return done(NOTHING)
    if (this.#hasEnded) return this.#plain.end(done)
    this.#done = done
    this.#inflate.end()
  }

  drop(): void {
    this.#done = undefined
    this.#fail()
  }

  #fail(): void {
    if (this.#hasFailed) return
    this.#hasFailed = true
    this.#inflate?.destroy()
    const done = this.#done
    this.#done = undefined
    done?.(NOTHING)
  }
}

const NOTHING: Numbers = []
/** 8 MiB, the most that RFC 9659 allows on the web. */
const LARGEST_ZSTD_WINDOW = 23

interface Zstd {
  readonly createZstdDecompress?: (options: { params: Record<number, number> }) => Transform
  readonly constants: { readonly ZSTD_d_windowLogMax?: number }
}

/**
 * A stream that undoes a content coding. Undefined: it is not known here.
 *
 * @param first the first byte of what is coded
 */
function createInflate(coding: string, first: number): Transform | undefined {
  if (coding === 'gzip' || coding === 'x-gzip') return zlib.createGunzip()
  // Some servers leave out the header of zlib, whose lower half is 8.
  if (coding === 'deflate') return (first & 0x0f) === 8 ? zlib.createInflate() : zlib.createInflateRaw()
  if (coding === 'br') return zlib.createBrotliDecompress()
  if (coding !== 'zstd') return undefined
  const { createZstdDecompress, constants } = zlib as unknown as Zstd
  return createZstdDecompress?.({ params: { [constants.ZSTD_d_windowLogMax!]: LARGEST_ZSTD_WINDOW } })
}
