/** What is changed in headers on their way, in both directions. All else passes as it is: order, case, duplicates. */
import type { Fields } from '../quota/fields.js'
import type { RequestFacts } from './request.js'

/** RFC 9110 7.6.1 and what older peers still send; `te` and `trailer` speak of a framing that we make anew. */
const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
])

/** Request headers that are not passed on besides: Host goes first, Expect is answered by us, trailers are dropped. */
const REPLACED = new Set(['host', 'expect', 'trailer', 'http2-settings', 'x-forwarded-proto', 'x-forwarded-host'])

/** Named by Connection or not, a message is not understood without these. */
const FRAMING = new Set(['content-length', 'host'])

/** Who speaks to us, and whether it may say on whose behalf. */
export interface Peer {
  readonly address: string
  readonly trusted: boolean
  readonly encrypted: boolean
}

/** Headers towards the upstream: names and values in turn, Host first. */
export function upstreamHeaders(facts: RequestFacts, peer: Peer, host: string | undefined): string[] {
  const { rawHeaders, connection } = facts
  const headers: string[] = host === undefined ? [] : ['Host', host]
  let forwardedFor = -1
  let proto: string | undefined
  let originalHost: string | undefined
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    const value = rawHeaders[at + 1]!
    const lower = name.toLowerCase()
    if (lower === 'x-forwarded-proto') proto ??= value
    else if (lower === 'x-forwarded-host') originalHost ??= value
    if (isHopByHop(lower, connection) || REPLACED.has(lower)) continue
    if (lower === 'x-forwarded-for') forwardedFor = headers.length + 1
    const isCounted = lower === 'max-forwards' && facts.maxForwards !== undefined
    headers.push(name, isCounted ? String(facts.maxForwards - 1) : value)
  }
  if (forwardedFor < 0) headers.push('X-Forwarded-For', peer.address)
  else headers[forwardedFor] = `${headers[forwardedFor]}, ${peer.address}`
  headers.push('X-Forwarded-Proto', (peer.trusted ? proto : undefined) ?? (peer.encrypted ? 'https' : 'http'))
  const forwardedHost = (peer.trusted ? originalHost : undefined) ?? facts.host
  if (forwardedHost !== undefined) headers.push('X-Forwarded-Host', forwardedHost)
  headers.push('Via', facts.oldHttp ? '1.0 shaper' : '1.1 shaper')
  return headers
}

/**
 * Headers towards the client.
 *
 * @param rawHeaders as undici gives them, names and values in turn
 * @param chunkable whether the body may be sent in chunks: after others there are no trailers to announce
 */
export function clientHeaders(rawHeaders: readonly Buffer[], chunkable: boolean): string[] {
  const headers: string[] = []
  let connection = NONE
  let chunked = chunkable
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const { length } = rawHeaders[at]!
    if (length !== 10 && length !== 14) continue
    const lower = rawHeaders[at]!.toString('latin1').toLowerCase()
    if (lower === 'connection') connection = [...connection, ...listed(rawHeaders[at + 1]!.toString('latin1'))]
    else if (lower === 'content-length') chunked = false
  }
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!.toString('latin1')
    const lower = name.toLowerCase()
    if (isHopByHop(lower, connection) || (lower === 'trailer' && !chunked)) continue
    headers.push(name, rawHeaders[at + 1]!.toString('latin1'))
  }
  return headers
}

const NONE: readonly string[] = []

function listed(value: string): string[] {
  return value.split(',').map(name => name.trim().toLowerCase())
}

function isHopByHop(lower: string, connection: readonly string[]): boolean {
  return HOP_BY_HOP.has(lower) || (connection.length > 0 && connection.includes(lower) && !FRAMING.has(lower))
}

/** Headers as they were parsed, by their lower-case names. */
export function fieldsOf(headers: object): Fields {
  const values = headers as Record<string, string | string[] | undefined>
  return name => {
    const value = values[name]
    return Array.isArray(value) ? value.join(', ') : value
  }
}
