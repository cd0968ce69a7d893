/** `maxInFlight` of a bucket: so many requests of one key at the upstream at once. */
import type { ServerResponse } from 'node:http'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import {
  askOnce,
  type Client,
  connect,
  eventually,
  get,
  type HttpUpstream,
  httpUpstream,
  OK,
  type Rig,
  type RigOptions,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const FAST = { key: 'header:x-user', rate: '1000/s', capacity: 100 }
const shared: RigOptions['shared'] = clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' })
const ONLY_IN_FLIGHT = { key: 'header:x-user' }
const PLACES = [
  ['in memory', {}, FAST],
  ['with a store', { shared }, FAST],
  ['in memory, without a rate', {}, ONLY_IN_FLIGHT],
  ['with a store, without a rate', { shared }, ONLY_IN_FLIGHT],
] as [string, RigOptions, object][]

/** An upstream that answers on command, by path. */
async function onCommand(t: Teardown): Promise<HttpUpstream & { answer(path: string, status?: number): void }> {
  const waiting = new Map<string, ServerResponse[]>()
  const upstream = await httpUpstream(t, (req, res) => {
    waiting.set(req.url!, [...(waiting.get(req.url!) ?? []), res])
  })
  return {
    ...upstream,
    requests: upstream.requests,
    answer(path, status = 200) {
      const [first, ...others] = waiting.get(path)!
      waiting.set(path, others)
      first!.writeHead(status).end('ok')
    },
  }
}

async function ask(t: Teardown, rig: Rig, path: string, user = 'a'): Promise<Client> {
  const client = await connect(t, rig)
  const decided = (): number => rig.queued.length + rig.outcomes.length + rig.released.length
  const before = decided()
  client.send(get(path, `X-User: ${user}`))
  await rig.until(() => decided() > before)
  return client
}

/** Lets everything happen that is due within these ms. */
async function pass(rig: Rig, ms: number): Promise<void> {
  for (let step = 0; step < ms; step += 1) {
    rig.pacer.runUntil(rig.pacer.now() + 1)
    await turns(3)
  }
}

for (const [where, options, limits] of PLACES) {
  t.test(`${where}: shape: the next ones of a key wait in order, and other keys do not`, async t => {
    const upstream = await onCommand(t)
    const buckets = { user: { ...limits, maxInFlight: 2 }, everyone: { key: 'all', rate: '1000/s', capacity: 100 } }
    const rig = await startRig(t, { upstream: upstream.url, buckets }, options)
    const clients: Client[] = []
    for (const path of ['/1', '/2', '/3', '/4', '/5']) clients.push(await ask(t, rig, path))
    await pass(rig, 20)
    await upstream.until(({ requests }) => requests.length === 2)
    const other = await ask(t, rig, '/other', 'b')
    await pass(rig, 5)
    await upstream.until(({ requests }) => requests.length === 3)
    t.same(upstream.requests, ['GET /1', 'GET /2', 'GET /other'])
    upstream.answer('/other')
    t.equal((await other.answer()).status, 200)
    await pass(rig, 5)
    t.equal(upstream.requests.length, 3, 'an answer to another key frees no place')
    upstream.answer('/2')
    t.equal((await clients[1]!.answer()).status, 200)
    await pass(rig, 5)
    await upstream.until(({ requests }) => requests.length === 4)
    t.equal(upstream.requests[3], 'GET /3')
    // A client that leaves frees its place, too, and one that leaves while it waits is passed over.
    clients[3]!.hangUp()
    await rig.until(({ outcomes }) => outcomes.includes('default cancelled 499'))
    clients[0]!.hangUp()
    await pass(rig, 5)
    await upstream.until(({ requests }) => requests.length === 5)
    t.equal(upstream.requests[4], 'GET /5')
    for (const path of ['/3', '/5']) upstream.answer(path)
    t.equal((await clients[4]!.answer()).status, 200)
    await turns()
    for (const bucket of rig.proxy.context.bucketTable.all()) t.equal(bucket.inFlight, 0)
  })

  t.test(`${where}: meter: the next of a key is rejected as by a full bucket`, async t => {
    const upstream = await onCommand(t)
    const buckets = { user: { ...limits, maxInFlight: 1, status: 420 } }
    const routes = [{ name: 'api', mode: 'meter', buckets: ['user'] }]
    const rig = await startRig(t, { upstream: upstream.url, buckets, routes }, options)
    const first = await connect(t, rig)
    first.send(get('/1', 'X-User: a'))
    await upstream.until(({ requests }) => requests.length === 1)
    const answer = await askOnce(t, rig, get('/2', 'X-User: a'))
    t.equal(answer.status, 420)
    t.equal(answer.header('retry-after'), '1')
    // A bucket without a rate is no policy of the draft.
    const isPolicy = limits === FAST
    if (isPolicy) t.match(answer.header('ratelimit'), /^"user";r=\d+;t=1$/)
    else t.equal(answer.header('ratelimit'), undefined)
    t.match(answer.json(), {
      type: 'https://iana.org/assignments/http-problem-types#quota-exceeded',
      detail: 'bucket "user" has 1 in flight and may have 1',
      ...(isPolicy && { 'violated-policies': ['user'] }),
      retryAfterMs: 1_000,
    })
    const other = await connect(t, rig)
    other.send(get('/3', 'X-User: b'))
    await upstream.until(({ requests }) => requests.length === 2)
    upstream.answer('/1')
    await first.answer()
    await turns()
    first.send(get('/4', 'X-User: a'))
    await upstream.until(({ requests }) => requests.length === 3)
    t.same(rig.outcomes, ['api rejected 420', 'api forwarded 200'])
  })

  t.test(`${where}: a request that goes back leaves its place once the refusing answer has ended`, async t => {
    const upstream = await onCommand(t)
    const config = {
      upstream: { url: upstream.url, retry: { status: [503], max: 1 } },
      buckets: { user: { ...limits, maxInFlight: 1 } },
    }
    const rig = await startRig(t, config, options)
    const first = await ask(t, rig, '/1')
    const second = await ask(t, rig, '/2')
    await pass(rig, 5)
    await upstream.until(({ requests }) => requests.length === 1)
    upstream.answer('/1', 503)
    await rig.until(({ queued }) => queued.length >= 2)
    await pass(rig, 20)
    await upstream.until(({ requests }) => requests.length === 2)
    t.same(upstream.requests, ['GET /1', 'GET /1'])
    upstream.answer('/1')
    t.equal((await first.answer()).status, 200)
    await pass(rig, 5)
    await upstream.until(({ requests }) => requests.length === 3)
    upstream.answer('/2')
    t.equal((await second.answer()).status, 200)
    await turns()
    for (const bucket of rig.proxy.context.bucketTable.all()) t.equal(bucket.inFlight, 0)
  })
}

for (const mode of ['shape', 'meter']) {
  t.test(`${mode}: a request on a broken connection is sent again in its own place`, async t => {
    const upstream = await rawUpstream(t, ({ text, socket }) => {
      if (text.split('HTTP/1.1').length > 2) socket.destroy()
      else socket.write(OK)
    })
    const rig = await startRig(t, {
      upstream: upstream.url,
      buckets: { all: { key: 'all', rate: '10/s', capacity: 20, maxInFlight: 1 } },
      routes: [{ name: 'all', mode }],
    })
    for (let count = 1; count <= 3; count += 1) {
      const answer = askOnce(t, rig, get())
      while (rig.outcomes.length < count) {
        await turns(5)
        rig.pacer.runUntil(rig.pacer.now() + 10)
      }
      t.equal((await answer).status, 200)
      for (const bucket of rig.proxy.context.bucketTable.all()) t.equal(bucket.inFlight, 0)
    }
    t.equal(upstream.requests, 5, 'two met a connection that broke')
  })
}

t.test('tiers have their own, and inherit it', async t => {
  const upstream = await onCommand(t)
  const tiers = [
    { name: 'gold', keys: ['gold'], maxInFlight: 2 },
    { name: 'heavy', keys: ['heavy'], weight: 2 },
  ]
  const buckets = { user: { ...FAST, maxInFlight: 1, tiers } }
  const routes = [{ name: 'api', mode: 'meter', buckets: ['user'] }]
  const rig = await startRig(t, { upstream: upstream.url, buckets, routes })
  let sent = 0
  const admitted = async (user: string): Promise<number> => {
    for (let count = 0; ; count += 1) {
      const client = await connect(t, rig)
      const { length } = rig.outcomes
      client.send(get('/', `X-User: ${user}`))
      const passed = sent + 1
      await eventually(() => rig.outcomes.length > length || upstream.requests.length === passed)
      if (upstream.requests.length < passed) return count
      sent = passed
    }
  }
  t.equal(await admitted('gold'), 2)
  t.equal(await admitted('heavy'), 1)
  t.equal(await admitted('somebody'), 1)
})

t.test('a reload changes it for those that wait, and counts what is in flight', async t => {
  const upstream = await onCommand(t)
  const config = (maxInFlight?: number) => ({
    listen: '127.0.0.1:0',
    upstream: upstream.url,
    buckets: { user: { ...FAST, ...(maxInFlight !== undefined && { maxInFlight }) } },
  })
  const reload = (maxInFlight?: number) => rig.proxy.reload(parseConfig(JSON.stringify(config(maxInFlight))))
  const rig = await startRig(t, config())
  const clients: Client[] = []
  for (const path of ['/1', '/2']) clients.push(await ask(t, rig, path))
  await pass(rig, 5)
  await upstream.until(({ requests }) => requests.length === 2)
  await reload(2)
  for (const path of ['/3', '/4', '/5']) clients.push(await ask(t, rig, path))
  await pass(rig, 5)
  t.equal(upstream.requests.length, 2)
  await reload(3)
  await pass(rig, 5)
  await upstream.until(({ requests }) => requests.length === 3)
  await reload()
  await pass(rig, 5)
  await upstream.until(({ requests }) => requests.length === 5)
  t.same(upstream.requests, ['GET /1', 'GET /2', 'GET /3', 'GET /4', 'GET /5'])
})

t.test('a key with a request in flight is not forgotten, however many others come', async t => {
  const upstream = await onCommand(t)
  const config = {
    upstream: upstream.url,
    limits: { maxKeys: 2 },
    buckets: { user: { ...FAST, maxInFlight: 1 } },
    routes: [{ name: 'api', mode: 'meter', buckets: ['user'] }],
  }
  const rig = await startRig(t, config)
  const first = await connect(t, rig)
  first.send(get('/1', 'X-User: a'))
  await upstream.until(({ requests }) => requests.length === 1)
  for (let count = 0; count < 20; count += 1) {
    const other = await connect(t, rig)
    other.send(get(`/other${count}`, `X-User: b${count}`))
    await upstream.until(({ requests }) => requests.length === 2 + count)
    upstream.answer(`/other${count}`)
    t.equal((await other.answer()).status, 200)
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
  }
  t.equal((await askOnce(t, rig, get('/2', 'X-User: a'))).status, 429)
})

t.test('a dry run tells what it would have held or rejected', async t => {
  const upstream = await onCommand(t)
  const config = {
    upstream: upstream.url,
    dryRun: true,
    buckets: { user: { ...FAST, maxInFlight: 1 } },
    routes: [{ name: 'meter', match: { path: '/m*' }, mode: 'meter' }, { name: 'shape' }],
  }
  const rig = await startRig(t, config)
  for (const [path, name] of [
    ['/m', 'meter would_reject'],
    ['/s', 'shape would_delay'],
  ] as const) {
    const clients = [await connect(t, rig), await connect(t, rig)]
    const before = upstream.requests.length
    for (const client of clients) client.send(get(path, `X-User: ${path}`))
    await upstream.until(({ requests }) => requests.length === before + 2)
    t.equal(rig.rehearsed.at(-1), name)
    const { length } = rig.rehearsed
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
    for (const client of clients) {
      upstream.answer(path)
      t.equal((await client.answer()).status, 200)
    }
    await turns()
    rig.pacer.runUntil(rig.pacer.now() + 1_000)
    clients[0]!.send(get(path, `X-User: ${path}`))
    await upstream.until(({ requests }) => requests.length === before + 3)
    t.equal(rig.rehearsed.length, length, 'both are over')
    upstream.answer(path)
    await clients[0]!.answer()
  }
  await turns()
  for (const bucket of rig.proxy.context.bucketTable.all()) t.equal(bucket.inFlight, 0)
})
