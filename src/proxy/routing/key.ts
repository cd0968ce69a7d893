import { hash } from 'node:crypto'
import type { KeyPart, KeySettings } from '../../config/settings.js'
import { pathWithoutParameters } from '../../http/matching/matching-path.js'
import { hostName } from '../../http/matching/wildcard.js'
import { addressKey } from '../http/client-address.js'
import { boundedKey } from '../http/meant-key.js'
import { firstLine, hasSeveralLines, headerValue, type RequestFacts } from '../http/request.js'
import type { BodyFigures } from './bucket-costs.js'

/** A key as logs show it: the first 12 hex digits of its SHA-256. */
export function hashedKey(key: string): string {
  return hash('sha256', key).slice(0, 12)
}

/** What the verified token of a request says, by the claim as it is written in keys. */
export type Claims = ReadonlyMap<string, string>
export const NO_CLAIMS: Claims = new Map()

interface KeyContext {
  readonly facts: RequestFacts
  readonly address: string
  /** The same, IPv6 by /64. */
  readonly ip: string
  readonly route: string
  /** The fingerprint of the client's certificate. */
  readonly certificate: string | undefined
  readonly claims: Claims
  readonly body: BodyFigures
}

/** The key of a request. Undefined: a part is missing, and the bucket rejects or skips such requests. */
export type KeyReader = (context: KeyContext) => string | undefined

export function createKeyReader({ parts, missing, ipv6 }: KeySettings): KeyReader {
  // The proxy has found the /64 for its own bounds already.
  const ip = (context: KeyContext) => (ipv6 === 64 ? context.ip : addressKey(context.address, ipv6))
  // A value that replaces a missing one starts with a space. No received value does.
  const standIn = (context: KeyContext): string | undefined => {
    if (missing === 'reject' || missing === 'skip') return undefined
    return missing === 'ip' ? ` ${ip(context)}` : ' '
  }
  const readers = parts.map(part => {
    const read = createPartReader(part, ip)
    return (context: KeyContext) => read(context)?.trim() || standIn(context)
  })
  const [only] = readers
  if (readers.length === 1 && only !== undefined) {
    return context => {
      const key = only(context)
      return key === undefined ? undefined : boundedKey(key)
    }
  }
  return context => {
    const values: string[] = []
    for (const read of readers) {
      const value = read(context)
      if (value === undefined) return undefined
      values.push(value.includes('\n') ? encodeURIComponent(value) : value)
    }
    return boundedKey(values.join('\n'))
  }
}

/** The first header of a key that a request has on more than one line; undefined: none. */
export type DuplicateFinder = (facts: RequestFacts) => string | undefined

export function createDuplicateFinder({ parts }: KeySettings): DuplicateFinder | undefined {
  const names = parts.flatMap(part => (part.kind === 'header' ? [part.name] : []))
  if (names.length === 0) return undefined
  return ({ rawHeaders }) => names.find(name => hasSeveralLines(rawHeaders, name))
}

function createPartReader(
  part: KeyPart,
  ip: (context: KeyContext) => string,
): (context: KeyContext) => string | undefined {
  switch (part.kind) {
    case 'all':
      return () => 'all'
    case 'ip':
      return ip
    case 'route':
      return context => context.route
    case 'method':
      return context => context.facts.method
    case 'host':
      return ({ facts: { host } }) => (host === undefined ? undefined : hostName(host))
    case 'cert':
      return context => context.certificate
    case 'header':
      return context => firstLine(context.facts.rawHeaders, part.name)
    case 'cookie':
      return context => cookieValue(headerValue(context.facts.rawHeaders, 'cookie', '; '), part.name)
    case 'query':
      return context => queryValue(context.facts.target, part.name)
    case 'jwt':
      return ({ claims }) => claims.get(part.name)
    case 'body':
      return ({ body }) => body.keys.get(part.name)
    case 'path':
      return context => segmentOf(context.facts.path, Number(part.name))
  }
}

function cookieValue(cookies: string | undefined, name: string): string | undefined {
  for (const cookie of cookies?.split(';') ?? []) {
    const equals = cookie.indexOf('=')
    if (equals > 0 && cookie.slice(0, equals).trim() === name) return cookie.slice(equals + 1).trim()
  }
  return undefined
}

function queryValue(target: string, name: string): string | undefined {
  const start = target.indexOf('?')
  return start < 0 ? undefined : (new URLSearchParams(target.slice(start)).get(name) ?? undefined)
}

/**
 * Decoded as a whole, and in the spelling of an upstream that reads it in the widest way: `%2F` and a backslash part segments, and what
 * follows a `;` is a parameter. So no spelling has a key of its own, whatever the upstream makes of it.
 */
function segmentOf(target: string, place: number): string | undefined {
  const path = /[%;\\]/.test(target) ? pathWithoutParameters(target.replace(/%2f|%5c|\\/gi, '/')) : target
  let from = 0
  for (let at = 0; at < place && from >= 0; at += 1) from = path.indexOf('/', from) + 1 || -1
  if (from < 0) return undefined
  const end = path.indexOf('/', from)
  const segment = end < 0 ? path.slice(from) : path.slice(from, end)
  if (!segment.includes('%')) return segment
  try {
    return decodeURIComponent(segment)
  } catch {
    return segment
  }
}
