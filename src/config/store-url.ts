/** Where stores are, for the file (schema/store.ts) and for the options of the library: their URLs, and tables. */
import { quote, quoteUrl } from './messages.js'

/** A store that instances share. Its URLs hold passwords: mask them with `maskUrl` before showing them. */
export type StoreSettings = (
  | {
      type: 'redis'
      /** One server, or Sentinels. Exactly one of `url` and `cluster` is set. */
      url?: string
      /** URLs of some nodes. */
      cluster?: readonly string[]
      prefix: string
    }
  | {
      type: 'postgres'
      url: string
      /** `"table"` or `"schema.table"`. */
      table: string
    }
) & {
  /** The longest time for an answer, in ms. */
  timeout: number
  /** What to release without the store: a share of the rates, nothing, or everything. */
  onOutage: 'local' | 'closed' | 'open'
  /** The least number of instances to assume until the store has answered. Absent: 1. */
  instances?: number
}

/** How a file begins in which the memory keeps its levels; then comes its version. */
export const LEVELS_FILE = '{"shaperLevels":'

/** One kind of URL. `isGood` checks everything but the scheme. */
export interface StoreUrl {
  readonly example: string
  readonly schemes: RegExp
  readonly isGood: (value: string) => boolean
}

const REDIS: StoreUrl = {
  example: 'redis://127.0.0.1:6379',
  schemes: /^rediss?:\/\//,
  isGood: value => hasHost(value) && /^\/?\d*$/.test(new URL(value).pathname) && !/[?#]/.test(value),
}
const SENTINEL: StoreUrl = {
  example: 'redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster',
  schemes: /^rediss?\+sentinel:\/\//,
  isGood: isSentinels,
}
const POSTGRES: StoreUrl = {
  example: 'postgres://127.0.0.1/shaper',
  schemes: /^postgres(?:ql)?:\/\//,
  // Without a host, or with a path in its place, it is a socket.
  isGood: value => hasHost(value) || (URL.canParse(value) && /^(?:%2f|$)/i.test(new URL(value).hostname)),
}

/** The library has no dependency that reads addresses. */
const HOST = /^(?:[\w-]+(?:\.[\w-]+)*\.?|\[[\da-f:.]+\])$/i

function hasHost(value: string): boolean {
  return URL.canParse(value) && HOST.test(new URL(value).hostname)
}

/** Checks `redis+sentinel://user:password@host:port,host:port/NAME`: hosts of Sentinels, and the name of their master. */
function isSentinels(value: string): boolean {
  const [, scheme = '', user = '', hosts = '', rest = ''] =
    /^([^:]+:\/\/)([^/?#]*@)?([^/?#]*)(\/[^/?#]+)$/.exec(value) ?? []
  return scheme !== '' && hosts.split(',').every(host => hasHost(`${scheme}${user}${host}${rest}`))
}

function check(value: string, kind: StoreUrl): string {
  const [, scheme = '', authority = '', rest = ''] = /^([^/?#]*\/\/)([^/?#]*)(.*)$/s.exec(value) ?? []
  const isOfKind = kind.schemes.test(scheme)
  // An unencoded "/" in a password would end the host, and the message would show the rest of the password.
  if (isOfKind && (rest.includes('@') || (authority.includes('@') && !kind.isGood(value)))) {
    throw new RangeError(
      `${quoteUrl(value)} is not a URL as it is; in its user and password write special characters percent-encoded, e.g. %2F for "/"`,
    )
  }
  if (!isOfKind || !kind.isGood(value)) throw new RangeError(fault(value, kind))
  return value
}

function fault(input: unknown, { example }: StoreUrl): string {
  return input === undefined
    ? `missing; use e.g. "${example}"`
    : `${quoteUrl(input)} is not the URL of this store; use e.g. "${example}"`
}

/** Reads a URL. It throws a RangeError without the password. */
export type UrlReader = (input: unknown) => string

function urlOf(choose: (value: string) => StoreUrl, usual: StoreUrl): UrlReader {
  return input => {
    if (typeof input !== 'string') throw new RangeError(fault(input, usual))
    return check(input, choose(input))
  }
}

export const readRedisUrl = urlOf(value => (SENTINEL.schemes.test(value) ? SENTINEL : REDIS), REDIS)
export const readRedisNode = urlOf(() => REDIS, REDIS)
export const readPostgresUrl = urlOf(() => POSTGRES, POSTGRES)
const TABLE = 'use e.g. "shaper_buckets" or "limits.shaper_buckets"'
/** The length at which PostgreSQL truncates names, in bytes. */
const LONGEST_NAME = 63

/** The name of a table, maybe in a schema. It throws a RangeError. */
export function readTable(input: unknown): string {
  if (input === undefined) throw new RangeError(`missing; ${TABLE}`)
  if (typeof input !== 'string' || input === '') throw new RangeError(`${quote(input)} is not a table; ${TABLE}`)
  const names = input.split('.')
  const isName = (name: string): boolean =>
    name !== '' && !name.includes('\0') && Buffer.byteLength(name) <= LONGEST_NAME
  if (names.length <= 2 && names.every(isName)) return input
  throw new RangeError(`${quote(input)} is not a table's name, or one in a schema; ${TABLE}`)
}
