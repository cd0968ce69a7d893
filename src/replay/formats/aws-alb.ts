/**
 * Lines of an AWS Application Load Balancer. A line is written when its request has ended. The sum of its three times is
 * the duration (docs.aws.amazon.com, "Access logs for your Application Load Balancer").
 */
import { type BadLine, LineParser, readRequestLine } from './line-parser.js'
import { readTimestamp } from './timestamp.js'

const LINE =
  /^\S+ (\S+) \S+ (\S+) \S+ (-?[\d.]+) (-?[\d.]+) (-?[\d.]+) (\S+) \S+ \S+ \S+ "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"/
const ABSOLUTE = /^(\S+) [a-z]+:\/\/([^/\s]*)(\S*)/

export class AlbParser extends LineParser {
  readonly format = 'alb'
  readonly timed = true
  #host: string | undefined

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const text = Buffer.from(bytes.buffer, bytes.byteOffset + from, to - from).toString('latin1')
    const fields = LINE.exec(text)
    if (fields === null) return /^\S+ \S+T/.test(text) ? 'cut off' : 'no time'
    const [, time = '', client = '', first, second, third, , request = '', agent = ''] = fields
    const timestamp = readTimestamp(time)
    if (timestamp === undefined) return 'no time'
    const port = client.lastIndexOf(':')
    if (client === '-' || port <= 0) return 'no address'
    this.second = timestamp.second
    this.fraction = timestamp.fraction
    // -1: the request did not reach this stage.
    this.duration = 1_000 * (Math.max(0, Number(first)) + Math.max(0, Number(second)) + Math.max(0, Number(third)))
    if (/^-( |$)/.test(request)) return 'no request'
    const absolute = ABSOLUTE.exec(request)
    if (absolute === null) return 'not an HTTP request'
    const [, method = '', authority = '', rest = ''] = absolute
    this.#host = authority
    const line = Buffer.from(
      `${method} ${rest.startsWith('/') ? rest : `/${rest}`} ${client.slice(0, port)}${agent}`,
      'latin1',
    )
    this.bytes = line
    this.addressFrom = line.length - agent.length - port
    this.addressTo = line.length - agent.length
    this.agentFrom = this.addressTo
    this.agentTo = agent === '-' ? this.agentFrom : line.length
    return readRequestLine(this, line, 0, this.addressFrom - 1) ? undefined : 'not an HTTP request'
  }

  host(): string | undefined {
    return this.#host === '' ? undefined : this.#host
  }

  header(name: string): string | undefined {
    if (name !== 'user-agent' || this.agentFrom === this.agentTo) return undefined
    return Buffer.from(this.bytes.subarray(this.agentFrom, this.agentTo)).toString('latin1')
  }

  has(name: string): boolean {
    return name === 'user-agent' || name === 'host'
  }
}
