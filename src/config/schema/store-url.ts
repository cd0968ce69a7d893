/** URLs of stores. */
import * as z from 'zod'
import { quoteUrl, type RefusedValue } from '../messages.js'
import { read } from './values.js'

/** One kind of URL. `isGood` checks everything but the scheme. */
interface Kind {
  readonly example: string
  readonly schemes: RegExp
  readonly isGood: (value: string) => boolean
}

const REDIS: Kind = {
  example: 'redis://127.0.0.1:6379',
  schemes: /^rediss?:\/\//,
  isGood: value => hasHost(value) && /^\/?\d*$/.test(new URL(value).pathname) && !/[?#]/.test(value),
}
const SENTINEL: Kind = {
  example: 'redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/mymaster',
  schemes: /^rediss?\+sentinel:\/\//,
  isGood: isSentinels,
}
const POSTGRES: Kind = {
  example: 'postgres://127.0.0.1/shaper',
  schemes: /^postgres(?:ql)?:\/\//,
  isGood: value => URL.canParse(value),
}

function hasHost(value: string): boolean {
  return URL.canParse(value) && new URL(value).hostname !== ''
}

/** Checks `redis+sentinel://user:password@host:port,host:port/NAME`: hosts of Sentinels, and the name of their master. */
function isSentinels(value: string): boolean {
  const [, scheme = '', user = '', hosts = '', rest = ''] =
    /^([^:]+:\/\/)([^/?#]*@)?([^/?#]*)(\/[^/?#]+)$/.exec(value) ?? []
  return scheme !== '' && hosts.split(',').every(host => hasHost(`${scheme}${user}${host}${rest}`))
}

/** @throws RangeError without the password */
function check(value: string, kind: Kind): string {
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

function fault(input: unknown, { example }: Kind): string {
  return `${quoteUrl(input)} is not the URL of this store; use e.g. "${example}"`
}

function urlOf(kind: Kind, choose: (value: string) => Kind = () => kind) {
  const error = ({ input }: RefusedValue) =>
    input === undefined ? `missing; use e.g. "${kind.example}"` : fault(input, kind)
  return read(z.string({ error }), value => check(value, choose(value)))
}

/** The URL of a server or of Sentinels. */
export const redisUrl = urlOf(REDIS, value => (SENTINEL.schemes.test(value) ? SENTINEL : REDIS))

/** The URL of a server. */
export const redisNode = urlOf(REDIS)

export const postgresUrl = urlOf(POSTGRES)
