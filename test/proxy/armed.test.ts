/** Requests that are armed: the test is the pacing thread, and writes what it finds armed. */
import dns from 'node:dns'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { Hand } from './hand.js'
import {
  answering,
  connect,
  eventually,
  get,
  httpUpstream,
  OK,
  post,
  type Rig,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const CLIENTS = { buckets: { client: { key: 'header:x-key', rate: '100/s', capacity: 50 } }, routes: [{ name: 'all' }] }

async function start(t: Teardown, url: string, config: object = {}): Promise<{ rig: Rig; hand: Hand }> {
  const hand = new Hand()
  const rig = await startRig(
    t,
    { ...CLIENTS, upstream: { url }, ...config },
    { writes: hand.writes, virtualClock: true },
  )
  return { rig, hand }
}

/** Queues requests of one client behind one that leaves at once and opens the first connection. */
async function queue(t: Teardown, rig: Rig, paths: readonly string[], key = 'alice') {
  const first = await connect(t, rig)
  await first.ask(get(`/${key}`, `X-Key: ${key}`))
  const clients = []
  for (const path of paths) {
    const client = await connect(t, rig)
    const before = rig.queued.length
    client.send(get(path, `X-Key: ${key}`))
    await rig.until(({ queued }) => queued.length > before)
    clients.push(client)
  }
  return clients
}

/** Waits until so many are armed. Connections for them may still be opening. */
async function untilArmed(rig: Rig, hand: Hand, count: number): Promise<void> {
  await eventually(() => {
    if (hand.armed.length < count) rig.proxy.context.shaper.wake()
    return hand.armed.length >= count
  })
}

t.test('requests that wait are sent by another thread, in order, and answered', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url)
  const clients = await queue(t, rig, ['/1', '/2', '/3', '/4'])
  for (const path of ['/1', '/2', '/3', '/4']) {
    await untilArmed(rig, hand, 1)
    t.equal(hand.paths[0], path)
    hand.send(rig)
    await upstream.until(({ requests }) => requests.at(-1) === `GET ${path}`)
  }
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.same(upstream.requests, ['GET /alice', 'GET /1', 'GET /2', 'GET /3', 'GET /4'])
  t.same(
    rig.released.map(({ lateness }) => Math.abs(lateness) < 1e-3),
    [true, true, true, true, true],
  )
})

t.test('a client that hangs up is not sent, and the next takes its slot', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url)
  const [first, second] = await queue(t, rig, ['/gone', '/next'])
  await untilArmed(rig, hand, 2)
  const slot = hand.writes.memory.slots[hand.armed[0]!.index]!
  first!.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('all cancelled 499'))
  await untilArmed(rig, hand, 1)
  t.same(hand.paths, ['/next'])
  t.ok(Math.abs(hand.writes.memory.slots[hand.armed[0]!.index]! - slot) < 1e-3, 'in the slot that was not used')
  hand.send(rig)
  t.equal((await second!.answer()).status, 200)
  t.same(upstream.requests, ['GET /alice', 'GET /next'])
})

t.test(
  'a client that hangs up just after its request was sent: the slot is spent, the connection is dropped',
  async t => {
    const answer = answering(OK)
    const upstream = await rawUpstream(t, incoming => {
      if (!incoming.text.includes('/gone')) answer(incoming)
    })
    const { rig, hand } = await start(t, upstream.url)
    const [first, second] = await queue(t, rig, ['/gone', '/next'])
    await untilArmed(rig, hand, 2)
    hand.send(rig)
    await upstream.until(({ text }) => text.includes('/gone'))
    first!.hangUp()
    await rig.until(({ outcomes }) => outcomes.includes('all cancelled 499'))
    await upstream.until(({ connections }) => connections.some(({ text, closed }) => text.includes('/gone') && closed))
    await untilArmed(rig, hand, 1)
    const { slots } = hand.writes.memory
    t.ok(slots[hand.armed[0]!.index]! - hand.writes.toHrtime >= rig.pacer.now() + 9.9, 'the next has its own slot')
    hand.send(rig)
    await upstream.until(({ text }) => text.includes('/next'))
    second!.hangUp()
  },
)

