/** Bursts in real time, by the proxy's pacing thread and by the library's timers. A strict upstream refuses nothing. */
import t from 'tap'
import { Agent, type Dispatcher, request } from 'undici'
import { createShaper, shape } from '../../src/index.js'
import { httpUpstream, startRig } from '../proxy/harness.js'
import { watchStalls } from '../stalls.js'

/** A shop API: a bucket of 40 that leaks 2 a second, without any tolerance. */
async function shop(t: Parameters<typeof startRig>[0]) {
  const arrivals: number[] = []
  let level = 0
  const { url } = await httpUpstream(t, (_req, res) => {
    const now = performance.now()
    level = Math.max(0, level - (now - (arrivals.at(-1) ?? now)) * 0.002)
    arrivals.push(now)
    if (level + 1 > 40) return void res.writeHead(429).end()
    level += 1
    res.end('ok')
  })
  return { url, arrivals }
}

/** How many came before the first long gap. Gaps within a burst are shorter than a third of those behind it, but for what stood still. */
function burstOf(arrivals: readonly number[], late: number): number {
  const gaps = arrivals.slice(1).map((at, before) => at - arrivals[before]!)
  return 1 + gaps.findIndex(gap => gap > Math.max(...gaps) / 3 + Math.min(late, 250))
}

async function ask(url: string, dispatcher: Dispatcher): Promise<number> {
  const { statusCode, body } = await request(url, { dispatcher })
  await body.dump()
  return statusCode
}

const LIMITS = { rate: '2/s', capacity: 100, burst: 39 } as const

for (const way of ['the proxy', 'createShaper', 'shape'] as const) {
  t.test(`the whole burst leaves at once, and what follows is spaced: ${way}`, async t => {
    const { url, arrivals } = await shop(t)
    const plain = new Agent()
    const shaped = new Agent().compose(shape({ ...LIMITS, key: 'origin' }))
    const shaper = createShaper(LIMITS)
    t.teardown(async () => void (await Promise.all([plain.destroy(), shaped.destroy()])))
    const buckets = { shop: { key: 'all', ...LIMITS } }
    const rig =
      way === 'the proxy' ? await startRig(t, { upstream: url, buckets }, { realPacer: 'precise' }) : undefined
    const send = (): Promise<number> => {
      if (rig !== undefined) return ask(`http://127.0.0.1:${rig.port}/`, plain)
      return way === 'shape' ? ask(url, shaped) : shaper.run('shop', () => ask(url, plain))
    }
    const stalls = watchStalls(t)
    t.same(new Set(await Promise.all(Array.from({ length: 44 }, send))), new Set([200]))
    t.equal(arrivals.length, 44)
    t.equal(burstOf(arrivals, stalls.longest()), 39)
  })
}
