/** Formats that have every value at its place in a line of text: one or two patterns for each. */
import {
  type BadLine,
  firstAddress,
  inOriginForm,
  lineText,
  type RequestTexts,
  TextLineParser,
  unlessMissing,
} from '../line-parser.js'
import { readTimestamp } from '../timestamp.js'

interface Found extends RequestTexts {
  readonly time: string
  /** How long the answer took, in ms; undefined: the line does not tell. */
  readonly took?: number | undefined
  readonly host?: string | undefined
}

interface TextFormat {
  /** Whether the time is that of the end, and `took` is to be taken off. */
  readonly timed: boolean
  /** The headers that lines have, with `host` for the authority. */
  readonly headers: readonly string[]
  read(line: string): Found | BadLine
}

const TEXT_FORMATS = {
  alb: { timed: true, headers: ['user-agent', 'host'], read: readAlb },
  envoy: { timed: false, headers: ['user-agent', 'host'], read: readEnvoy },
  haproxy: { timed: false, headers: [], read: readHaproxy },
  npm: { timed: false, headers: ['user-agent', 'host'], read: readProxyManager },
} as const satisfies Readonly<Record<string, TextFormat>>

export class TextFormatParser extends TextLineParser {
  readonly format: keyof typeof TEXT_FORMATS
  readonly timed: boolean
  readonly #format: TextFormat

  constructor(format: keyof typeof TEXT_FORMATS) {
    super()
    this.format = format
    this.#format = TEXT_FORMATS[format]
    this.timed = this.#format.timed
  }

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const found = this.#format.read(lineText(bytes, from, to))
    if (typeof found === 'string') return found
    const timestamp = readTimestamp(found.time)
    if (timestamp === undefined) return 'no time'
    this.took = found.took
    this.duration = this.timed ? (found.took ?? 0) : 0
    this.authority = found.host
    return this.keep(timestamp, found)
  }

  has(name: string): boolean {
    return this.#format.headers.includes(name)
  }
}

const ALB =
  /^\S+ (\S+) \S+ (\S+) \S+ (-?[\d.]+) (-?[\d.]+) (-?[\d.]+) (\S+) \S+ \S+ \S+ "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"/

/**
 * An AWS Application Load Balancer writes a line when the request has ended. The sum of its three times is the duration
 * (docs.aws.amazon.com, "Access logs for your Application Load Balancer").
 */
function readAlb(line: string): Found | BadLine {
  const fields = ALB.exec(line)
  if (fields === null) return /^\S+ \S+T/.test(line) ? 'cut off' : 'no time'
  const [, time = '', client = '', first, second, third, , written = '', agent] = fields
  const port = client.lastIndexOf(':')
  if (client === '-' || port <= 0) return 'no address'
  // -1: the request did not reach this stage.
  const took = 1_000 * (Math.max(0, Number(first)) + Math.max(0, Number(second)) + Math.max(0, Number(third)))
  return { time, took, ...inOriginForm(written), address: client.slice(0, port), agent }
}

/** `[START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS `; what follows differs. */
const ENVOY_HEAD = /^\[([^\]\s]{1,40})\] "(\S+ \S+) \S+" (?:\d{1,3}|-) \S+ /
/** Istio has details of the answer and of the connection here, and why TLS to the upstream failed. */
const DETAILS = '(?:\\S+ \\S+ "[^"]*" )?'
/** Bytes received and sent, DURATION, the upstream's time. */
const FIGURES = '\\d+ \\d+ (\\d+|-) \\S+ '
/** X-Forwarded-For, user agent, request id, authority, upstream. Envoy does not escape a quote in a user agent. */
const QUOTED = '"([^"]*)" "(.*?)" "[^"]*" "([^"]*)" "[^"]*"'
/** Cluster, local addresses of both connections, address of the client's connection. */
const CONNECTION = '(?: \\S+ \\S+ \\S+ (\\S+))?'
const ENVOY_REST = new RegExp(`^${DETAILS}${FIGURES}${QUOTED}${CONNECTION}`)

