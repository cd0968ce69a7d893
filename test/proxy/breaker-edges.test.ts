/** The breaker together with WebSockets, reloads, retries and slow buckets (contract 8.4). */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { freePort } from '../servers/free-port.js'
import { askOnce, connect, get, httpUpstream, OK, passBoth, rawUpstream, startRig, turns } from './harness.js'

const FAST = { all: { key: 'all', rate: '1000/s', capacity: 100 } }

const HANDSHAKE =
  'GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
  'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n'

const SWITCH = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'

const from = (client: number): string => `X-Forwarded-For: 10.0.0.${client}`

t.test('the answer to a WebSocket handshake closes the breaker', async t => {
  let answer = ''
  const upstream = await rawUpstream(t, incoming => {
    if (answer === '') incoming.socket.destroy()
    else incoming.socket.write(answer)
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, breaker: { failures: 2 } },
      trustProxy: ['loopback'],
      buckets: FAST,
      routes: [{ name: 'all', mode: 'meter' }],
    },
    { virtualClock: true },
  )
  for (const client of [1, 2]) t.equal((await askOnce(t, rig, get('/', from(client)))).status, 502)
  t.equal((await askOnce(t, rig, get())).status, 503, 'open')
  answer = SWITCH
  await passBoth(rig, 1_000)
  const socket = await connect(t, rig)
  socket.send(HANDSHAKE)
  await socket.until(({ rest }) => rest.startsWith('HTTP/1.1 101 '))
  t.equal(rig.proxy.context.routes[0]!.upstream.servers[0]!.breaker!.isOpen, false)
  socket.hangUp()
})

t.test('answers to WebSocket handshakes end a row of failures', async t => {
  let answer = SWITCH
  const upstream = await rawUpstream(t, incoming => {
    if (answer === '') incoming.socket.destroy()
    else incoming.socket.write(answer)
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, breaker: { failures: 2 } },
      trustProxy: ['loopback'],
      buckets: FAST,
      routes: [{ name: 'all', mode: 'meter' }],
    },
    { virtualClock: true },
  )
  for (const client of [1, 2, 1, 2]) {
    answer = ''
    t.equal((await askOnce(t, rig, get('/', from(client)))).status, 502)
    answer = SWITCH
    const socket = await connect(t, rig)
    socket.send(HANDSHAKE)
    await socket.until(({ rest }) => rest.startsWith('HTTP/1.1 101 '))
    socket.hangUp()
  }
})

t.test('an upstream that a reload has replaced does not close the gate of its heir', async t => {
  const upstream = await rawUpstream(t)
  const config = (idleTimeout: string): object => ({
    upstream: { url: upstream.url, idleTimeout, breaker: { failures: 2 } },
    trustProxy: ['loopback'],
    buckets: FAST,
    routes: [{ name: 'all' }],
  })
  const rig = await startRig(t, config('50s'), { virtualClock: true })
  const clients = await Promise.all(Array.from({ length: 3 }, () => connect(t, rig)))
  for (const [index, client] of clients.entries()) client.send(get(`/old${index}`, from(index)))
  await passBoth(rig, 100)
  await upstream.until(({ requests }) => requests === 3)
  await rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config('51s') })))
  // Its last request stays, so the old upstream is not closed.
  for (const { socket, text } of upstream.connections) if (!text.includes('/old2')) socket.destroy()
  for (const client of clients.slice(0, 2)) t.equal((await client.answer()).status, 502)
  const next = await connect(t, rig)
  next.send(get('/new'))
  await passBoth(rig, 100)
  await upstream.until(({ text }) => text.includes('/new'))
  upstream.connections.find(({ text }) => text.includes('/new'))!.socket.write(OK)
  t.equal((await next.answer()).status, 200)
})

t.test('an answer that is a failure and is to be retried stands once hold is over', async t => {
  const upstream = await httpUpstream(t, (_req, res) => {
    res.statusCode = 503
    res.end('no')
  })
  const rig = await startRig(
    t,
    {
      upstream: {
        url: upstream.url,
        breaker: { failures: 2, status: [503], hold: '2s' },
        retry: { status: [503], max: 9 },
      },
      trustProxy: ['loopback'],
      buckets: FAST,
      routes: [{ name: 'all' }],
    },
    { virtualClock: true },
  )
  const clients = await Promise.all([connect(t, rig), connect(t, rig)])
  for (const [index, client] of clients.entries()) client.send(get('/', from(index)))
  await passBoth(rig, 3_500)
  t.equal(rig.outcomes.length, 2, 'nobody waits longer than hold')
  // Probes after 1, 3, 7 s.
  const late = await connect(t, rig)
  await passBoth(rig, 4_000)
  late.send(get('/', from(7)))
  await turns(40)
  await passBoth(rig, 100)
  t.equal(rig.outcomes.length, 3, 'nor does the probe wait for the next one')
})

