/**
 * Lines of an AWS Application Load Balancer. A line is written when its request has ended. The sum of its three times is
 * the duration (docs.aws.amazon.com, "Access logs for your Application Load Balancer").
 */
import type { BadLine } from '../line-parser.js'
import { inOriginForm, lineText, TextLineParser } from '../text-line-parser.js'
import { readTimestamp } from '../timestamp.js'

const LINE =
  /^\S+ (\S+) \S+ (\S+) \S+ (-?[\d.]+) (-?[\d.]+) (-?[\d.]+) (\S+) \S+ \S+ \S+ "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)"/

export class AlbParser extends TextLineParser {
  readonly format = 'alb'
  readonly timed = true

  parse(bytes: Uint8Array, from: number, to: number): BadLine | undefined {
    const text = lineText(bytes, from, to)
    const fields = LINE.exec(text)
    if (fields === null) return /^\S+ \S+T/.test(text) ? 'cut off' : 'no time'
    const [, time = '', client = '', first, second, third, , written = '', agent] = fields
    const timestamp = readTimestamp(time)
    if (timestamp === undefined) return 'no time'
    const port = client.lastIndexOf(':')
    if (client === '-' || port <= 0) return 'no address'
    // -1: the request did not reach this stage.
    this.took = 1_000 * (Math.max(0, Number(first)) + Math.max(0, Number(second)) + Math.max(0, Number(third)))
    this.duration = this.took
    const { request, host } = inOriginForm(written)
    this.authority = host
    return this.keep(timestamp, { request, address: client.slice(0, port), agent })
  }

  has(name: string): boolean {
    return name === 'user-agent' || name === 'host'
  }
}