/**
 * Envoy's default format, and that of Istio, which has some fields more ("Access logging" at envoyproxy.io; "Envoy Access Logs" at
 * istio.io). The time is that of the beginning, and durations are ms.
 */
function readEnvoy(line: string): Found | BadLine {
  const [head, time = '', request = ''] = ENVOY_HEAD.exec(line) ?? []
  if (head === undefined) return line.startsWith('[') ? 'no request' : 'no time'
  const rest = ENVOY_REST.exec(line.slice(head.length))
  if (rest === null) return readTimestamp(time) === undefined ? 'no time' : 'cut off'
  const [, ms = '-', forwarded = '', agent, authority, peer] = rest
  const address = firstAddress(forwarded) ?? unlessMissing(peer)
  if (address === undefined) return 'no address'
  return { time, took: ms === '-' ? undefined : Number(ms), request, address, agent, host: unlessMissing(authority) }
}

/** Client, time. */
const HAPROXY_HEAD = /^(\S+):\d{1,5} \[(\d\d\/[A-Z][a-z]{2}\/\d{4}:\d\d:\d\d:\d\d(?:\.\d{1,9})?)\] /
/** Frontend, backend and server, timers, status, bytes, two cookies, how it ended, connections, queues, captured headers, request. */
const HAPROXY_REST =
  /^\S+ \S+ (-?\d+)\/(-?\d+)\/-?\d+\/-?\d+\/\+?(-?\d+) -?\d{1,3} \+?\d+ \S+ \S+ \S+ [+\d/]+ \d+\/\d+ (?:\{[^}]*\} ){0,2}"([^"]*)("?)/

/**
 * HAProxy with `option httplog` or `httpslog` (docs.haproxy.org, "HTTP log format"). The time is that of the beginning, in the
 * local time of the machine: it counts as UTC. Timers are ms; -1: the request did not reach this stage. Captured headers have
 * no names.
 */
function readHaproxy(line: string): Found | BadLine {
  const [head, address = '', time] = HAPROXY_HEAD.exec(line) ?? []
  if (head === undefined) return 'no time'
  const rest = HAPROXY_REST.exec(line.slice(head.length))
  // `frontend/1: SSL handshake failure`
  if (rest === null) return /^\S+: /.test(line.slice(head.length)) ? 'not an HTTP request' : 'cut off'
  const [, received, queued, total, written = '', quote] = rest
  if (quote === '') return 'cut off'
  // From the moment a server was free.
  const took = Number(total) - Math.max(0, Number(received)) - Math.max(0, Number(queued))
  return { time: `${time} +0000`, took: took < 0 ? undefined : took, ...inOriginForm(written), address }
}

/** Time; the cache's and the upstream's status, if any, and the status; method, scheme, host, path, client, length, compression. */
const MANAGER_HEAD =
  /^\[([^\]]{8,40})\] [^"]{0,200}?- (\S+) \S+ (\S+) "([^"]*)" \[Client ([^\]\s]*)\] \[Length [^\]]*\] \[Gzip [^\]]*\] /
/** Where it was sent, if anywhere, and the user agent. */
const MANAGER_REST = /^(?:\[Sent-to [^\]]*\] )?"([^"]*)/

/** Nginx Proxy Manager: `proxy` and `standard` of `conf.d/include/log-proxy.conf` in its image. */
function readProxyManager(line: string): Found | BadLine {
  const [head, time = '', method, host, path, client] = MANAGER_HEAD.exec(line) ?? []
  if (head === undefined) return line.startsWith('[') ? 'cut off' : 'no time'
  const address = unlessMissing(client)
  if (address === undefined) return 'no address'
  const [, agent] = MANAGER_REST.exec(line.slice(head.length)) ?? []
  return { time, request: `${method} ${path}`, address, agent, host: unlessMissing(host) }
}
