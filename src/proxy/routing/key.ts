import { createHash, hash } from 'node:crypto'
import type { KeyPart, KeySettings } from '../../config/settings.js'
import { hostName } from '../../http/matching/host-pattern.js'
import { addressKey } from '../http/client-address.js'
import { firstLine, hasSeveralLines, headerValue, type RequestFacts } from '../http/request.js'

/** Longer keys are kept as a digest, so that a client cannot choose how much memory its key takes. */
const LONGEST_KEY = 128

/** A key as logs show it: the first 12 hex digits of its SHA-256. */
export function hashedKey(key: string): string {
  return hash('sha256', key).slice(0, 12)
}

/** What a key is made from. */
export interface KeyContext {
  readonly facts: RequestFacts
  /** The client's address. */
  readonly address: string
  /** The same, IPv6 by /64. */
  readonly ip: string
  readonly route: string
}

/** The key of a request. Undefined: a part is missing, and the bucket rejects or skips such requests. */
export type KeyReader = (context: KeyContext) => string | undefined

export function createKeyReader({ parts, missing, ipv6 }: KeySettings): KeyReader {
  const ip = ipv6 === 64 ? ofClient : (context: KeyContext) => addressKey(context.address, ipv6)
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

/** @returns undefined if the key has no header */
export function createDuplicateFinder({ parts }: KeySettings): DuplicateFinder | undefined {
  const names = parts.flatMap(part => (part.kind === 'header' ? [part.name] : []))
  if (names.length === 0) return undefined
  return ({ rawHeaders }) => names.find(name => hasSeveralLines(rawHeaders, name))
}

/** The network that the proxy has found for its own bounds already. */
function ofClient({ ip }: KeyContext): string {
  return ip
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
    case 'header':
      return context => firstLine(context.facts.rawHeaders, part.name)
    case 'cookie':
      return context => cookieValue(headerValue(context.facts.rawHeaders, 'cookie', '; '), part.name)
    case 'query':
      return context => queryValue(context.facts.target, part.name)
  }
}

/** The first cookie of that name. A comma is part of a value (RFC 6265 5.2). */
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

/** A key as it is kept. */
export function boundedKey(key: string): string {
  return key.length <= LONGEST_KEY ? key : `#${createHash('sha256').update(key).digest('base64url')}`
}
