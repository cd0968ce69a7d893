/** Header fields between HTTP/1.1, as the rest of the program has them, and HTTP/2 (RFC 9113 8.2). */
import type { OutgoingHttpHeaders } from 'node:http2'
import { NameSet } from '../http1/name-set.js'

/** What HTTP/2 says in frames, and `te`, which speaks of the next hop only. Node throws at them. */
const OF_HTTP1 = new NameSet([
  'connection',
  'http2-settings',
  'keep-alive',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
])

/** Bytes of the longest head that we send. An upstream's head of HTTP/1.1 or a client's may be longer than Node's usual 64 kB. */
export const MAX_SENT_HEAD = 1024 * 1024

/** Node throws at any other name. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/

/** Fields whose lines cannot be joined. */
const LINES = new Set(['set-cookie', 'www-authenticate', 'proxy-authenticate'])

/**
 * The fields of an HTTP/2 message. Names become lower-case. Several lines of a name are joined (RFC 9110 5.3), because Node
 * refuses several lines of some.
 *
 * @param pseudo its pseudo-fields
 * @param fields names and values in turn
 */
export function http2Fields(pseudo: OutgoingHttpHeaders, fields: readonly string[]): OutgoingHttpHeaders {
  // A field may be called `constructor`.
  const to: OutgoingHttpHeaders = Object.assign(Object.create(null), pseudo)
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at]!.toLowerCase()
    if (OF_HTTP1.has(name) || !TOKEN.test(name)) continue
    const value = fields[at + 1]!
    const before = to[name]
    if (before === undefined) to[name] = LINES.has(name) ? [value] : value
    else if (Array.isArray(before)) before.push(value)
    else to[name] = `${before}${name === 'cookie' ? '; ' : ', '}${value}`
  }
  return to
}

/** The fields of a message without its pseudo-fields: names and values in turn. */
export function regularFields(raw: readonly string[]): string[] {
  const fields: string[] = []
  for (let at = 0; at < raw.length; at += 2) if (raw[at]![0] !== ':') fields.push(raw[at]!, raw[at + 1]!)
  return fields
}
