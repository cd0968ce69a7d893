import { once } from 'node:events'
import { createServer, request as rawRequest } from 'node:http'
import { connect, type Socket } from 'node:net'
import t from 'tap'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { httpUpstream, pass, turns } from '../proxy/harness.js'
import { freePort } from '../servers/free-port.js'
import { startAdminRig } from './rig.js'

const CLIENT = { client: { key: 'header:x-user', rate: '5/s', capacity: 10 } }

/** With headers that fetch does not let one set. */
function ask(url: string, headers: Record<string, string>, method = 'GET'): Promise<number> {
  return new Promise((resolve, reject) => {
    rawRequest(url, { headers, method }, res => {
      res.resume()
      resolve(res.statusCode!)
    })
      .on('error', reject)
      .end()
  })
}

t.test('alive, ready, and not ready while it drains', async t => {
  const held: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => held.push(() => res.end()))
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT })
  t.equal((await rig.get('/healthz')).status, 200)
  t.equal((await rig.get('/readyz')).status, 200)
  const answer = fetch(rig.proxy.url)
  await upstream.until(() => held.length === 1)
  const drained = rig.proxy.drain(10_000)
  t.equal((await rig.get('/healthz')).status, 200)
  const ready = await rig.get('/readyz')
  t.equal(ready.status, 503)
  t.match(await ready.text(), /shutting down/)
  held[0]!()
  await answer
  await drained
})

t.test('a burst is shown with rate and capacity, and counts in the wait of a newcomer', async t => {
  const upstream = await httpUpstream(t)
  const tiers = [{ name: 'gold', keys: ['a'], burst: 4 }]
  const buckets = { client: { ...CLIENT.client, burst: 2, tiers } }
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets, routes: [{ name: 'api' }] })
  for (let count = 0; count < 2; count += 1) await fetch(rig.proxy.url, { headers: { 'x-user': 'a' } })
  const [bucket] = (await rig.snapshot()).buckets
  t.match(bucket, { rate: 5, capacity: 10, burst: 2 })
  t.match(bucket!.fullest, [{ key: 'a', tier: 'gold', burst: 4, level: 2, predictedWaitMs: 0 }])
})

t.test(
  'the picture stays with one key while it is about as full as others, and leaves it for a much fuller one',
  async t => {
    const buckets = { client: { ...CLIENT.client, rate: '1/m' } }
    const rig = await startAdminRig(t, { upstream: 'echo:', buckets })
    const burst = async (user: string, times: number): Promise<void> => {
      const { offered } = (await rig.snapshot()).buckets[0]!
      for (let sent = 0; sent < times; sent += 1)
        void fetch(rig.proxy.url, { headers: { 'x-user': user } }).catch(() => undefined)
      while ((await rig.snapshot()).buckets[0]!.offered < offered + times) await turns()
    }
    const watched = async () => (await rig.snapshot()).buckets[0]!.focus?.key
    await burst('a', 2)
    t.equal(await watched(), 'a')
    await burst('b', 10)
    t.equal((await rig.snapshot()).buckets[0]!.fullest[0]!.key, 'b')
    t.equal(await watched(), 'a', 'not at once')
    await pass(rig, 10_000, 5_000)
    t.equal(await watched(), 'b')
    await burst('a', 4)
    await pass(rig, 20_000, 5_000)
    t.equal(await watched(), 'b', 'a is 0.4 less full')
  },
)

t.test('the first look lists each key once', async t => {
  const upstream = await httpUpstream(t)
  const routes = [{ name: 'api', mode: 'meter' }]
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT, routes })
  for (const key of ['a', 'b', 'c', 'd', 'a']) await fetch(rig.proxy.url, { headers: { 'x-user': key } })
  const [bucket] = (await rig.snapshot()).buckets
  t.same(bucket!.fullest.map(({ key }) => key).sort(), ['a', 'b', 'c', 'd'])
})

