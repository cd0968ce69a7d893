/** What a client could make grow, or last, and how far it goes. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { type Client, connect, get, httpUpstream, post, type Rig, startRig, turns } from '../proxy/harness.js'
import { sendPieces } from './stage.js'

const HELD = { buckets: { all: { key: 'all', rate: '1/h', capacity: 5 } } }
const OFF = { routes: [{ mode: 'off' }] }
const H2C = ['Connection: Upgrade', 'Upgrade: h2c']
const HANDSHAKE = get(
  '/',
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
)

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

async function heap(): Promise<number> {
  await turns()
  collect()
  return process.memoryUsage().heapUsed
}

for (const [what, first] of [
  ['a request that is held', get('/held')],
  ['one with too many fields', get('/fields', ...Array.from({ length: 2_000 }, (_, at) => `${at}:`))],
] as const) {
  t.test(`requests sent ahead without end, behind ${what}, are not kept`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...HELD })
    await (await connect(t, rig)).ask(get('/first'))
    const client = await connect(t, rig)
    client.send(get('/held'))
    await rig.until(({ queued }) => queued.length === 1)
    client.send(first)
    const ahead = Array.from({ length: 64 }, () => get('/ahead').repeat(2_000))
    const before = await heap()
    await sendPieces(client, ahead)
    for (let tries = 0; tries < 500 && client.socket.writableLength > 0; tries += 1) await turns()
    t.equal(client.socket.writableLength, 0, 'all has been read')
    const grown = ((await heap()) - before) / 1024 / 1024
    t.ok(grown < 20, `${grown.toFixed(1)} MB more for 128,000 requests`)
    t.equal(rig.proxy.line.shaper.queued, 1)
    client.resetConnection()
    await rig.until(() => rig.proxy.line.inProgress === 0)
    t.same(upstream.requests, ['GET /first'])
  })
}

t.test('an upgrade that is none, as the last of those that may be sent ahead, has its answer', async t => {
  const upstream = await httpUpstream(t, (req, res) => res.end(req.url))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.send(get('/before').repeat(64) + get('/h2c', ...H2C) + get('/behind'))
  for (let count = 0; count < 64; count += 1) t.equal((await client.answer()).text, '/before')
  t.equal((await client.answer()).text, '/h2c')
  t.equal((await client.answer()).text, '/behind')
})

/** Asks until no buffer on the way takes any more answers; returns how many are due. */
async function untilStuck(client: Client, rig: Rig): Promise<number> {
  for (let sent = 50; ; sent += 50) {
    client.send(get('/').repeat(50))
    for (let tries = 0; tries < 100 && rig.outcomes.length < sent; tries += 1) await turns(1)
    if (rig.outcomes.length < sent) return sent
  }
}

t.test('a client that does not take our own answers is cut off after a minute', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, routes: [{ match: { path: '/x' }, mode: 'off' }] },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.socket.pause()
  await untilStuck(client, rig)
  t.equal(rig.proxy.line.inProgress, 1)
  rig.clock.runUntil(rig.clock.now() + 59_000)
  await turns()
  t.equal(rig.proxy.line.inProgress, 1, 'not before')
  rig.clock.runUntil(rig.clock.now() + 1_000)
  client.socket.resume()
  await client.end()
  await turns()
  t.equal(rig.proxy.line.inProgress, 0)
})

t.test('a client that takes our answers late, and then all of them, may go on', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, routes: [{ match: { path: '/x' }, mode: 'off' }] },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.socket.pause()
  const sent = await untilStuck(client, rig)
  client.socket.resume()
  await rig.finished(sent)
  await client.until(({ rest }) => (rest.match(/HTTP\/1\.1 404/g) ?? []).length === sent)
  await turns()
  rig.clock.runUntil(rig.clock.now() + 120_000)
  await turns()
  client.send(get('/x'))
  await client.until(({ rest }) => rest.endsWith('ok'))
})

t.test('connections above maxConnections are told so, whatever they ask for; those that were there go on', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 2 }, ...OFF })
  const early = [await connect(t, rig), await connect(t, rig)]
  for (const client of early) t.equal((await client.ask(get('/early'))).status, 200)
  for (const text of [get('/late'), post('body', '/late'), HANDSHAKE, get('/late', ...H2C), get('/late').repeat(3)]) {
    const late = await connect(t, rig)
    const answer = await late.ask(text)
    t.equal(answer.status, 503)
    t.equal(answer.header('retry-after'), '1')
    t.equal(answer.header('connection'), 'close')
    t.match(answer.json(), { status: 503, detail: 'there are too many connections' })
    await late.end()
    t.equal(late.rest, '')
    late.hangUp()
  }
  t.ok(rig.outcomes.slice(2).every(outcome => / refused 503| cancelled 499/.test(outcome)))
  for (const client of early) t.equal((await client.ask(get('/early'))).status, 200)
  t.ok(upstream.requests.every(request => request === 'GET /early'))

  early[0]!.hangUp()
  await turns(50)
  const next = await connect(t, rig)
  t.equal((await next.ask(get('/early'))).status, 200, 'one has left, one may come')
})

t.test('maxConnections follows a reload; who is there stays', async t => {
  const upstream = await httpUpstream(t)
  const config = (maxConnections: number) => ({ upstream: upstream.url, limits: { maxConnections }, ...OFF })
  const settings = (maxConnections: number) => parseConfig(JSON.stringify(config(maxConnections)))
  const rig = await startRig(t, config(1))
  const first = await connect(t, rig)
  await first.ask(get())
  t.equal((await (await connect(t, rig)).ask(get())).status, 503)
  await rig.proxy.reload(settings(10))
  const second = await connect(t, rig)
  t.equal((await second.ask(get())).status, 200)
  await rig.proxy.reload(settings(1))
  t.equal((await second.ask(get())).status, 200)
  t.equal((await (await connect(t, rig)).ask(get())).status, 503)
})

t.test('far above maxConnections they are closed unheard, and there is room again when they have gone', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 10 }, ...OFF })
  const silent = await Promise.all(Array.from({ length: 10 + 256 }, () => connect(t, rig)))
  await turns(50)
  const unheard = await connect(t, rig)
  await unheard.end()
  t.equal(unheard.bytes, 0)
  t.equal((await silent[0]!.ask(get())).status, 200)
  for (const client of silent) client.hangUp()
  await turns(50)
  t.equal((await (await connect(t, rig)).ask(get())).status, 200)
})
