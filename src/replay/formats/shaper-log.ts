/**
 * The log of `shaper start` itself. Its lines of requests (cli/access-log.ts) are written when a request has ended, and
 * tell how long it waited and how long the upstream took to answer. They tell no address: a client is the hash of its
 * key in the first bucket of its stack. What reached no bucket, and whatever else is logged, is skipped.
 */

import { readTree, type Tree } from './json-object.js'
import { type BadLine, LineParser, readRequestLine, SKIPPED } from './line-parser.js'
import { Scratch } from './text-buffer.js'
import { readStamp } from './timestamp.js'

export class ShaperParser extends LineParser {
  readonly format = 'shaper'
  readonly timed = true
  readonly #scratch = new Scratch()

  parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | undefined {
    const line = readTree(Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString())
    if (line === undefined) return 'not JSON'
    if (!isShaperRequest(line)) return SKIPPED
    const { time, key, outcome, method, path, waitMs, upstreamMs } = line
    if (typeof key !== 'string' || key === '' || outcome === 'refused') return SKIPPED
    const stamp = readStamp(String(time))
    if (stamp === undefined) return 'no time'
    this.second = stamp.second
    this.fraction = Math.max(0, stamp.fraction)
    this.duration = msOf(waitMs) + msOf(upstreamMs)
    const scratch = this.#scratch
    scratch.clear()
    scratch.put(`${method} ${path}`)
    this.addressFrom = scratch.end
    scratch.put(key)
    this.addressTo = scratch.end
    this.bytes = scratch.bytes
    return readRequestLine(this, scratch.bytes, 0, this.addressFrom) ? undefined : 'not an HTTP request'
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

/** Whether a record is about a request, of whatever outcome. */
export function isShaperRequest({ msg, outcome, method, path }: Tree): boolean {
  return msg === 'request' && [outcome, method, path].every(field => typeof field === 'string')
}

function msOf(value: unknown): number {
  return typeof value === 'number' && value > 0 ? value : 0
}
