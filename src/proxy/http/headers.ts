/** Changes to headers in both directions. Everything else passes unchanged: order, case, duplicates. */

import { randomBytes } from 'node:crypto'
import type { ClientRequest } from './client.js'
import { UNIX } from './client-address.js'
import { HOP_BY_HOP, isHopByHop, isNamed, type LookAlikes, NameSet, withNamed } from './fields.js'
import { firstLine, type RequestFacts } from './request.js'

/** Request headers that are also replaced or dropped: Host goes first, we answer Expect, trailers are dropped. */
const REPLACED = ['host', 'expect', 'trailer', 'http2-settings']
const NOT_UPSTREAM = new NameSet([...HOP_BY_HOP, ...REPLACED, 'x-forwarded-proto', 'x-forwarded-host'])
/** Where X-Forwarded-* do not tell of the client. */
const NOT_UNTOLD = new NameSet([...HOP_BY_HOP, ...REPLACED])
/** For us alone, on routes that hand it out. */
const TICKET = 'shaper-ticket'
const CHANGED_UPSTREAM = new NameSet(['x-forwarded-for', 'max-forwards', 'content-length'])

interface Peer {
  readonly address: string
  readonly trusted: boolean
  readonly encrypted: boolean
}

interface HeaderRules {
  readonly host: string | undefined
  /** The value to add to `Via`; undefined: none. */
  readonly via: string | undefined
  /** Lower-case names of headers that the route reads. Connection options do not remove them. */
  readonly kept: ReadonlySet<string>
  /** Names that are not passed on, because the upstream could take them for others. */
  readonly lookAlikes: LookAlikes
  /** Whether it hands out tickets. They are not passed on. */
  readonly appointments: boolean
  readonly forwarded: boolean
}

/** Headers for the upstream: names and values in turn, Host first. */
export function upstreamHeaders(facts: RequestFacts, peer: Peer, rules: HeaderRules): string[] {
  const { rawHeaders, connection } = facts
  const { host, via, kept, forwarded } = rules
  const dropped = forwarded ? NOT_UPSTREAM : NOT_UNTOLD
  const headers: string[] = host === undefined ? [] : ['Host', host]
  let forwardedFor = -1
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    if (dropped.has(name) || isWithheld(name, rules)) continue
    if (connection !== undefined && isRemoved(name.toLowerCase(), connection, kept)) continue
    const changed = CHANGED_UPSTREAM.find(name)
    if (changed === 'x-forwarded-for') forwardedFor = headers.length + 1
    headers.push(name, (changed && valueTowards(changed, facts)) ?? rawHeaders[at + 1]!)
  }
  if (forwarded) addForwarded(headers, forwardedFor, facts, peer)
  if (via !== undefined) headers.push('Via', via)
  return headers
}

function isWithheld(name: string, { lookAlikes, appointments }: HeaderRules): boolean {
  return lookAlikes.has(name) || (appointments && isNamed(name, TICKET))
}

function valueTowards(lower: string, { maxForwards, contentLength }: RequestFacts): string | undefined {
  if (lower === 'max-forwards' && maxForwards !== undefined) return String(maxForwards - 1)
  // Leading zeros could be read differently.
  if (lower === 'content-length' && contentLength !== undefined) return String(contentLength)
  return undefined
}

function isRemoved(lower: string, connection: ReadonlySet<string>, kept: ReadonlySet<string>): boolean {
  return connection.has(lower) && !kept.has(lower)
}

/**
 * Adds the address of the client, and the scheme and the host that it asked for. Only a trusted peer may name others than its
 * own. A Unix socket tells of no address, so what a trusted one names stays as it is.
 *
 * @param known the index of X-Forwarded-For among the headers; -1: there is none
 */
function addForwarded(headers: string[], known: number, facts: RequestFacts, peer: Peer): void {
  const { address, trusted, encrypted } = peer
  if (known < 0) headers.push('X-Forwarded-For', address)
  else if (address !== UNIX || !trusted) headers[known] = `${headers[known]}, ${address}`
  const scheme = encrypted ? 'https' : 'http'
  headers.push('X-Forwarded-Proto', (trusted ? firstLine(facts.rawHeaders, 'x-forwarded-proto') : undefined) ?? scheme)
  const host = (trusted ? firstLine(facts.rawHeaders, 'x-forwarded-host') : undefined) ?? facts.host
  if (host !== undefined) headers.push('X-Forwarded-Host', host)
}

/** Headers for the client. @param fields the upstream's @param body whether it may be sent in chunks. Only then it may have trailers */
export function clientHeaders(fields: readonly string[], status: number, body: 'chunkable' | 'unchunked'): string[] {
  const headers: string[] = []
  const unsized = isUnsized(status)
  let connection: Set<string> | undefined
  let chunked = body === 'chunkable'
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at]!
    if (isNamed(name, 'connection')) connection = withNamed(connection, fields[at + 1]!.split(','))
    else if (isNamed(name, 'content-length')) chunked = false
  }
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at]!
    if (isHopByHop(name) || connection?.has(name.toLowerCase())) continue
    if (!chunked && isNamed(name, 'trailer')) continue
    if (unsized && isNamed(name, 'content-length')) continue
    headers.push(name, fields[at + 1]!)
  }
  return headers
}

/** RFC 9110 8.6: such an answer has no Content-Length. */
function isUnsized(status: number): boolean {
  return status < 200 || status === 204
}

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

  value({ isHttp2, httpVersionMinor }: ClientRequest): string {
    if (isHttp2) return this.#http2
    return httpVersionMinor === 0 ? this.#old : this.#current
  }

  isIn(values: string): boolean {
    if (!values.includes(this.#comment)) return false
    return values.split(',').some(part => {
      const hop = part.trim()
      return hop === this.#current || hop === this.#http2 || hop === this.#old
    })
  }
}
