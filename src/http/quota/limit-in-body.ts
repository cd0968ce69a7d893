import { ownValue } from '../../core/structures/own-value.js'
import { type Fields, trimValue } from './field-values.js'
import { namedPause } from './pause-rule.js'

/** ms. What GitHub asks for where an answer names no time. */
export const UNNAMED_PAUSE = 60_000
/** What GitHub says of its secondary limits, in a body alone where the head names no time. */
const SECONDARY = /secondary rate limit|abuse detection/i
/** Bytes of an answer that are looked at, coded and decoded. */
const MOST = 16_384
const DECODERS = { gzip: 'gunzipSync', deflate: 'inflateSync', br: 'brotliDecompressSync' } as const

export function mayTellInBody(status: number, fields: Fields): boolean {
  return (status === 403 || status === 429) && namedPause(fields, 0) === undefined
}

export class LimitInBody {
  readonly #decoder: (typeof DECODERS)[keyof typeof DECODERS] | undefined
  readonly #chunks: Buffer[] = []
  readonly #found: () => void
  #size = 0

  constructor(fields: Fields, found: () => void) {
    this.#found = found
    this.#decoder = ownValue(DECODERS, trimValue(fields('content-encoding')) ?? '')
  }

  read(chunk: Buffer): void {
    if (this.#size < MOST) this.#chunks.push(Buffer.from(chunk))
    this.#size += chunk.length
  }

  end(): void {
    if (this.#size > MOST) return
    const all = Buffer.concat(this.#chunks)
    try {
      // Loaded only where it is needed: it would take a tenth of the time in which the library is loaded.
      const zlib = process.getBuiltinModule('node:zlib')
      const text = (this.#decoder === undefined ? all : zlib[this.#decoder](all, { maxOutputLength: MOST })).toString()
      if (SECONDARY.test(text)) this.#found()
    } catch {
      // It is not coded as it says.
    }
  }
}
