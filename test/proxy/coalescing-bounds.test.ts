/** What identical requests that leave as one may not do: get an answer to something else, or take the memory of others. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ClientHttp2Stream } from 'node:http2'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { type Client, connect, get, httpUpstream, occupy, type Rig, stalled, startRig, turns } from './harness.js'
import { answerOf, openSession, request } from './http2/h2-client.js'

type Test = Parameters<typeof startRig>[0]

const MB = 1024 * 1024

const COALESCED = {
  buckets: { all: { key: 'all', rate: '1/s', capacity: 50 } },
  routes: [{ name: 'all', coalesce: true }],
}

/** An upstream that answers when the test says so. The first request, for `/first`, is answered at once. */
async function start(t: Test, config: object = {}, settings: object = {}) {
  const held: { req: IncomingMessage; res: ServerResponse }[] = []
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/first') res.end('first')
    else held.push({ req, res })
  })
  const all = { upstream: { url: upstream.url, ...settings }, ...COALESCED, ...config }
  const rig = await startRig(t, all)
  await occupy(t, rig)
  return { all, rig, upstream, held }
}

async function queue(t: Test, rig: Rig, text: string): Promise<Client> {
  const client = await connect(t, rig)
  const before = rig.queued.length
  client.send(text)
  await rig.until(({ queued }) => queued.length > before)
  return client
}

t.test('after a reload that lets a client tell more, its answer is for those who tell the same', async t => {
  const { all, rig, upstream, held } = await start(t)
  const liar = await queue(t, rig, get('/page', 'X-Forwarded-Host: evil.test'))
  const other = await queue(t, rig, get('/page'))
  await rig.proxy.reload(parseConfig(JSON.stringify({ ...all, trustProxy: ['loopback'] })))
  rig.pacer.runUntil(1_000)
  await upstream.until(() => held.length === 1)
  t.equal(held[0]!.req.headers['x-forwarded-host'], 'evil.test')
  held[0]!.res.end('<a href="//evil.test">')
  t.match((await liar.answer()).text, 'evil')
  t.equal(rig.coalesced, 0)
  rig.pacer.runUntil(2_000)
  await upstream.until(() => held.length === 2)
  held[1]!.res.end('own')
  t.equal((await other.answer()).text, 'own')
})

t.test('requests that waited during a reload are still answered together', async t => {
  const { all, rig, upstream, held } = await start(t)
  const [one, two] = [await queue(t, rig, get('/page')), await queue(t, rig, get('/page'))]
  await rig.proxy.reload(parseConfig(JSON.stringify({ ...all, trustProxy: ['loopback'] })))
  rig.pacer.runUntil(1_000)
  await upstream.until(() => held.length === 1)
  held[0]!.res.end('both')
  for (const client of [one, two]) t.equal((await client.answer()).text, 'both')
  t.equal(rig.coalesced, 1)
})

t.test('leaders that take nothing hold no more than their share of the memory', async t => {
  const limits = { bufferMemory: 16 * MB, minBodyRate: 0 }
  const { rig, upstream, held } = await start(t, { limits }, { responseBuffer: 16_384 })
  for (const [page, isShared] of [true, false].entries()) {
    const before = rig.queued.length
    const stalled = request(openSession(t, rig.port), { ':path': `/${page}` })
    stalled.on('error', () => undefined)
    await rig.until(({ queued }) => queued.length > before)
    const other = await queue(t, rig, get(`/${page}`))
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
    await upstream.until(() => held.some(({ req }) => req.url === `/${page}`))
    held.at(-1)!.res.writeHead(200, { 'Content-Length': 1_000_000 }).end(Buffer.alloc(1_000_000))
    if (isShared) t.equal((await other.answer()).body.length, 1_000_000)
    else await turns(500)
    t.equal(rig.coalesced, 1)
    if (!isShared) other.hangUp()
  }
  const { used } = rig.proxy.context.bodyBytes
  t.ok(used < MB + 128 * 1024, `${used} bytes`)
})

t.test('long: followers that take nothing hold no more than there is, and those of one client its share', async t => {
  const FOLLOWERS = 40
  const LEAST = 4_096
  for (const [who, most] of [
    ['many clients', 2 * MB],
    ['one client', MB + (2 * MB) / 16],
  ] as const) {
    const { rig, upstream, held } = await start(t, {
      trustProxy: true,
      limits: { bufferMemory: 2 * MB, minBodyRate: 0 },
    })
    const streams: ClientHttp2Stream[] = []
    const leader = await queue(t, rig, get('/page'))
    for (let number = 0; number < FOLLOWERS; number += 1) {
      const address = who === 'one client' ? '192.0.2.1' : `192.0.2.${number}`
      streams.push(request(openSession(t, rig.port), { ':path': '/page', 'x-forwarded-for': address }))
    }
    await rig.until(({ queued }) => queued.length === 1 + FOLLOWERS)
    rig.pacer.runUntil(1_000)
    await upstream.until(() => held.length === 1)
    held[0]!.res.end(Buffer.alloc(MB))
    t.equal((await leader.answer()).body.length, MB)
    await rig.until(({ coalesced }) => coalesced === FOLLOWERS)
    const used = await stalled(() => rig.proxy.context.bodyBytes.used)
    // The heads of requests count, too.
    t.ok(used > MB && used <= most + FOLLOWERS * (LEAST + 1_024), `${who}: ${used} bytes`)
    for (const stream of streams) t.equal((await answerOf(stream)).text.length, MB)
    t.equal(rig.proxy.context.bodyBytes.used, 0)
  }
})