t.test('the fullest instances: level, waiting requests and the wait of a newcomer; and they can be reset', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT, routes: [{ name: 'api' }] })
  const key = 'who/is it?%'
  const answers = Array.from({ length: 12 }, () => fetch(rig.proxy.url, { headers: { 'x-user': key } }))
  await fetch(rig.proxy.url, { headers: { 'x-user': 'other' } })
  while ((await rig.snapshot()).buckets[0]!.offered < 13) await turns()
  const { buckets, routes, queued } = (await (await rig.get('/buckets')).json()) as Snapshot
  const [bucket] = buckets
  t.equal(queued, 9)
  t.match(bucket, {
    name: 'client',
    key: 'header:x-user',
    rate: 5,
    configured: 5,
    capacity: 10,
    keys: 2,
    routes: ['api'],
  })
  t.same(
    bucket!.fullest.map(({ key, level, waiting, nextReleaseMs, predictedWaitMs }) => {
      return { key, level, waiting, nextReleaseMs, predictedWaitMs }
    }),
    [
      { key, level: 10, waiting: 9, nextReleaseMs: 200, predictedWaitMs: 2_000 },
      { key: 'other', level: 1, waiting: 0, nextReleaseMs: 200, predictedWaitMs: 200 },
    ],
  )
  t.same([bucket!.offered, bucket!.released, bucket!.rejected], [13, 2, 2])
  t.equal(routes[0]!.outcomes.rejected, 2)
  const path = `/buckets/client/${encodeURIComponent(key)}`
  const reset = await fetch(rig.admin.url + path, { method: 'DELETE' })
  t.equal(reset.status, 200)
  // The first of nine leaves at once, and takes its 200 ms: the eighth after it waits for 1.6 s.
  t.same(await reset.json(), { forgotten: 1, waiting: 8, level: 9, lastWaitMs: 1_600 })
  // What was passed is forgotten: the next may go, and the bucket holds it.
  t.equal((await rig.snapshot()).buckets[0]!.fullest[0]!.waiting, 8)
  const nobody = await fetch(`${rig.admin.url}/buckets/client/nobody`, { method: 'DELETE' })
  t.same(await nobody.json(), { forgotten: 0, waiting: 0, level: 0, lastWaitMs: 0 })
  t.equal((await fetch(`${rig.admin.url}/buckets/nothing/x`, { method: 'DELETE' })).status, 404)
  t.equal((await fetch(`${rig.admin.url}/buckets/client/%zz`, { method: 'DELETE' })).status, 400)
  t.equal((await fetch(`${rig.admin.url}/buckets/client/a/b`, { method: 'DELETE' })).status, 400)
  for (let at = 200; at <= 5_000; at += 200) {
    rig.pacer.runUntil(at)
    // A connection may have to open.
    await turns(40)
  }
  await Promise.all(answers)
})

t.test('a badly encoded bucket name is 400, as is a badly encoded key', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT })
  for (const path of ['/buckets/%zz/x', '/buckets/client/%zz', '/buckets/%zz/%zz', '/buckets/client']) {
    t.equal((await fetch(rig.admin.url + path, { method: 'DELETE' })).status, 400, path)
  }
})

t.test('everything but probes needs the token', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT }, { token: 's3cret-of-16-and-more' })
  for (const path of ['/', '/metrics', '/buckets', '/events']) {
    for (const authorization of [
      '',
      'Bearer',
      'Bearer s3cre',
      'Bearer s3cret2',
      'Basic s3cret',
      's3cret-of-16-and-more',
    ]) {
      const res = await rig.get(path, { authorization })
      t.equal(res.status, 401, `${path} with "${authorization}"`)
      t.equal(res.headers.get('www-authenticate'), 'Bearer realm="shaper"')
      await res.body?.cancel()
    }
  }
  t.equal((await rig.get('/metrics', { authorization: 'Bearer s3cret-of-16-and-more' })).status, 200)
  t.equal((await rig.get('/metrics', { authorization: 'bearer  s3cret-of-16-and-more' })).status, 200)
  t.equal((await rig.get('/healthz')).status, 200)
  t.equal((await rig.get('/readyz')).status, 200)
})

t.test(
  'long: connections without the token do not keep others out: idle, with half a request, or with unread answers',
  async t => {
    const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT }, { token: 's3cret-of-16-and-more' })
    const port = Number(new URL(rig.admin.url).port)
    const page = 'GET / HTTP/1.1\r\nHost: a\r\n\r\n'
    for (const sent of ['', 'GET /metrics HTTP/1.1\r\nHost:', page, page.repeat(50)]) {
      const sockets: Socket[] = []
      for (let count = 0; count < 520; count += 1) {
        const socket = connect(port, '127.0.0.1').pause()
        sockets.push(socket.on('error', () => undefined))
        await once(socket, 'connect')
        if (sent !== '') socket.write(sent)
      }
      t.equal((await rig.get('/healthz')).status, 200, sent.slice(0, 14))
      t.equal((await rig.get('/readyz')).status, 200)
      t.equal((await rig.get('/metrics', { authorization: 'Bearer s3cret-of-16-and-more' })).status, 200)
      for (const socket of sockets) socket.destroy()
    }
  },
)

t.test('a request that has access keeps its connection while others come and go', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT }, { token: 's3cret-of-16-and-more' })
  const events = await rig.get('/events', { authorization: 'Bearer s3cret-of-16-and-more' })
  const reader = events.body!.getReader()
  await reader.read()
  const port = Number(new URL(rig.admin.url).port)
  const sockets: Socket[] = []
  for (let count = 0; count < 1_100; count += 1) {
    const socket = connect(port, '127.0.0.1').on('error', () => undefined)
    sockets.push(socket)
    await once(socket, 'connect')
  }
  t.notOk((await reader.read()).done)
  t.notOk((await reader.read()).done)
  await reader.cancel()
  for (const socket of sockets) socket.destroy()
})

t.test('without a token a page of another site gets nothing under any host name', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT })
  const { port } = new URL(rig.admin.url)
  const url = `${rig.admin.url}/buckets`
  t.equal(await ask(url, { host: `evil.example:${port}` }), 421)
  t.equal(await ask(url, { host: `localhost:${port}` }), 200)
  t.equal(await ask(url, { host: `127.0.0.1:${port}`, origin: 'http://evil.example' }), 403)
  t.equal(await ask(url, { host: `127.0.0.1:${port}`, origin: `http://127.0.0.1:${port}` }), 200)
  t.equal(await ask(url, { 'sec-fetch-site': 'cross-site' }), 403)
  t.equal(await ask(rig.admin.url, { 'sec-fetch-site': 'cross-site' }), 200, 'the page has no secrets')
  t.equal(await ask(`${rig.admin.url}/buckets/client/a`, { origin: 'null' }, 'DELETE'), 403)
})