t.test('an upstream that closes the idle connection: the request leaves on another, in its slot', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const { descriptors } = hand.writes.memory
  const before = hand.armed[0]!
  const descriptor = descriptors[before.index]
  for (const { socket } of upstream.connections) socket.end()
  await untilArmed(rig, hand, 0)
  // What was armed on it is not armed any more.
  await eventually(() => hand.armed[0]?.word !== before.word)
  t.throws(() => hand.send(rig, before), /cannot be claimed/, `nobody writes to descriptor ${descriptor} for it`)
  if (hand.armed.length > 0) hand.send(rig)
  else rig.pacer.runUntil(rig.pacer.now() + 20)
  t.equal((await client!.answer()).status, 200)
  t.equal((upstream.text.match(/GET \/1 /g) ?? []).length, 1, 'it was sent once')
})

t.test('a connection that breaks as the request is written: it is sent once more, in a slot of its own', async t => {
  let broken = false
  const answer = answering(OK)
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.includes('GET /1 ') && !broken) {
      broken = true
      incoming.socket.resetAndDestroy()
    } else answer(incoming)
  })
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  // It goes to the connection that has served already: only there a break may be the close of an idle one.
  hand.send(rig)
  await rig.until(({ queued }) => queued.length === 2)
  await untilArmed(rig, hand, 1)
  hand.send(rig)
  t.equal((await client!.answer()).status, 200)
  t.equal(upstream.text.match(/GET \/1 /g)?.length, 2)
})

t.test('a request that is written just as its connection is given up is sent once more', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const { writes } = hand
  let races = 0
  const tryRevoke = writes.tryRevoke.bind(writes)
  writes.tryRevoke = (index, generation) => {
    // The thread is faster by a moment.
    if (races === 0 && hand.armed.length > 0) {
      races += 1
      hand.send(rig)
    }
    return tryRevoke(index, generation)
  }
  for (const { socket } of upstream.connections) socket.end()
  await rig.until(({ queued, outcomes }) => races === 1 && (queued.length === 2 || outcomes.length === 2))
  rig.pacer.runUntil(rig.pacer.now() + 40)
  t.equal((await client!.answer()).status, 200)
})

t.test('bytes that nobody asked for: the connection is closed, and nothing is lost', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const before = hand.armed[0]!
  for (const { socket } of upstream.connections) socket.write(OK)
  await eventually(() => hand.armed[0]?.word !== before.word)
  t.throws(() => hand.send(rig, before), /cannot be claimed/)
  if (hand.armed.length > 0) hand.send(rig)
  else rig.pacer.runUntil(rig.pacer.now() + 20)
  const answer = await client!.answer()
  t.equal(answer.status, 200)
  await upstream.until(({ text }) => text.includes('GET /1 '))
})

t.test('a write that takes a part only: the main thread sends the rest', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url)
  const [first, second] = await queue(t, rig, ['/part', '/none'])
  await untilArmed(rig, hand, 1)
  hand.send(rig, hand.armed[0], 20)
  rig.proxy.context.shaper.wake()
  t.equal((await first!.answer()).status, 200)
  await untilArmed(rig, hand, 1)
  hand.send(rig, hand.armed[0], 0)
  rig.proxy.context.shaper.wake()
  t.equal((await second!.answer()).status, 200)
  t.same(upstream.requests, ['GET /alice', 'GET /part', 'GET /none'])
})

t.test('what does not fit is left to the main thread: bodies, Expect, heads above 4 kB', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url, { limits: { maxHeaderSize: 32_768 } })
  await queue(t, rig, [])
  const kinds = [
    post('body', '/body', 'X-Key: alice'),
    post('body', '/expect', 'X-Key: alice', 'Expect: 100-continue'),
    get(`/long?${'x'.repeat(4_096)}`, 'X-Key: alice'),
  ]
  for (const kind of kinds) {
    const client = await connect(t, rig)
    const before = rig.queued.length
    client.send(kind)
    await rig.until(({ queued }) => queued.length > before)
    await turns(50)
    rig.proxy.context.shaper.wake()
    t.same(hand.paths, [])
    rig.pacer.runUntil(rig.pacer.now() + 10)
    t.equal((await client.answer()).status < 300, true)
  }
  t.equal(upstream.requests.length, 4)
})

