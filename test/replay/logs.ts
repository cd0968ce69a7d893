/** Logs for the tests, and helpers to read them. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { gunzipSync } from 'node:zlib'
import type { Test } from 'tap'
import type { LineParser } from '../../src/replay/formats/line-parser.js'
import { type ArrivalsOptions, LogArrivals } from '../../src/replay/input/arrivals.js'
import { limitsOfFlags } from '../../src/replay/plan/limits-file.js'
import type { Plan, ReplayLimits } from '../../src/replay/plan/plan.js'

export const FIXTURE = fileURLToPath(new URL('../fixtures/apache-access.log.gz', import.meta.url))

export const fixtureText = (): string => gunzipSync(readFileSync(FIXTURE)).toString()

/** A file with this text, deleted after the test. */
export function logFile(t: Pick<Test, 'testdir'>, text: string | Buffer, name = 'access.log'): string {
  return join(t.testdir({ [name]: text }), name)
}

export const bytes = (...texts: (string | Buffer)[]): Readable => Readable.from(texts.map(text => Buffer.from(text)))

/** A plan for files, or for standard input. */
export function planOf(
  logs: readonly string[] | Readable,
  limits: ReplayLimits | { rate: string; capacity: string; key?: string; mode?: string },
  more: Partial<Plan> = {},
): Plan {
  const isStream = logs instanceof Readable
  return {
    logs: isStream ? ['-'] : logs,
    stdin: isStream ? logs : bytes(),
    seed: 1,
    limits: 'settings' in limits ? limits : limitsOfFlags(limits, {}),
    ...more,
  }
}

export interface Seen {
  readonly at: number
  readonly address: string
  readonly method: string
  readonly target: string
  readonly agent: string
}

/** Every request of logs in the order of arrival; `at` in ms since the first logged second. */
export async function readAll(logs: readonly string[] | Readable, options: Partial<ArrivalsOptions> = {}) {
  const lines: Omit<Seen, 'at'>[] = []
  const text = ({ bytes }: LineParser, from: number, to: number): string =>
    Buffer.from(bytes.subarray(from, to)).toString()
  const directory = {
    identify(parser: LineParser) {
      const { addressFrom, addressTo, methodFrom, methodTo, targetFrom, targetTo, agentFrom, agentTo } = parser
      return (
        lines.push({
          address: text(parser, addressFrom, addressTo),
          method: text(parser, methodFrom, methodTo),
          target: text(parser, targetFrom, targetTo),
          agent: text(parser, agentFrom, agentTo),
        }) - 1
      )
    },
    text: String,
  }
  const isStream = logs instanceof Readable
  const traffic = new LogArrivals({
    logs: isStream ? ['-'] : logs,
    stdin: isStream ? logs : bytes(),
    seed: undefined,
    directory,
    ...options,
  })
  const { reading, result } = await traffic.read(() => {
    const seen: Seen[] = []
    return { seen, arrive: (at: number, who: number) => void seen.push({ at, ...lines[who]! }) }
  })
  return { reading, seen: result.seen }
}

/** One line of the combined format. */
export function combined(
  second: number,
  address = '192.0.2.1',
  rest = '"-" "curl/8"',
  request = 'GET / HTTP/1.1',
): string {
  const [day, month, year, time] = new Date(second * 1_000).toUTCString().slice(5, 25).split(' ')
  return `${address} - - [${day}/${month}/${year}:${time} +0000] "${request}" 200 5 ${rest}\n`
}
