/**
 * The log of `shaper start`. A line (cli/logging/access-log.ts) is written when its request has ended. It tells the time in
 * the queue and the upstream's time to answer, but no address: a client is the hash of its key in the first bucket.
 * Requests that reached no bucket and other records are skipped.
 */

import { type JsonObject, readJsonObject } from './json-object.js'
import { type BadLine, LineParser, readRequestLine, SKIPPED } from './line-parser.js'
import { TextBuffer } from './text-buffer.js'
import { readTimestamp } from './timestamp.js'

export class ShaperParser extends LineParser {
  readonly format = 'shaper'
  readonly timed = true
  readonly #texts = new TextBuffer()
  #upstreamMs: number | undefined

  /** The time in the queue does not count. */
  override get serviceTime(): number | undefined {
    return this.#upstreamMs
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | undefined {
    const line = readJsonObject(Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString())
    if (line === undefined) return 'not JSON'
    if (!isShaperRequest(line)) return SKIPPED
    const { time, key, outcome, method, path, waitMs, upstreamMs } = line
    if (typeof key !== 'string' || key === '' || outcome === 'refused') return SKIPPED
    const timestamp = readTimestamp(String(time))
    if (timestamp === undefined) return 'no time'
    this.second = timestamp.second
    this.fraction = Math.max(0, timestamp.fraction)
    this.#upstreamMs = typeof upstreamMs === 'number' ? msOf(upstreamMs) : undefined
    this.duration = msOf(waitMs) + msOf(upstreamMs)
    const texts = this.#texts
    texts.clear()
    texts.put(`${method} ${path}`)
    this.addressFrom = texts.end
    texts.put(key)
    this.addressTo = texts.end
    this.bytes = texts.bytes
    return readRequestLine(this, texts.bytes, 0, this.addressFrom) ? undefined : 'not an HTTP request'
  }

  host(): undefined {
    return undefined
  }

  header(): undefined {
    return undefined
  }

  has(): boolean {
    return false
  }
}

/** Whether a record is about a request. */
export function isShaperRequest({ msg, outcome, method, path }: JsonObject): boolean {
  return msg === 'request' && [outcome, method, path].every(field => typeof field === 'string')
}

function msOf(value: unknown): number {
  return typeof value === 'number' && value > 0 ? value : 0
}
