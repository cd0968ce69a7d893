/** Two programs that deliver from one database and share r, and that are killed at random moments: what became of each delivery. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Command, shaper } from '../cli/command.js'
import { freePort } from '../servers/free-port.js'
import { deliver, type Got, keyOf, ledger, worstExcess } from './stage.js'

const RATE = 20
/** Each is a key, with the most that wait of it. Those of `o` are ordered. */
const LANES = new Map([
  ...['o0', 'o1', 'o2', 'o3', 'o4', 'o5'].map(lane => [lane, 20] as const),
  ...['u0', 'u1', 'u2', 'u3'].map(lane => [lane, 100] as const),
])
/** ms from a kill until r is measured, and that it is then measured for at least. */
const SETTLED = 1_500
const MEASURED = 1_000
/** ms without a delivery until nothing is waited for any more. A killed one is taken for dead after 10 s. */
const STUCK = 20_000

export interface KillOptions {
  /** Of PostgreSQL: one database for each pair. */
  readonly url: string
  /** Of Redis. */
  readonly store: string
  readonly folder: string
  readonly name: string
  readonly rounds: number
  /** ms from one kill to the next, on average. */
  readonly work: number
}

interface Span {
  readonly from: number
  readonly until: number
}

export async function playKills({ url, store, folder, name, rounds, work }: KillOptions) {
  const stalls = monitorEventLoopDelay({ resolution: 5 })
  stalls.enable()
  const upstream = await ledger((_, res) => void setTimeout(() => res.end('ok'), 5 + Math.random() * 30))
  const route = (name: string, more: object) => ({ name, match: { path: `/${name}` }, deliver: { url, ...more } })
  const config = {
    listen: '127.0.0.1:0',
    upstream: upstream.url,
    store: { type: 'redis', url: store, prefix: name },
    buckets: {
      client: { key: 'header:x-client', rate: '100/s', capacity: 100 },
      all: { key: 'all', rate: `${RATE}/s`, capacity: 400 },
    },
    routes: [route('o', { ordered: true }), route('u', {})],
  }
  const file = join(folder, `${name}.json`)
  writeFileSync(file, JSON.stringify(config))
  const ports = [await freePort(), await freePort()]
  const urls = ports.map(port => `http://127.0.0.1:${port}`)
  const start = (at: number): Command =>
    shaper(['start', '-c', file, '--listen', `127.0.0.1:${ports[at]}`, '--log', 'json'])
  const instances = [start(0), start(1)]
  await Promise.all(instances.map(({ url }) => url))
  const accepted = new Map<string, number>()
  let isOver = false
  const lane = async ([name, most]: readonly [string, number]): Promise<void> => {
    for (let number = 0; !isOver; number += 1) {
      const arrived = () => upstream.got.findLast(each => each.lane === name)?.number ?? -1
      while (!isOver && number - arrived() > most) await sleep(50)
      await deliver(urls, name, number)
      accepted.set(name, number + 1)
    }
  }
  const clients = [...LANES].map(lane)
  const settled: Span[] = []
  let early = 0
  await sleep(work)
  for (let round = 0; round < rounds; round += 1) {
    const at = Math.floor(Math.random() * 2)
    const { child, finished } = instances[at]!
    child.kill('SIGKILL')
    await finished
    const from = performance.now() + SETTLED
    instances[at] = start(at)
    let isReady = false
    const ready = instances[at].url.then(() => {
      isReady = true
    })
    // One in five may not even have started.
    if (Math.random() > 0.2) await ready
    await sleep(work * 2 * Math.random())
    if (!isReady) early += 1
    if (performance.now() - from > MEASURED) settled.push({ from, until: performance.now() })
  }
  isOver = true
  await Promise.all(clients)
  const total = [...accepted.values()].reduce((sum, count) => sum + count, 0)
  const delivered = () => new Set(upstream.got.map(({ lane, number }) => `${lane} ${number}`)).size
  for (let before = -1; delivered() < total && delivered() > before; ) {
    before = delivered()
    await sleep(STUCK)
  }
  // The last results are recorded.
  await sleep(1_000)
  for (const { child, finished } of instances) {
    child.kill('SIGKILL')
    await finished
  }
  upstream.close()
  // What the upstream saw late came earlier.
  const stall = stalls.max / 1e6
  const found = { rounds, early, stall, accepted: total }
  return { ...found, ...account(accepted, upstream.got), ...ratesOf(upstream.got, settled) }
}

function account(accepted: ReadonlyMap<string, number>, got: readonly Got[]) {
  const faults: string[] = []
  const first = new Map<string, number>()
  const latest = new Map<string, number>()
  for (const { lane, number, key } of got) {
    const name = `${lane} ${number}`
    if (key !== keyOf(lane, number)) faults.push(`${name} came with ${key}`)
    first.set(name, (first.get(name) ?? 0) + 1)
    const before = latest.get(lane) ?? -1
    // One that is sent again comes before the next one is sent.
    if (lane.startsWith('o') && (number < before || number > before + 1))
      faults.push(`${name} came after ${lane} ${before}`)
    latest.set(lane, number)
  }
  for (const [lane, count] of accepted)
    for (let number = 0; number < count; number += 1)
      if (!first.has(`${lane} ${number}`)) faults.push(`${lane} ${number} was accepted and never delivered`)
  return { faults, sent: got.length, twice: got.length - first.size }
}

/** What was sent between kills, and the most beyond r in any window of all. */
function ratesOf(got: readonly Got[], settled: readonly Span[]) {
  let gaps = 0
  let ms = 0
  for (const { from, until } of settled) {
    const times = got.map(({ at }) => at).filter(at => at > from && at < until)
    if (times.length < 2) continue
    gaps += times.length - 1
    ms += times.at(-1)! - times[0]!
  }
  const times = got.map(({ at }) => at)
  return { rate: (gaps / ms) * 1_000, measuredFor: ms / 1_000, worstExcess: worstExcess(times, RATE / 1_000) }
}
