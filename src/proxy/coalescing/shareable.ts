import { isNamed, listed } from '../http1/fields.js'
import { mayDiffer } from './identity.js'

/** What `Cache-Control` says of an answer for one user. It may have a list of fields behind it. */
const FOR_ONE = /(?:^|[,\s])(?:private|no-store)(?:$|[=,;\s])/i

/** What they say is of the client that asked: its cookies, its proof of who it is (RFC 9110 11.6.3), what it has stored. */
const OF_ONE_CLIENT = [
  'set-cookie',
  'set-cookie2',
  'authentication-info',
  'proxy-authentication-info',
  'clear-site-data',
] as const

/** An answer without its body. */
export interface AnswerHeadLines {
  readonly status: number
  readonly reason: string
  /** Names and values in turn, as they came. */
  readonly fields: readonly string[]
  /** Bytes of the body; 0 if there is none, whatever the headers say. Undefined: its end is not known yet. */
  readonly length: number | undefined
}

/**
 * Whether an answer may be given to alike requests that waited when it was asked for. `no-cache` does not matter: that answer is as
 * new as one that is asked for now. An error may be over when it is the next one's turn.
 */
export function isShareable({ status, fields }: AnswerHeadLines): boolean {
  return isUsual(status) && areForAll(fields)
}

/** Whether no field says that the answer is for one client. @param fields of its head or its trailers: names and values in turn */
export function areForAll(fields: readonly string[]): boolean {
  for (let at = 0; at < fields.length; at += 2) if (isForOne(fields[at]!, fields[at + 1]!)) return false
  return true
}

function isUsual(status: number): boolean {
  return (status >= 200 && status < 400 && status !== 206) || status === 404 || status === 410
}

function isForOne(name: string, value: string): boolean {
  if (OF_ONE_CLIENT.some(each => isNamed(name, each))) return true
  if (isNamed(name, 'cache-control')) return FOR_ONE.test(value)
  return isNamed(name, 'vary') && listed(value).some(varied => varied === '*' || mayDiffer(varied))
}
