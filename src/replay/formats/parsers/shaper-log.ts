/**
 * The log of `shaper start`. A line (cli/logging/access-log.ts) is written when its request has ended. It tells the time in
 * the queue and the upstream's time to answer, but no address: a client is the hash of its key in the first bucket.
 * Requests that reached no bucket and other records are skipped.
 */
import { type BadLine, type JsonObject, lineText, readJsonObject, SKIPPED, TextLineParser } from '../line-parser.js'
import { readTimestamp } from '../timestamp.js'

export class ShaperParser extends TextLineParser {
  readonly format = 'shaper'
  readonly timed = true

  parse(bytes: Uint8Array, from: number, to: number): BadLine | typeof SKIPPED | undefined {
    const line = readJsonObject(lineText(bytes, from, to))
    if (line === undefined) return 'not JSON'
    if (!isShaperRequest(line)) return SKIPPED
    const { time, key, outcome, method, path, waitMs, upstreamMs } = line
    if (typeof key !== 'string' || key === '' || outcome === 'refused' || outcome === 'accepted') return SKIPPED
    const timestamp = readTimestamp(String(time))
    if (timestamp === undefined) return 'no time'
    // The time in the queue does not count.
    this.took = typeof upstreamMs === 'number' ? msOf(upstreamMs) : undefined
    this.duration = msOf(waitMs) + msOf(upstreamMs)
    const exact = { ...timestamp, fraction: Math.max(0, timestamp.fraction) }
    return this.keep(exact, { request: `${method} ${path}`, address: key })
  }

  has(): boolean {
    return false
  }

  /** Its clients are hashes. */
  override get notes(): readonly string[] {
    return []
  }
}

export function isShaperRequest({ msg, outcome, method, path }: JsonObject): boolean {
  return msg === 'request' && [outcome, method, path].every(field => typeof field === 'string')
}

function msOf(value: unknown): number {
  return typeof value === 'number' && value > 0 ? value : 0
}
