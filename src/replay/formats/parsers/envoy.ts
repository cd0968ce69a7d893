/**
 * Lines of Envoy in its default format, and in that of Istio, which has some fields more ("Access logging" at envoyproxy.io;
 * "Envoy Access Logs" at istio.io). The time is that of the beginning, and durations are ms.
 */
import type { BadLine } from '../line-parser.js'
import { firstAddress, lineText, TextLineParser, unlessMissing } from '../text-line-parser.js'
import { readTimestamp } from '../timestamp.js'

/** `[START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS `; what follows differs. */
const HEAD = /^\[([^\]\s]{1,40})\] "(\S+ \S+) \S+" (?:\d{1,3}|-) \S+ /
/** Istio has details of the answer and of the connection here, and why TLS to the upstream failed. */
const DETAILS = '(?:\\S+ \\S+ "[^"]*" )?'
/** Bytes received and sent, DURATION, the upstream's time. */
const FIGURES = '\\d+ \\d+ (\\d+|-) \\S+ '
/** X-Forwarded-For, user agent, request id, authority, upstream. Envoy does not escape a quote in a user agent. */
const QUOTED = '"([^"]*)" "(.*?)" "[^"]*" "([^"]*)" "[^"]*"'
/** Cluster, local addresses of both connections, address of the client's connection. */
const CONNECTION = '(?: \\S+ \\S+ \\S+ (\\S+))?'
const REST = new RegExp(`^${DETAILS}${FIGURES}${QUOTED}${CONNECTION}`)

export class EnvoyParser extends TextLineParser {
  readonly format = 'envoy'
  readonly timed = false

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const text = lineText(bytes, from, to)
    const [head, time = '', request = ''] = HEAD.exec(text) ?? []
    if (head === undefined) return text.startsWith('[') ? 'no request' : 'no time'
    const timestamp = readTimestamp(time)
    if (timestamp === undefined) return 'no time'
    const rest = REST.exec(text.slice(head.length))
    if (rest === null) return 'cut off'
    const [, took, forwarded = '', agent, authority, peer] = rest
    this.took = took === undefined || took === '-' ? undefined : Number(took)
    this.authority = unlessMissing(authority)
    const address = firstAddress(forwarded) ?? unlessMissing(peer)
    if (address === undefined) return 'no address'
    return this.keep(timestamp, { request, address, agent })
  }

  has(name: string): boolean {
    return name === 'user-agent' || name === 'host'
  }
}
