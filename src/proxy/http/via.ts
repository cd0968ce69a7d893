import { randomBytes } from 'node:crypto'
import type { ClientRequest } from './client.js'

/** An id for `Via`. All workers of a program have the same one. */
export function createId(): string {
  return randomBytes(3).toString('hex')
}

/** What this program adds to `Via` (RFC 9110 7.6.3). A request that already has it has come back in a loop. */
export class Via {
  readonly #comment: string
  readonly #current: string
  readonly #old: string
  readonly #http2: string

  constructor(id: string) {
    this.#comment = `(${id})`
    this.#current = `1.1 shaper ${this.#comment}`
    this.#old = `1.0 shaper ${this.#comment}`
    this.#http2 = `2.0 shaper ${this.#comment}`
  }

  /** Says in which version of HTTP the request came. */
  value({ isHttp2, httpVersionMinor }: ClientRequest): string {
    if (isHttp2) return this.#http2
    return httpVersionMinor === 0 ? this.#old : this.#current
  }

  /** @param values all values of the request's `Via`, joined with commas */
  isIn(values: string): boolean {
    if (!values.includes(this.#comment)) return false
    return values.split(',').some(part => {
      const hop = part.trim()
      return hop === this.#current || hop === this.#http2 || hop === this.#old
    })
  }
}
