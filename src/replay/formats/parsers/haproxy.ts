/**
 * Lines of HAProxy with `option httplog` or `httpslog` (docs.haproxy.org, "HTTP log format"). The time is that of the beginning,
 * in the local time of the machine: it counts as UTC. Timers are ms; -1: the request did not reach this stage.
 */
import type { BadLine } from '../line-parser.js'
import { inOriginForm, lineText, TextLineParser } from '../text-line-parser.js'
import { readTimestamp } from '../timestamp.js'

/** Client, time. */
const HEAD = /^(\S+):\d{1,5} \[(\d\d\/[A-Z][a-z]{2}\/\d{4}:\d\d:\d\d:\d\d(?:\.\d{1,9})?)\] /
/** Frontend, backend and server, timers, status, bytes, two cookies, how it ended, connections, queues, captured headers, request. */
const REST =
  /^\S+ \S+ (-?\d+)\/(-?\d+)\/-?\d+\/-?\d+\/\+?(-?\d+) -?\d{1,3} \+?\d+ \S+ \S+ \S+ [+\d/]+ \d+\/\d+ (?:\{[^}]*\} ){0,2}"([^"]*)("?)/

export class HaproxyParser extends TextLineParser {
  readonly format = 'haproxy'
  readonly timed = false

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const text = lineText(bytes, from, to)
    const [head, address = '', time] = HEAD.exec(text) ?? []
    if (head === undefined) return 'no time'
    const timestamp = readTimestamp(`${time} +0000`)
    if (timestamp === undefined) return 'no time'
    const rest = REST.exec(text.slice(head.length))
    // `frontend/1: SSL handshake failure`
    if (rest === null) return /^\S+: /.test(text.slice(head.length)) ? 'not an HTTP request' : 'cut off'
    const [, received, queued, total, written = '', quote] = rest
    if (quote === '') return 'cut off'
    // From the moment a server was free.
    const took = Number(total) - Math.max(0, Number(received)) - Math.max(0, Number(queued))
    this.took = took < 0 ? undefined : took
    const { request, host } = inOriginForm(written)
    this.authority = host
    return this.keep(timestamp, { request, address })
  }

  /** Captured headers have no names. */
  override header(): undefined {
    return undefined
  }

  has(): boolean {
    return false
  }
}