t.test('unknown methods and paths', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT })
  t.equal((await rig.get('/nothing')).status, 404)
  const res = await fetch(`${rig.admin.url}/metrics`, { method: 'POST', body: 'x' })
  t.equal(res.status, 405)
  t.equal(res.headers.get('allow'), 'GET, HEAD')
  t.equal((await fetch(`${rig.admin.url}/buckets/client/a`, { method: 'POST' })).status, 405)
  t.equal((await fetch(`${rig.admin.url}/metrics`, { method: 'HEAD' })).status, 200)
  t.equal((await rig.get('/events?interval=x')).status, 400)
})

t.test('events: a snapshot at a bounded rate, for a bounded number of clients', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT })
  const abort = new AbortController()
  t.teardown(() => abort.abort())
  const open = (query = '') => fetch(`${rig.admin.url}/events${query}`, { signal: abort.signal })
  const stream = await open('?interval=1')
  t.equal(stream.headers.get('content-type'), 'text/event-stream; charset=utf-8')
  const reader = stream.body!.getReader()
  let text = ''
  const start = performance.now()
  while ((text.match(/^event: snapshot$/gm) ?? []).length < 3)
    text += new TextDecoder().decode((await reader.read()).value)
  t.ok(performance.now() - start > 350, 'not every ms, the requested interval')
  const [, data] = /^data: (.*)$/m.exec(text)!
  t.match(JSON.parse(data!), { processes: 1, buckets: [{ name: 'client' }] })
  await Promise.all(Array.from({ length: 15 }, () => open()))
  t.equal((await open()).status, 503)
})

t.test('events of a key: its bucket and its own counts, besides the snapshot', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { user: { key: 'header:x-user', rate: '1/s', capacity: 2 } },
    routes: [{ mode: 'meter', buckets: ['user'] }],
  })
  const abort = new AbortController()
  t.teardown(() => abort.abort())
  const ask = (user: string) => fetch(rig.proxy.url, { headers: { 'x-user': user } })
  const watch = async (query: string) => {
    const stream = await fetch(`${rig.admin.url}/events?interval=200${query}`, { signal: abort.signal })
    const reader = stream.body!.pipeThrough(new TextDecoderStream()).getReader()
    let text = ''
    return async (): Promise<Snapshot> => {
      for (;;) {
        const [whole, data] = /^.*?data: (.*?)\n\n/s.exec(text) ?? ['', undefined]
        text = text.slice(whole.length)
        if (data !== undefined) return JSON.parse(data)
        text += (await reader.read()).value
      }
    }
  }
  await Promise.all([ask('a'), ask('b')])
  const none = await (await watch('&bucket=nothing&key=a'))()
  t.notOk('watched' in none, 'there is no such bucket')
  const next = await watch('&bucket=user&key=a')
  const first = await next()
  t.match(first, {
    buckets: [{ keys: 2, offered: 2 }],
    watched: { bucket: 'user', offered: 0, released: 0, rejected: 0 },
  })
  t.match(first.watched!.instance, { key: 'a', level: 1, capacity: 2, rate: 1 })
  await Promise.all([ask('a'), ask('a'), ask('a'), ask('b')])
  let { watched } = await next()
  while (watched!.offered < 3) watched = (await next()).watched
  t.match(watched, { offered: 3, released: 1, rejected: 2, instance: { level: 2 } })
  t.same([watched!.focus.arrivals.length, watched!.focus.rejections.length], [3, 2])
})

t.test('an upstream that fails says why, until it answers again', async t => {
  const port = await freePort()
  const url = `http://127.0.0.1:${port}`
  const upstream = { url, breaker: { failures: 1, probe: '10ms' } }
  const rig = await startAdminRig(t, { upstream, buckets: CLIENT, routes: [{ mode: 'off' }] })
  t.notHas((await rig.snapshot()).upstreams[0], { failure: '' })
  t.equal((await fetch(rig.proxy.url)).status, 502)
  const failure = `the upstream refused the connection (connect ECONNREFUSED 127.0.0.1:${port})`
  const snapshot = await rig.snapshot()
  t.match(snapshot.upstreams, [{ url, failure }])
  t.ok(snapshot.upstreams[0]!.probeMs! >= 0)
  const { troubles } = (await (await rig.get('/buckets')).json()) as typeof snapshot
  t.ok(troubles![0]!.startsWith(`${url} fails: ${failure}; `), troubles![0]!)

  const server = createServer((_, res) => res.end()).listen(port, '127.0.0.1')
  t.teardown(() => server.close())
  await once(server, 'listening')
  while ((await fetch(rig.proxy.url)).status !== 200);
  t.notHas((await rig.snapshot()).upstreams[0], { failure: '' })
})
