/** Bursts over real connections. */
import t from 'tap'
import { Agent, request } from 'undici'
import { createShaper, shape } from '../../src/index.js'
import { LearnedLimits } from '../../src/proxy/learned-limits.js'
import { connect, get, httpUpstream, startRig, turns } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

/**
 * An upstream with the rule of a shop API: a bucket of 40 that leaks 2 a second, and 429 for what does not fit. It counts
 * what arrives when it arrives, without any tolerance.
 */
async function strictUpstream(t: Teardown) {
  const arrivals: number[] = []
  let level = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    const now = performance.now()
    level = Math.max(0, level - (now - (arrivals.at(-1) ?? now)) * 0.002)
    arrivals.push(now)
    if (level + 1 > 40) return void res.writeHead(429).end()
    level += 1
    res.end('ok')
  })
  return { url: upstream.url, arrivals }
}

/** How many have come as a burst: before the first of the longest gaps of the whole. */
function burstOf(arrivals: readonly number[]): number {
  const gaps = arrivals.slice(1).map((at, index) => at - arrivals[index]!)
  const most = Math.max(...gaps)
  return 1 + gaps.findIndex(gap => gap > most / 3)
}

t.test('a strict upstream refuses nothing, and the whole burst leaves at once', async t => {
  const upstream = await strictUpstream(t)
  const buckets = { shop: { key: 'all', rate: '2/s', capacity: 100, burst: 39 } }
  const rig = await startRig(t, { upstream: upstream.url, buckets }, { realPacer: 'precise' })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const asked = Array.from({ length: 44 }, async () => {
    const { statusCode, body } = await request(`http://127.0.0.1:${rig.port}/`, { dispatcher: agent })
    await body.dump()
    return statusCode
  })
  t.same(new Set(await Promise.all(asked)), new Set([200]))
  t.equal(burstOf(upstream.arrivals), 39)
  t.equal(upstream.arrivals.length, 44)
})

t.test('nor of the library: createShaper and shape', async t => {
  const limits = { rate: '2/s', capacity: 100, burst: 39 }
  const shaper = createShaper(limits)
  t.teardown(() => shaper.drain({ timeout: 0 }))
  const plain = new Agent()
  const shaped = new Agent().compose(shape({ ...limits, key: 'origin' }))
  t.teardown(async () => void (await Promise.all([plain.destroy(), shaped.destroy()])))
  const ask = async (url: string, dispatcher: typeof shaped | Agent): Promise<number> => {
    const { statusCode, body } = await request(url, { dispatcher })
    await body.dump()
    return statusCode
  }
  const ways: ((url: string) => Promise<number>)[] = [
    url => shaper.run('shop', () => ask(url, plain)),
    url => ask(url, shaped),
  ]
  await Promise.all(
    ways.map(async (way, place) => {
      const upstream = await strictUpstream(t)
      const statuses = await Promise.all(Array.from({ length: 43 }, () => way(upstream.url)))
      t.same(new Set(statuses), new Set([200]), `${place}`)
      t.equal(burstOf(upstream.arrivals), 39, `${place}`)
    }),
  )
})

t.test('connections for a burst are opened side by side', async t => {
  const upstream = await httpUpstream(t)
  const buckets = { client: { key: 'all', rate: '10/s', capacity: 100, burst: 5 } }
  const rig = await startRig(t, { upstream: upstream.url, buckets, routes: [{ name: 'all' }] })
  const clients = await Promise.all(Array.from({ length: 7 }, () => connect(t, rig)))
  for (const client of clients) client.send(get())
  await rig.until(({ queued }) => queued.length === 2)
  await upstream.until(({ requests }) => requests.length === 5)
  await turns()
  t.equal(upstream.requests.length, 5)
  rig.pacer.runUntil(99)
  await turns()
  t.equal(upstream.requests.length, 5)
  rig.pacer.runUntil(100)
  await upstream.until(({ requests }) => requests.length === 6)
  t.equal(rig.released.at(-1)!.lateness, 0)
})

t.test('while an upstream warms up a burst grows with the rate', async t => {
  const learned = new LearnedLimits()
  const limits = { name: 'client', rate: 0.02, capacity: 40, burst: 8 }
  const settings = { buckets: [{ name: 'client' }], upstream: { learn: false } }
  const adjust = (part: number) => learned.adjust([{ settings, upstream: { warmUp: { part } } }] as never)
  adjust(0.25)
  t.match(learned.limitsOf(limits), { rate: 0.005, capacity: 40, burst: 2 })
  adjust(1)
  t.equal(learned.limitsOf(limits), limits)
})