t.test('after hold a newcomer is the probe or is refused, also while its bucket is busy', async t => {
  const port = await freePort()
  const other = await httpUpstream(t)
  const rig = await startRig(
    t,
    {
      upstream: { url: `http://127.0.0.1:${port}`, breaker: { failures: 1, hold: '1ms' } },
      buckets: { all: { key: 'all', rate: '1/s', capacity: 20 } },
      routes: [{ name: 'other', match: { path: '/other' }, upstream: other.url }, { name: 'all' }],
    },
    { virtualClock: true },
  )
  const first = askOnce(t, rig, get('/first'))
  await rig.until(({ failures }) => failures.length === 1)
  await passBoth(rig, 1_100)
  t.equal((await first).status, 503)
  t.equal((await askOnce(t, rig, get('/other'))).status, 200)
  const upstream = await rawUpstream(t, () => undefined, port)
  const [probe, newcomer] = [await connect(t, rig), await connect(t, rig)]
  probe.send(get('/probe'))
  await rig.until(({ queued }) => queued.length === 1 + 1)
  newcomer.send(get('/newcomer'))
  await turns(40)
  await passBoth(rig, 1_100)
  await upstream.until(({ text }) => text.includes('/probe'))
  t.same(rig.outcomes.slice(2), ['all failed 503'], 'the newcomer')
})

t.test('a probe of an off route that is sent again closes the breaker by its answer', async t => {
  let answer = OK
  const upstream = await rawUpstream(t, incoming => {
    if (answer === '') {
      answer = OK
      incoming.socket.destroy()
    } else incoming.socket.write(answer)
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, breaker: { failures: 2, status: [500] } },
      trustProxy: ['loopback'],
      routes: [{ name: 'off', mode: 'off' }],
    },
    { virtualClock: true },
  )
  t.equal((await askOnce(t, rig, get())).status, 200)
  answer = OK.replace('200', '500')
  for (const client of [1, 2]) t.equal((await askOnce(t, rig, get('/', from(client)))).status, 500)
  await passBoth(rig, 1_000)
  answer = ''
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.equal(upstream.connections.length, 2, 'sent again on another connection')
  t.equal(rig.proxy.context.routes[0]!.upstream.servers[0]!.breaker!.isOpen, false)
})

t.test('a WebSocket handshake that gets no connection goes back to its queue', async t => {
  const port = await freePort()
  const rig = await startRig(
    t,
    { upstream: `http://127.0.0.1:${port}`, buckets: FAST, routes: [{ name: 'all' }] },
    { virtualClock: true },
  )
  const socket = await connect(t, rig)
  socket.send(HANDSHAKE)
  const gone = await connect(t, rig)
  gone.send(HANDSHAKE)
  await passBoth(rig, 100)
  t.ok(rig.failures.length >= 2, 'both have tried')
  gone.hangUp()
  t.same(await rig.finished(1), ['all cancelled 499'], 'its client is watched while it waits')
  await rawUpstream(t, incoming => void incoming.socket.write(SWITCH), port)
  await passBoth(rig, 2_000)
  await socket.until(({ rest }) => rest.startsWith('HTTP/1.1 101 '))
  t.same(rig.outcomes, ['all cancelled 499', 'all forwarded 101'])
  socket.hangUp()
})

t.test('a proxy that has stopped waits for no probe', async t => {
  const port = await freePort()
  const rig = await startRig(
    t,
    { upstream: `http://127.0.0.1:${port}`, routes: [{ name: 'off', mode: 'off' }] },
    { virtualClock: true },
  )
  for (let count = 0; count < 5; count += 1) t.equal((await askOnce(t, rig, get())).status, 502)
  t.equal(rig.proxy.context.routes[0]!.upstream.servers[0]!.breaker!.isOpen, true)
  await rig.proxy.drain(1_000)
  const now = rig.clock.now()
  t.equal(rig.clock.runAll(), now, 'no timer is left, so the process ends')
})

t.test('a request that a store admits after hold is refused as others are', async t => {
  const port = await freePort()
  let answer = (): void => undefined
  const rig = await startRig(
    t,
    {
      upstream: { url: `http://127.0.0.1:${port}`, breaker: { failures: 1, hold: '1ms' } },
      buckets: FAST,
      routes: [{ name: 'off', match: { path: '/off' }, mode: 'off' }, { name: 'all' }],
    },
    {
      virtualClock: true,
      shared: clock => {
        const memory = createMemoryStore({ clock })
        const admit: typeof memory.admit = request => memory.admit(request)
        const later = (request: Parameters<typeof admit>[0]) =>
          new Promise<ReturnType<typeof admit>>(resolve => {
            answer = () => resolve(admit(request))
          })
        return {
          store: {
            ...memory,
            admit: later,
          },
          onOutage: 'local',
        }
      },
    },
  )
  t.equal((await askOnce(t, rig, get('/off'))).status, 502)
  const client = await connect(t, rig)
  client.send(get('/late'))
  await turns(40)
  await passBoth(rig, 10, 5)
  answer()
  await rig.finished(2)
  t.same(rig.outcomes, ['off failed 502', 'all failed 503'])
  t.equal(rig.proxy.context.shaper.queued, 0)
})

t.test('with a store, a newcomer after hold is the probe', async t => {
  const port = await freePort()
  const rig = await startRig(
    t,
    {
      upstream: { url: `http://127.0.0.1:${port}`, breaker: { failures: 1, hold: '1ms' } },
      buckets: FAST,
      routes: [{ name: 'off', match: { path: '/off' }, mode: 'off' }, { name: 'all' }],
    },
    { virtualClock: true, shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) },
  )
  t.equal((await askOnce(t, rig, get('/off'))).status, 502)
  await passBoth(rig, 1_100)
  await rawUpstream(t, incoming => void incoming.socket.write(OK), port)
  const probe = await connect(t, rig)
  probe.send(get('/probe'))
  await turns(40)
  await passBoth(rig, 100, 10)
  t.equal((await probe.answer()).status, 200)
})