t.test('a reload takes back what is armed: what leaves after it has the new settings', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const config = { listen: '127.0.0.1:0', ...CLIENTS, upstream: { url: upstream.url } }
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const before = hand.armed[0]!
  t.match(hand.text(before), /Via:/)
  await rig.proxy.reload(parseConfig(JSON.stringify({ ...config, upstream: { url: upstream.url, via: false } })))
  t.throws(() => hand.send(rig, before), /cannot be claimed/)
  for (const entry of hand.armed) t.notMatch(hand.text(entry), /Via:/)
  rig.pacer.runUntil(rig.pacer.now() + 20)
  t.equal((await client!.answer()).status, 200)
  t.notMatch(upstream.text.slice(upstream.text.indexOf('GET /1 ')), /Via:/)
})

t.test('a reload that lowers maxInFlight takes note of what has been sent', async t => {
  const answer = answering(OK)
  const upstream = await rawUpstream(t, incoming => {
    if (/GET \/[12] /.test(incoming.text)) return
    answer(incoming)
  })
  const config = { listen: '127.0.0.1:0', ...CLIENTS }
  const { rig, hand } = await start(t, upstream.url)
  await queue(t, rig, ['/1', '/2', '/3'])
  await untilArmed(rig, hand, 2)
  hand.send(rig)
  rig.proxy.context.shaper.wake()
  await untilArmed(rig, hand, 1)
  t.equal(hand.paths[0], '/2')
  hand.send(rig)
  const lowered = { ...config, upstream: { url: upstream.url, maxInFlight: 1 } }
  await rig.proxy.reload(parseConfig(JSON.stringify(lowered)))
  const { gate } = rig.proxy.context.routes[0]!.lane
  t.same([gate.maxInFlight, gate.inFlight, gate.armed, hand.paths], [1, 2, 0, []])
})

t.test('what a meter route lets through leaves the place in flight of what is armed', async t => {
  const answer = answering(OK)
  const upstream = await rawUpstream(t, incoming => {
    if (!/GET \/(1|meter) /.test(incoming.text)) answer(incoming)
  })
  const config = {
    buckets: {
      client: { key: 'header:x-key', rate: '100/s', capacity: 50 },
      all: { key: 'all', rate: '1000/s', capacity: 50 },
    },
    routes: [
      { name: 'metered', match: { path: '/meter' }, mode: 'meter', buckets: ['all'] },
      { name: 'all', buckets: ['client'] },
    ],
    upstream: { url: upstream.url, maxInFlight: 1 },
  }
  const { rig, hand } = await start(t, upstream.url, config)
  await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const { gate } = rig.proxy.context.routes[0]!.lane
  const client = await connect(t, rig)
  client.send(get('/meter'))
  await upstream.until(({ text }) => text.includes('GET /meter '))
  t.same([gate.inFlight, gate.armed, hand.paths], [1, 0, []], 'it has the only place')
})

t.test('a request that was taken back does not take the write of another for its own', async t => {
  const upstream = await httpUpstream(t)
  const routes = [{ name: 'other', match: { path: '/other' } }, { name: 'all' }]
  const { rig, hand } = await start(t, upstream.url, { routes })
  const [bob] = await queue(t, rig, ['/1'], 'bob')
  await untilArmed(rig, hand, 1)
  const { index } = hand.armed[0]!
  const other = await connect(t, rig)
  other.send(get('/other', 'X-Key: bob'))
  await rig.until(({ queued }) => queued.includes('other'))
  t.same(hand.paths, [], 'taken back, as another lane waits for the bucket')
  rig.pacer.runUntil(rig.pacer.now() + 1)
  const [alice] = await queue(t, rig, ['/2'])
  await untilArmed(rig, hand, 1)
  t.equal(hand.armed[0]!.index, index)
  // The main thread releases Bob's before it takes note of Alice's.
  hand.send(rig)
  t.equal((await alice!.answer()).status, 200)
  t.equal((await bob!.answer()).status, 200)
  t.equal(upstream.requests.filter(request => request === 'GET /1').length, 1)
})

t.test('a pause takes back what is armed', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const { context } = rig.proxy
  context.shaper.engine.pause(context.routes[0]!.lane.gate, 500)
  t.same(hand.paths, [])
  rig.pacer.runUntil(rig.pacer.now() + 499)
  t.notMatch(upstream.text, /GET \/1 /)
  rig.pacer.runUntil(rig.pacer.now() + 2)
  t.equal((await client!.answer()).status, 200)
})

