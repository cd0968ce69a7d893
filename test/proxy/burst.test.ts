/** Bursts over real connections. */
import t from 'tap'
import { Agent, type Dispatcher, request } from 'undici'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import { createShaper, shape } from '../../src/index.js'
import { LearnedLimits } from '../../src/proxy/learned-limits.js'
import { askOnce, connect, get, httpUpstream, pass, startRig, turns } from './harness.js'

type Teardown = Parameters<typeof startRig>[0] & Pick<typeof t, 'equal'>

/**
 * An upstream with the rule of a shop API: a bucket of 40 that leaks 2 a second, and 429 for what does not fit. It counts
 * what arrives when it arrives, without any tolerance: on the clock of releases, so that a slow machine changes nothing.
 */
async function strictUpstream(t: Teardown, clock: () => VirtualClock) {
  let level = 0
  let last = 0
  const upstream = await httpUpstream(t, (_req, res) => {
    const now = clock().now()
    level = Math.max(0, level - (now - last) * 0.002)
    last = now
    if (level + 1 > 40) return void res.writeHead(429).end()
    level += 1
    res.end('ok')
  })
  /** 39 leave at once, and each of the others as soon as its slot has come. */
  const leaks = async (count: number): Promise<void> => {
    const arrived = (number: number) => upstream.until(({ requests }) => requests.length >= number)
    for (let number = 39; number <= count; number += 1) {
      await arrived(number)
      await turns()
      t.equal(upstream.requests.length, number)
      if (number === count) return
      const slot = clock().now() + 500
      clock().runUntil(slot - 0.01)
      await turns()
      t.equal(upstream.requests.length, number)
      clock().runUntil(slot)
    }
  }
  return { url: upstream.url, leaks }
}

async function ask(url: string, dispatcher: Dispatcher): Promise<number> {
  const { statusCode, body } = await request(url, { dispatcher })
  await body.dump()
  return statusCode
}

t.test('a strict upstream refuses nothing, and the whole burst leaves at once', async t => {
  const upstream = await strictUpstream(t, () => rig.pacer)
  const buckets = { shop: { key: 'all', rate: '2/s', capacity: 100, burst: 39 } }
  const rig = await startRig(t, { upstream: upstream.url, buckets })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const asked = Array.from({ length: 44 }, () => ask(`http://127.0.0.1:${rig.port}/`, agent))
  await rig.until(({ released, queued }) => released.length >= 39 && queued.length === 5)
  await upstream.leaks(44)
  t.same(new Set(await Promise.all(asked)), new Set([200]))
})

for (const way of ['createShaper', 'shape'] as const) {
  t.test(`nor of the library: ${way}`, async t => {
    const clock = createVirtualClock()
    const upstream = await strictUpstream(t, () => clock)
    const limits = { rate: '2/s', capacity: 100, burst: 39, clock }
    const shaper = createShaper(limits)
    const plain = new Agent()
    const shaped = new Agent().compose(shape({ ...limits, key: 'origin' }))
    t.teardown(async () => void (await Promise.all([plain.destroy(), shaped.destroy()])))
    const asked = Array.from({ length: 44 }, () =>
      way === 'shape' ? ask(upstream.url, shaped) : shaper.run('shop', () => ask(upstream.url, plain)),
    )
    await upstream.leaks(44)
    t.same(new Set(await Promise.all(asked)), new Set([200]))
  })
}

t.test('a rejection for maxWait tells the wait, not the time in which the level drains', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { shop: { key: 'all', rate: '1/s', capacity: 100, burst: 10 } },
    routes: [{ name: 'all', maxWait: '2s' }],
  })
  for (let number = 0; number < 12; number += 1) {
    const client = await connect(t, rig)
    client.send(get())
    await rig.until(({ queued, released }) => queued.length + released.length > number)
  }
  const late = await connect(t, rig)
  late.send(get())
  t.match((await late.answer()).json().detail, /would make it wait 3 s$/)
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
  const adjust = (part: number) => learned.adjust([{ settings, upstream: { part } }] as never)
  adjust(0.25)
  t.match(learned.limitsOf(limits), { rate: 0.005, capacity: 40, burst: 2 })
  adjust(1)
  t.equal(learned.limitsOf(limits), limits)
})

t.test('a lower number that goes before a costly request at once is sent', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { everyone: { key: 'all', rate: '1/s', capacity: 100, burst: 4 } },
    routes: [
      { name: 'paid', match: { path: '/paid' }, priority: 0 },
      { name: 'bulk', priority: 7, cost: 4 },
    ],
  })
  for (const count of [1, 2]) {
    const client = await connect(t, rig)
    client.send(get('/'))
    await rig.until(({ queued, released }) => queued.length + released.length >= count)
  }
  await pass(rig, 2_500, 500)
  // The second of the bulk waits for its turn, and the burst has room for one that costs less.
  t.equal((await askOnce(t, rig, get('/paid'))).status, 200)
})
