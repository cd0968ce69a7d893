/** The adaptive bucket beside what else changes rates or passes requests: warm-up, learnt rates, dry runs, WebSockets. */
import t from 'tap'
import {
  answering,
  askOnce,
  connect,
  get,
  httpUpstream,
  pass,
  type Rig,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

const adapt = { min: '5/s', max: '100/s', start: '10/s', latency: { p90: '800ms' } }

const ROUTE = { routes: [{ name: 'all' }] }

const limitOf = (rig: Rig) => rig.proxy.context.routes[0]!.upstream.adaptive!

/** The rate of its only instance, per second. */
const rateOf = ({ proxy }: Rig) => proxy.context.bucketTable.look('adaptive', 'all')!.limits.rate * 1_000

async function send(t: Parameters<typeof connect>[0], rig: Rig, count: number): Promise<void> {
  const before = rig.queued.length
  for (let sent = 0; sent < count; sent += 1) {
    const client = await connect(t, rig)
    client.send(get())
  }
  await rig.until(({ queued }) => queued.length >= before + count - 1)
}

t.test('while its upstream warms up it has a part of its rate, and does not climb', async t => {
  let status = 200
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(status).end())
  const rig = await startRig(t, {
    upstream: { url: upstream.url, adapt, warmUp: '10s', pauseOn: { status: [503], default: '1s' } },
    ...ROUTE,
  })
  status = 503
  t.equal((await askOnce(t, rig, get())).status, 503)
  status = 200
  await send(t, rig, 60)
  const perSecond: number[] = []
  const rates: number[] = []
  for (let second = 0; second < 11; second += 1) {
    const before = rig.released.length
    await pass(rig, (second + 1) * 1_000, 20)
    await turns()
    perSecond.push(rig.released.length - before)
    rates.push(limitOf(rig).limits.rate * 1_000)
  }
  t.ok(perSecond[0]! <= 1, 'the pause')
  t.ok(perSecond[1]! >= 1 && perSecond[1]! <= 2, `a tenth at first: ${perSecond}`)
  t.ok(perSecond[5]! >= 4 && perSecond[5]! <= 6, `about half of it in the middle: ${perSecond}`)
  t.same(new Set(rates.slice(0, 8)), new Set([10]), `the rate that was found stays: ${rates}`)
})

t.test('what the upstream announces lowers it, too', async t => {
  const announced = { 'RateLimit-Policy': '"default";q=120;w=60', RateLimit: '"default";r=119;t=60' }
  const upstream = await httpUpstream(t, (_req, res) => res.writeHead(200, announced).end())
  const rig = await startRig(t, { upstream: { url: upstream.url, adapt, learn: true }, ...ROUTE })
  t.equal((await askOnce(t, rig, get())).status, 200)
  await send(t, rig, 3)
  t.equal(Math.round(rateOf(rig)), 2)
  await pass(rig, 2_000, 50)
  t.equal(rig.released.length, 4)
  // What is left of 120 for the rest of the minute changes a little from answer to answer.
  for (const [place, { wait }] of rig.released.entries()) t.ok(Math.abs(wait - 500 * place) < 60, `${wait}`)
  t.equal(limitOf(rig).limits.rate, 0.01, 'it passes less than its rate, so it does not climb')
})

t.test('a dry run waits for nothing, counts once, and the rate is found all the same', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: { url: upstream.url, adapt }, dryRun: true, ...ROUTE })
  for (let sent = 0; sent < 5; sent += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(
    rig.rehearsed,
    Array.from({ length: 4 }, () => 'all would_delay'),
  )
  const { bucketTable, clock } = rig.proxy.context
  t.equal(bucketTable.look('adaptive', 'all')!.level(clock.now()), 5)
  for (let sent = 0; sent < 20; sent += 1) {
    rig.pacer.runUntil(rig.pacer.now() + 50)
    await askOnce(t, rig, get())
  }
  t.ok(limitOf(rig).limits.rate > 0.01, `${limitOf(rig).limits.rate}`)
})

const HANDSHAKE =
  'GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
  'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n'
const SWITCHING =
  'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
  'Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n'

t.test('WebSockets wait for it, and are answered when their tunnels are open', async t => {
  const upstream = await rawUpstream(t, answering(SWITCHING))
  const rig = await startRig(t, { upstream: { url: upstream.url, adapt }, ...ROUTE })
  const tunnels = []
  for (let sent = 0; sent < 12; sent += 1) {
    const client = await connect(t, rig)
    client.send(HANDSHAKE)
    tunnels.push(client)
    await rig.until(({ queued, released }) => queued.length + released.length > sent)
  }
  for (let at = 50; at <= 1_500; at += 50) {
    rig.pacer.runUntil(at)
    await turns(60)
  }
  for (const tunnel of tunnels) t.equal((await tunnel.answer()).status, 101)
  t.same(
    rig.released.slice(0, 3).map(({ wait }) => Math.round(wait)),
    [0, 100, 200],
  )
  const { rate } = limitOf(rig).limits
  t.ok(rate > 0.01, `they came in time: ${rate}`)
  // Long after the target the tunnels are still open.
  rig.pacer.runUntil(20_000)
  const next = await connect(t, rig)
  next.send(HANDSHAKE)
  t.equal((await next.answer()).status, 101)
  t.ok(limitOf(rig).limits.rate >= rate, 'an open tunnel is not late')
})