t.test('the main thread that finds an armed request after its slot sends it itself', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url)
  const clients = await queue(t, rig, ['/1', '/2', '/3'])
  await untilArmed(rig, hand, 2)
  for (const client of clients) {
    rig.pacer.runUntil(rig.pacer.now() + 12)
    rig.proxy.context.shaper.wake()
    t.equal((await client.answer()).status, 200)
  }
  t.same(upstream.requests, ['GET /alice', 'GET /1', 'GET /2', 'GET /3'])
})

t.test('a shutdown answers what is armed and not sent', async t => {
  const upstream = await httpUpstream(t)
  const { rig, hand } = await start(t, upstream.url)
  const [client] = await queue(t, rig, ['/1'])
  await untilArmed(rig, hand, 1)
  const before = hand.armed[0]!
  const drained = rig.proxy.drain(0)
  await turns()
  rig.clock.runUntil(rig.clock.now())
  t.equal((await client!.answer()).status, 503)
  t.throws(() => hand.send(rig, before), /cannot be claimed/)
  rig.clock.runUntil(rig.clock.now() + 60_000)
  await drained
  t.same(upstream.requests, ['GET /alice'])
})

t.test('a request that takes the connection of what was armed behind it does not hold that up', async t => {
  const answer = answering(OK)
  const upstream = await rawUpstream(t, incoming => {
    if (!incoming.text.includes('/slow')) answer(incoming)
  })
  const config = {
    buckets: { ...CLIENTS.buckets, all: { key: 'all', rate: '1000/s', capacity: 50 } },
    routes: [{ name: 'all', buckets: ['client', 'all'] }],
  }
  const { rig, hand } = await start(t, `http://localhost:${upstream.port}`, config)
  await queue(t, rig, [], 'bob')
  const connecting: (() => void)[] = []
  const { lookup } = dns
  t.teardown(() => Object.assign(dns, { lookup }))
  // No other connection opens yet.
  const held = (...args: Parameters<typeof lookup>): void => void connecting.push(() => lookup(...args))
  Object.assign(dns, { lookup: held })
  const bob = await connect(t, rig)
  bob.send(get('/2', 'X-Key: bob'))
  await untilArmed(rig, hand, 1)
  rig.pacer.runUntil(rig.pacer.now() + 5)
  const alice = await connect(t, rig)
  alice.send(get('/slow', 'X-Key: alice'))
  await upstream.until(({ text }) => text.includes('/slow'))
  for (const open of connecting) open()
  await untilArmed(rig, hand, 1)
  t.same(hand.paths, ['/2'])
  hand.send(rig)
  t.equal((await bob.answer()).status, 200)
  alice.hangUp()
})

t.test('a request that is written while the one before it finds no connection is answered', async t => {
  const upstream = await rawUpstream(t, answering(OK))
  const config = {
    buckets: { ...CLIENTS.buckets, all: { key: 'all', rate: '1000/s', capacity: 50 } },
    routes: [{ name: 'all', buckets: ['client', 'all'] }],
  }
  const { rig, hand } = await start(t, `http://localhost:${upstream.port}`, config)
  await queue(t, rig, [], 'bob')
  const connecting: (() => void)[] = []
  const { lookup } = dns
  t.teardown(() => Object.assign(dns, { lookup }))
  // No other connection opens yet.
  const held = (...args: Parameters<typeof lookup>): void => void connecting.push(() => lookup(...args))
  Object.assign(dns, { lookup: held })
  const bob = await connect(t, rig)
  bob.send(get('/2', 'X-Key: bob'))
  await untilArmed(rig, hand, 1)
  rig.pacer.runUntil(rig.pacer.now() + 9.5)
  const { shaper } = rig.proxy.context
  const admit = shaper.admit.bind(shaper)
  shaper.admit = (...args) => {
    const verdict = admit(...args)
    // It passes at once, and the thread is faster than the search for a connection.
    hand.send(rig)
    return verdict
  }
  const alice = await connect(t, rig)
  alice.send(get('/alice', 'X-Key: alice'))
  t.equal((await bob.answer()).status, 200)
  for (const open of connecting) open()
  t.equal((await alice.answer()).status, 200)
  t.equal((upstream.text.match(/GET \/2 /g) ?? []).length, 1, 'it was sent once')
})
