/** Compares the replay of a real log with a model that shares no code with it. */
import t from 'tap'
import { replay } from '../../src/replay/replay.js'
import { FIXTURE, fixtureText, planOf } from './logs.js'

/** The rule of docs/replay.md, written again. */
function spread(seed: number, second: number, k: number, n: number): number {
  let x = seed ^ Math.imul(second, 0x9e3779b1) ^ Math.imul(k + 1, 0x85ebca6b)
  x = Math.imul(x ^ (x >>> 16), 0x21f0aaad)
  x = Math.imul(x ^ (x >>> 15), 0x735a2d97)
  x ^= x >>> 15
  return (1_000 * (k + (x >>> 0) / 2 ** 32)) / n
}

/** Addresses and times in ms, sorted; read with nothing but a regular expression and Date. */
function readNaively(seed: number | undefined): { address: string; at: number }[] {
  const seconds = new Map<number, string[]>()
  for (const line of fixtureText().split('\n').filter(Boolean)) {
    const [, address, day, month, year, time] = /^(\S+) .*?\[(\d+)\/(\w+)\/(\d+):(\S+) \+0000\]/.exec(line)!
    const second = Date.parse(`${day} ${month} ${year} ${time} UTC`) / 1_000
    seconds.set(second, [...(seconds.get(second) ?? []), address!])
  }
  return [...seconds.keys()]
    .sort((a, b) => a - b)
    .flatMap(second =>
      seconds.get(second)!.map((address, k, { length }) => ({
        address,
        at: second * 1_000 + (seed === undefined ? 0 : spread(seed, second, k, length)),
      })),
    )
}

/** Each client's queue as the leaving times of its requests. An arrival counts those still there. */
function model(arrivals: { address: string; at: number }[], rate: number, capacity: number) {
  const period = 1_000 / rate
  const lastSlots = new Map<string, number>()
  const waits: number[] = []
  let rejected = 0
  const hit = new Map<string, number>()
  for (const { address, at } of arrivals) {
    const free = (lastSlots.get(address) ?? -Infinity) + period
    const wait = Math.max(0, free - at)
    // Requests that are queued, or have left less than a period ago.
    if (wait / period + 1 > capacity + 1e-6) {
      rejected += 1
      hit.set(address, (hit.get(address) ?? 0) + 1)
      continue
    }
    lastSlots.set(address, at + wait)
    waits.push(wait)
  }
  const delayed = waits.filter(wait => wait > 1e-3).sort((a, b) => a - b)
  const quantile = (q: number): number => delayed[Math.max(0, Math.ceil(q * delayed.length) - 1)] ?? 0
  return {
    counts: { requests: arrivals.length, admitted: waits.length, delayed: delayed.length, rejected },
    wait: { p50: quantile(0.5), p90: quantile(0.9), p99: quantile(0.99), max: delayed.at(-1) ?? 0 },
    hit,
  }
}

const LIMITS = [
  [5, 10],
  [1, 1],
  [1, 5],
  [0.5, 3],
  [0.2, 2],
  [0.05, 20],
  [2, 2.5],
] as const

for (const seed of [1, 42, undefined]) {
  t.test(
    `every figure equals that of the model, ${seed === undefined ? 'without spreading' : `seed ${seed}`}`,
    async t => {
      const arrivals = readNaively(seed)
      for (const [rate, capacity] of LIMITS) {
        const name = `${rate}/s, ${capacity}`
        const expected = model(arrivals, rate, capacity)
        const report = await replay(planOf([FIXTURE], { rate: `${rate}/s`, capacity: String(capacity) }, { seed }))
        const { requests, admitted, delayed, rejected, atOnce, wait, clients } = report
        t.same({ requests, admitted, delayed, rejected }, expected.counts, name)
        t.equal(atOnce + delayed, admitted)
        for (const figure of ['p50', 'p90', 'p99', 'max'] as const) {
          t.ok(Math.abs(wait[figure] - expected.wait[figure]) < 0.01, `${name}: ${figure} ${wait[figure]} ms`)
        }
        t.equal(clients.rejected, expected.hit.size)
        const worst = clients.hardest.filter(client => client.rejected > 0)
        t.same(
          worst.map(({ rejected }) => rejected),
          [...expected.hit.values()].sort((a, b) => b - a).slice(0, worst.length),
        )
        for (const { client, rejected } of worst) t.equal(rejected, expected.hit.get(client), client)
      }
    },
  )
}

t.test('the seed decides the spreading', async t => {
  const of = async (seed: number) => (await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5' }, { seed }))).wait
  t.same(await of(3), await of(3))
  t.notSame(await of(3), await of(4))
})
