/** Sends two bursts through shaper to a fragile upstream, and shows live what goes in and what comes out. */
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, request } from 'undici'
import { parseConfig } from '../../config/load.js'
import { createPreciseClock } from '../../pacing/precise.js'
import { createTimerClock } from '../../pacing/timer.js'
import { startProxy } from '../../proxy/server/server.js'

const RATE = 5
const CAPACITY = 10
/** The time of each burst in ms, and its number of requests. */
const BURSTS = [
  { at: 0, size: 14 },
  { at: 3_200, size: 6 },
]
const LENGTH = 5_400
/** The time that one column of the picture stands for, in ms. */
const COLUMN = 100
const COLUMNS = LENGTH / COLUMN
const BARS = ' ▁▂▃▄▅▆▇█'

interface Picture {
  arrivals: number[]
  releases: number[]
  rejections: number[]
  /** How often two requests within half a period broke the upstream. */
  failures: number
  queued: number
}

export async function runDemo(out: NodeJS.WriteStream): Promise<void> {
  const clock = createTimerClock()
  const pacer = createPreciseClock()
  const start = clock.now()
  const since = (): number => clock.now() - start
  const picture: Picture = { arrivals: [], releases: [], rejections: [], failures: 0, queued: 0 }
  const plain = (line: string): void => {
    if (!out.isTTY) out.write(`${String(Math.round(since())).padStart(5)} ms  ${line}\n`)
  }

  let lastAt = -Infinity
  const upstream = createServer((_req, res) => {
    const broken = since() - lastAt < 500 / RATE
    lastAt = since()
    if (broken) picture.failures += 1
    picture.releases.push(lastAt)
    plain(`   out: request ${picture.releases.length} reaches the upstream`)
    res.writeHead(broken ? 500 : 200, { 'Content-Length': 0 }).end()
  })
  await new Promise<void>(resolve => upstream.listen(0, '127.0.0.1', resolve))
  const settings = parseConfig(
    JSON.stringify({
      listen: '127.0.0.1:0',
      upstream: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
      buckets: { client: { key: 'ip', rate: `${RATE}/s`, capacity: CAPACITY } },
      routes: [{ name: 'demo', buckets: ['client'] }],
    }),
  )
  const proxy = await startProxy({
    settings,
    pacer,
    clock,
    observer: {
      queued: () => {
        picture.queued += 1
      },
      released: ({ wait }) => {
        if (wait > 0) picture.queued -= 1
      },
    },
  })

  const agent = new Agent({ connections: 64 })
  const send = async (): Promise<void> => {
    picture.arrivals.push(since())
    const { statusCode, headers, body } = await request(proxy.url, { dispatcher: agent })
    await body.dump()
    if (statusCode !== 429) return
    picture.rejections.push(since())
    plain(`spilled: 429, Retry-After: ${headers['retry-after']}`)
  }

  const lines = [
    `A burst of ${BURSTS[0]!.size}, then one of ${BURSTS[1]!.size}, through a bucket of ${CAPACITY} that leaks ${RATE} per second`,
    `to an upstream that breaks when two requests come within ${500 / RATE} ms.`,
  ]
  out.write(`${lines.join('\n')}\n\n`)
  const painter = out.isTTY ? setInterval(() => paint(out, picture, since()), 40) : undefined
  if (out.isTTY) out.write('\n'.repeat(ROWS))
  const answers: Promise<void>[] = []
  for (const { at, size } of BURSTS) {
    await sleep(Math.max(0, at - since()))
    plain(`in: a burst of ${size}`)
    for (let sent = 0; sent < size; sent += 1) answers.push(send())
  }
  await Promise.all(answers)
  if (out.isTTY) {
    clearInterval(painter)
    paint(out, picture, since())
  }
  const gaps = picture.releases.slice(1).map((at, index) => at - picture.releases[index]!)
  const worst = Math.max(...gaps.filter(gap => gap < 2 * (1_000 / RATE)).map(gap => Math.abs(gap - 1_000 / RATE)))
  out.write(
    `\n${picture.arrivals.length} in, ${picture.releases.length} out one every ${1_000 / RATE} ms ` +
      `(the worst was ${worst.toFixed(1)} ms off), ${picture.rejections.length} told to come back; ` +
      `the upstream broke ${picture.failures} times.\n`,
  )
  await agent.close()
  await proxy.drain(1_000)
  pacer.close()
  upstream.close()
  upstream.closeAllConnections()
}

const ROWS = 5

function paint(out: NodeJS.WriteStream, picture: Picture, now: number): void {
  const level = '█'.repeat(picture.queued) + '·'.repeat(Math.max(0, CAPACITY - picture.queued))
  const rows = [
    `  in       ${bars(picture.arrivals, now)}`,
    `  queue    ${level}  ${picture.queued} waiting`,
    `  out      ${bars(picture.releases, now)}`,
    `  spilled  ${bars(picture.rejections, now)}`,
    `  in ${picture.arrivals.length}   out ${picture.releases.length}   429 ${picture.rejections.length}`,
  ]
  out.write(`\x1b[${ROWS}A${rows.map(row => `\x1b[2K${row}\n`).join('')}`)
}

/** One column for each 100 ms, as high as the number of events in it. */
function bars(times: readonly number[], now: number): string {
  const counts = new Array<number>(COLUMNS).fill(0)
  for (const at of times) counts[Math.min(COLUMNS - 1, Math.floor(at / COLUMN))]! += 1
  const highest = BARS.length - 1
  return counts
    .map((count, column) => {
      if (column * COLUMN > now) return ' '
      return count === 0 ? '·' : BARS[Math.min(highest, Math.ceil(count / 2))]
    })
    .join('')
}
