/** Several servers behind one queue (contract 14). */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { HealthCheck } from '../../src/proxy/upstream/health-check.js'
import { Hand } from './hand.js'
import {
  answering,
  askOnce,
  connect,
  eventually,
  get,
  type HttpUpstream,
  httpUpstream,
  OK,
  passBoth,
  post,
  type Rig,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const FAST = { all: { key: 'all', rate: '1000/s', capacity: 100 } }
const VIRTUAL = { virtualClock: true }

const configOf = (servers: readonly unknown[], more: object = {}, rest: object = {}) => ({
  buckets: FAST,
  routes: [{ name: 'all', mode: 'meter' }],
  upstream: { servers, ...more },
  ...rest,
})

/** Answers when it is told to. */
async function holding(t: Teardown) {
  const held: (() => void)[] = []
  const upstream = await httpUpstream(t, (_req, res) => held.push(() => res.end('ok')))
  return { upstream, held, url: upstream.url }
}

async function several(t: Teardown, count: number): Promise<HttpUpstream[]> {
  const all: HttpUpstream[] = []
  for (let at = 0; at < count; at += 1) all.push(await httpUpstream(t))
  return all
}

const counts = (servers: readonly { requests: readonly string[] }[]) => servers.map(({ requests }) => requests.length)
const placesOf = ({ proxy }: Rig) => proxy.context.routes[0]!.upstream.servers.map(({ place }) => place)

/** A port at which nobody listens. */
async function deadUrl(t: Teardown): Promise<string> {
  const dead = await httpUpstream(t)
  await dead.close()
  return dead.url
}

t.test('idle servers take turns, and busy ones get what their weight says', async t => {
  const servers = await several(t, 3)
  const rig = await startRig(t, configOf(servers.map(({ url }) => url)))
  for (let at = 0; at < 9; at += 1) await askOnce(t, rig, get())
  t.same(counts(servers), [3, 3, 3])
  const [a, b] = [await holding(t), await holding(t)]
  const heavy = await startRig(t, configOf([a.url, { url: b.url, weight: 2 }]))
  const clients = []
  for (let at = 0; at < 6; at += 1) {
    const client = await connect(t, heavy)
    client.send(get())
    await eventually(() => heavy.began === at + 1)
    clients.push(client)
  }
  await eventually(() => a.held.length + b.held.length === 6)
  t.same([a.held.length, b.held.length], [2, 4])
  for (const answer of [...a.held, ...b.held]) answer()
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.same(
    placesOf(heavy).map(({ load }) => load),
    [0, 0],
  )
})

t.test('a server that cannot be connected to costs nobody an error and no slot', async t => {
  const [dead, live] = [await deadUrl(t), await httpUpstream(t)]
  for (const mode of ['meter', 'shape', 'off']) {
    const rig = await startRig(
      t,
      configOf(
        [dead, live.url],
        {},
        { routes: [{ name: 'all', mode }], buckets: { all: { key: 'all', rate: '1/s', capacity: 9 } } },
      ),
      VIRTUAL,
    )
    const before = live.requests.length
    for (let at = 0; at < 7; at += 1) {
      const asked = askOnce(t, rig, get())
      if (mode === 'shape') await rig.until(({ queued, outcomes }) => queued.length >= at || outcomes.length > at)
      await passBoth(rig, 1_000, 250)
      t.equal((await asked).status, 200, `${mode} ${at}`)
    }
    t.equal(live.requests.length - before, 7)
    t.same(rig.outcomes.length, 7, 'each has one end')
    t.same(
      placesOf(rig).map(({ load }) => load),
      [0, 0],
    )
  }
})

t.test('the breaker is one per server, and 503 begins when all are down', async t => {
  const [one, two] = await several(t, 2)
  const rig = await startRig(t, configOf([one!.url, two!.url], { breaker: { hold: '0s' } }), VIRTUAL)
  await one!.close()
  for (let at = 0; at < 20; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  const [first, second] = rig.proxy.context.routes[0]!.upstream.servers
  t.same([first!.breaker!.isOpen, second!.breaker!.isOpen], [true, false])
  t.equal(rig.failures.length, 5, 'after five failures it is left alone')
  await two!.close()
  for (let at = 0; at < 5; at += 1) await askOnce(t, rig, get())
  const down = await askOnce(t, rig, get())
  t.same([down.status, down.header('retry-after')], [503, '1'])
})

t.test('a server that comes back is probed by one request, and gets its share again', async t => {
  const dead = await httpUpstream(t)
  const live = await httpUpstream(t)
  const rig = await startRig(t, configOf([dead.url, live.url], { breaker: { failures: 1 } }), VIRTUAL)
  const { port } = dead
  await dead.close()
  t.equal((await askOnce(t, rig, get())).status, 200)
  await passBoth(rig, 500)
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.equal(rig.failures.length, 1, 'no probe before its time')
  await passBoth(rig, 600)
  t.equal((await askOnce(t, rig, get())).status, 200, 'a probe that fails costs nothing')
  t.equal(rig.failures.length, 2)
  const back = await httpUpstream(t)
  await reload(rig, configOf([back.url, live.url], { breaker: { failures: 1 } }))
  for (let at = 0; at < 4; at += 1) await askOnce(t, rig, get())
  t.equal(back.requests.length, 2, `${port} is gone, and its successor takes half`)
})

function reload(rig: Rig, config: object): Promise<unknown> {
  return rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...config })))
}

t.test('an idempotent request that was sent and failed goes elsewhere, others are answered 502', async t => {
  const broken = await rawUpstream(t, ({ socket }) => socket.destroy())
  const live = await httpUpstream(t)
  const rig = await startRig(t, configOf([broken.url, live.url], { breaker: false }))
  const answers = []
  for (let at = 0; at < 4; at += 1) answers.push((await askOnce(t, rig, get())).status)
  t.same(answers, [200, 200, 200, 200])
  t.equal(broken.requests > 0, true)
  const put = get('/').replace('GET', 'PUT').replace('\r\n\r\n', '\r\nContent-Length: 4\r\n\r\nbody')
  for (let at = 0; at < 2; at += 1) t.equal((await askOnce(t, rig, put)).status, 200, 'with its body')
  const posted = []
  for (let at = 0; at < 2; at += 1) posted.push((await askOnce(t, rig, post('body'))).status)
  t.same(posted.sort(), [200, 502])
  const alone = await startRig(
    t,
    configOf([broken.url, broken.url.replace('127.0.0.1', '127.0.0.2')], { breaker: false }),
  )
  t.equal((await askOnce(t, alone, get())).status, 502, 'each server is tried once')
})

t.test('a request that was sent again has a slot of its own', async t => {
  const broken = await rawUpstream(t, ({ socket }) => socket.destroy())
  const times: number[] = []
  const live = await httpUpstream(t, (_req, res) => {
    times.push(rig.pacer.now())
    res.end('ok')
  })
  const rig: Rig = await startRig(
    t,
    {
      upstream: { servers: [broken.url, live.url], breaker: false },
      buckets: { all: { key: 'all', rate: '1/s', capacity: 9 } },
    },
    VIRTUAL,
  )
  const asked = askOnce(t, rig, get())
  await broken.until(({ requests }) => requests === 1)
  await eventually(() => rig.proxy.context.shaper.queued === 1)
  await passBoth(rig, 1_100)
  t.equal((await asked).status, 200)
  t.ok(times[0]! >= 1_000, `sent again at ${times[0]}`)
})

t.test('maxInFlight of servers bounds each, and what waits leaves when one has a place', async t => {
  const [a, b] = [await holding(t), await holding(t)]
  const rig = await startRig(t, {
    upstream: {
      servers: [
        { url: a.url, maxInFlight: 1 },
        { url: b.url, maxInFlight: 2 },
      ],
    },
    buckets: { all: { key: 'all', rate: '100000/s', capacity: 50, burst: 50 } },
  })
  const clients = []
  for (let at = 0; at < 5; at += 1) {
    const client = await connect(t, rig)
    client.send(get())
    clients.push(client)
  }
  await eventually(() => rig.proxy.context.shaper.queued === 2 && a.held.length + b.held.length === 3)
  t.same([a.held.length, b.held.length], [1, 2])
  a.held.shift()!()
  await eventually(() => a.held.length === 1)
  t.equal(rig.proxy.context.shaper.queued, 1)
  b.held.shift()!()
  await eventually(() => {
    rig.pacer.runUntil(rig.pacer.now() + 1)
    return b.held.length === 2
  })
  for (const answer of [...a.held, ...b.held]) answer()
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
})

t.test('checks take a server down and bring it up again, and its unanswered requests go elsewhere', async t => {
  const isWell = { one: true }
  const held: (() => void)[] = []
  let checks = 0
  const one = await httpUpstream(t, (req, res) => {
    if (req.url !== '/healthz') return void held.push(() => res.end('one'))
    checks += 1
    res.writeHead(isWell.one ? 200 : 503).end()
  })
  const two = await httpUpstream(t, (_req, res) => res.end('two'))
  const health = { path: '/healthz', interval: '1s', rise: 2, fall: 3 }
  const rig = await startRig(t, configOf([one.url, two.url], { health }), VIRTUAL)
  const get1 = await connect(t, rig)
  get1.send(get('/stuck'))
  await eventually(() => held.length === 1)
  isWell.one = false
  const [place] = placesOf(rig)
  for (let second = 0; second < 6 && !place!.isDown; second += 1) {
    const before = checks
    await passBoth(rig, 1_000, 1_000)
    await eventually(() => checks > before)
    await turns()
  }
  t.equal(place!.isDown, true)
  const answer = await get1.answer()
  t.same([answer.status, answer.text], [200, 'two'], 'what it had not answered was sent to another')
  for (let at = 0; at < 4; at += 1) t.equal((await askOnce(t, rig, get())).text, 'two')
  isWell.one = true
  for (let second = 0; second < 6 && place!.isDown; second += 1) {
    const before = checks
    await passBoth(rig, 1_000, 1_000)
    await eventually(() => checks > before)
    await turns()
  }
  t.equal(place!.isDown, false)
  const clients = []
  for (let at = 0; at < 2; at += 1) {
    const client = await connect(t, rig)
    client.send(get())
    clients.push(client)
  }
  await eventually(() => held.length === 2)
  held[1]!()
})

t.test('a hash pick keeps a client at its server while that is up', async t => {
  const servers = await several(t, 3)
  const urls = servers.map(({ url }) => url)
  const rig = await startRig(t, configOf(urls, { pick: { hash: 'header:x-user' }, breaker: { failures: 1 } }))
  const serverOf = async (user: number): Promise<number> => {
    const before = counts(servers)
    await askOnce(t, rig, get('/', `X-User: ${user}`))
    return counts(servers).findIndex((count, at) => count > before[at]!)
  }
  const users = Array.from({ length: 12 }, (_, at) => at)
  const first = []
  for (const user of users) first.push(await serverOf(user))
  t.ok(new Set(first).size > 1, `${first}`)
  for (const user of users) t.equal(await serverOf(user), first[user])
  await servers[0]!.close()
  for (const user of users) {
    const now = await serverOf(user)
    if (first[user] === 0) t.not(now, 0)
    else t.equal(now, first[user])
  }
})

t.test('a reload adds and removes servers, and a removed one finishes what it has', async t => {
  const a = await holding(t)
  const [b, c] = await several(t, 2)
  const rig = await startRig(t, configOf([a.url, b!.url]))
  const waiting = await connect(t, rig)
  waiting.send(get('/held'))
  await eventually(() => a.held.length === 1)
  const { gate } = rig.proxy.context.routes[0]!.upstream
  await reload(rig, configOf([b!.url, { url: c!.url, weight: 3 }]))
  t.equal(rig.proxy.context.routes[0]!.upstream.gate, gate, 'its queue goes on')
  for (let at = 0; at < 8; at += 1) await askOnce(t, rig, get())
  t.same([a.upstream.requests.length, b!.requests.length, c!.requests.length], [1, 2, 6])
  a.held[0]!()
  t.equal((await waiting.answer()).status, 200)
  t.equal(gate.inFlight, 0)
})

t.test('a reload that changes other settings, too, keeps what is known of each server', async t => {
  const a = await holding(t)
  const b = await httpUpstream(t)
  const rig = await startRig(t, configOf([{ url: a.url, maxInFlight: 1 }, b.url]))
  const waiting = await connect(t, rig)
  waiting.send(get('/held'))
  await eventually(() => a.held.length === 1)
  await reload(rig, configOf([{ url: a.url, maxInFlight: 1 }, b.url], { idleTimeout: '59s' }))
  for (let at = 0; at < 4; at += 1) await askOnce(t, rig, get())
  t.equal(a.upstream.requests.length, 1, 'it is still full')
  a.held[0]!()
  t.equal((await waiting.answer()).status, 200)
  for (let at = 0; at < 2; at += 1) waiting.send(get())
  await eventually(() => a.held.length === 2)
  a.held[1]!()
  for (let at = 0; at < 2; at += 1) t.equal((await waiting.answer()).status, 200)
})

t.test('WebSockets go elsewhere, too, and count at their server until they end', async t => {
  const switching = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
  const live = await rawUpstream(t, ({ socket, text }) => {
    if (text.endsWith('\r\n\r\n')) socket.write(switching)
  })
  const rig = await startRig(t, configOf([await deadUrl(t), { url: live.url, connections: 1 }], { breaker: false }))
  const handshake = get(
    '/',
    'Connection: Upgrade',
    'Upgrade: websocket',
    'Sec-WebSocket-Key: a',
    'Sec-WebSocket-Version: 13',
  )
  const client = await connect(t, rig)
  client.send(handshake)
  await client.until(({ rest }) => rest.startsWith('HTTP/1.1 101'))
  const [, place] = placesOf(rig)
  t.same([place!.inFlight, place!.tunnels], [0, 1])
  client.hangUp()
  await eventually(() => place!.tunnels === 0)
})

t.test('what is armed goes to the servers in turn, and elsewhere when its server goes down', async t => {
  const [a, b] = [await rawUpstream(t, answering(OK)), await rawUpstream(t, answering(OK))]
  const hand = new Hand()
  const rig = await startRig(
    t,
    { upstream: { servers: [a.url, b.url] }, buckets: { all: { key: 'all', rate: '100/s', capacity: 50 } } },
    { writes: hand.writes, virtualClock: true },
  )
  const first = await connect(t, rig)
  await first.ask(get('/0'))
  const second = first.ask(get('/00'))
  await passBoth(rig, 20, 10)
  await second
  await first.ask(get('/000'))
  const clients = []
  for (let at = 1; at <= 4; at += 1) {
    const client = await connect(t, rig)
    const before = rig.queued.length
    client.send(get(`/${at}`))
    await rig.until(({ queued }) => queued.length > before)
    clients.push(client)
  }
  await eventually(() => {
    if (hand.armed.length < 2) rig.proxy.context.shaper.wake()
    return hand.armed.length >= 2
  })
  const places = placesOf(rig)
  t.same(
    places.map(({ armed }) => armed),
    [1, 1],
  )
  places[0]!.isDown = true
  rig.proxy.context.routes[0]!.upstream.serverChanged(a.url, 'failing')
  t.equal(places[0]!.inFlight, 0, 'nothing is armed towards it')
  places[0]!.isDown = false
  rig.proxy.context.shaper.wake()
  hand.sendUntil(rig, 200)
  rig.proxy.context.shaper.wake()
  await passBoth(rig, 200, 10)
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.same(
    places.map(({ load }) => load),
    [0, 0],
  )
})

/** Answers its checks as it is told to. Other requests are held, or answered with its name. */
async function checkable(t: Teardown, name: string, holds: 'holds' | 'answers' = 'answers') {
  const server = { isWell: true, checks: 0, held: [] as (() => void)[], url: '' }
  const upstream = await httpUpstream(t, (req, res) => {
    if (req.url === '/healthz') {
      server.checks += 1
      res.writeHead(server.isWell ? 200 : 503).end()
    } else if (holds === 'holds') server.held.push(() => res.end(name))
    else res.end(name)
  })
  server.url = upstream.url
  return server
}

const HEALTH = { path: '/healthz', interval: '1s', rise: 1, fall: 1 }

/** Lets checks pass until the place of a server is down, or is up again. */
async function checkUntil(rig: Rig, server: { isWell: boolean; checks: number }, at: number, isWell: boolean) {
  server.isWell = isWell
  const isDown = () => placesOf(rig)[at]!.isDown
  for (let second = 0; second < 8 && isDown() === isWell; second += 1) {
    const before = server.checks
    await passBoth(rig, 1_000, 500)
    await eventually(() => server.checks > before)
    await turns()
  }
  await eventually(() => isDown() !== isWell)
}

for (const isRead of [true, false]) {
  t.test(
    `a check times out while this process stands still, and its answer is ${isRead ? '' : 'not '}read then`,
    async t => {
      let lateness = 0
      const clock = createVirtualClock({ lateness: () => lateness })
      const asked: { responseStarted(head: { status: number }): void }[] = []
      const send = (_request: unknown, handler: (typeof asked)[number]) => {
        asked.push(handler)
        return () => undefined
      }
      const place = { isDown: false }
      const owner = { isDown: false, serverChanged: () => undefined }
      const server = { clock, place, owner, url: 'http://a', authority: 'a', forsake: () => undefined }
      const settings = { path: '/', interval: 1_000, timeout: 500, status: [200], rise: 1, fall: 1 }
      new HealthCheck(settings, server as never, { send, close: () => undefined } as never).join()
      const askedAt = clock.next()
      lateness = 700
      clock.runUntil(askedAt)
      t.equal(asked.length, 1)
      lateness = 0
      clock.runUntil(askedAt + 1_600)
      t.equal(place.isDown, false, 'the timer was 700 ms late, and up to 500 ms more are given')
      if (isRead) asked[0]!.responseStarted({ status: 200 })
      clock.runUntil(askedAt + 1_800)
      t.equal(place.isDown, !isRead)
    },
  )
}

t.test('a probe that was due before all were down passes once they are', async t => {
  const [a, b] = [await httpUpstream(t), await checkable(t, 'b')]
  const { port } = a
  const rig = await startRig(t, configOf([a.url, b.url], { breaker: { failures: 1 }, health: HEALTH }), VIRTUAL)
  placesOf(rig)[0]!.isBlocked = true
  placesOf(rig)[0]!.probe = true
  await checkUntil(rig, b, 1, false)
  t.equal((await askOnce(t, rig, get())).status, 200, `by the probe of ${port}`)
})

t.test('a server that its check finds down gets no probe while all are down', async t => {
  const [a, b] = [await checkable(t, 'a'), await checkable(t, 'b')]
  const rig = await startRig(
    t,
    configOf([a.url, b.url], { breaker: { failures: 1, probe: '10s', hold: '1s' }, health: { ...HEALTH, rise: 60 } }),
    VIRTUAL,
  )
  await checkUntil(rig, a, 0, false)
  await checkUntil(rig, b, 1, false)
  const { gate, servers } = rig.proxy.context.routes[0]!.upstream
  servers[0]!.breaker!.failed('usual', { detail: 'broken', unconnected: true }, 'a')
  await passBoth(rig, 12_000, 1_000)
  t.equal(placesOf(rig)[0]!.probe, true, 'it would be due')
  t.equal(gate.probe, false)
  t.equal((await askOnce(t, rig, get())).status, 503)
})

t.test('a request that is sent to the same server again counts there until its last answer', async t => {
  const a = await rawUpstream(t, ({ socket }, index) => {
    if (index === 0) socket.write('HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n')
  })
  const b = await httpUpstream(t, (_req, res) => res.end('b'))
  const more = { retry: { status: [503], max: 2 }, breaker: false }
  const config = (servers: readonly unknown[]) => ({ ...configOf(servers, more), buckets: FAST, routes: [{}] })
  const rig = await startRig(t, config([a.url, { url: b.url, backup: true }]))
  const client = await connect(t, rig)
  client.send(get())
  await eventually(() => {
    rig.pacer.runUntil(rig.pacer.now() + 10)
    return a.requests === 2
  })
  a.connections[0]!.socket.write('no')
  await eventually(() => placesOf(rig)[0]!.inFlight === 1)
  await reload(rig, config([b.url]))
  a.connections[1]!.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na')
  t.equal((await client.answer()).text, 'a', 'its server was not closed under it')
})

t.test('a reload from several servers to one URL', async t => {
  const [a, b] = await several(t, 2)
  const rig = await startRig(t, configOf([a!.url, b!.url]))
  await askOnce(t, rig, get())
  await reload(rig, { ...configOf([]), upstream: { url: a!.url } })
  for (let at = 0; at < 3; at += 1) t.equal((await askOnce(t, rig, get())).status, 200)
  t.same(
    rig.proxy.context.routes[0]!.upstream.servers.map(({ url }) => url),
    [a!.url],
  )
})

t.test('a reload without checks forgets what they have found', async t => {
  const [a, b] = [await checkable(t, 'a'), await checkable(t, 'b')]
  const rig = await startRig(t, configOf([a.url, b.url], { health: HEALTH }), VIRTUAL)
  await checkUntil(rig, a, 0, false)
  await reload(rig, configOf([a.url, b.url], { health: { ...HEALTH, timeout: '900ms' } }))
  t.equal(placesOf(rig)[0]!.isDown, true, 'another check goes on with it')
  await reload(rig, configOf([a.url, b.url]))
  const answers = []
  for (let at = 0; at < 4; at += 1) answers.push((await askOnce(t, rig, get())).text)
  t.same(answers.sort(), ['a', 'a', 'b', 'b'])
})

t.test('what waits for servers that are all down is refused after the hold, reload or not', async t => {
  const [a, b] = [await checkable(t, 'a'), await checkable(t, 'b')]
  const config = (idleTimeout: string) => ({
    ...configOf([a.url, b.url], { health: { ...HEALTH, rise: 60 }, idleTimeout, breaker: { hold: '5s' } }),
    routes: [{}],
  })
  const rig = await startRig(t, config('60s'), VIRTUAL)
  await checkUntil(rig, a, 0, false)
  await checkUntil(rig, b, 1, false)
  const client = await connect(t, rig)
  client.send(get())
  await eventually(() => rig.proxy.context.shaper.queued === 1)
  await reload(rig, config('59s'))
  await passBoth(rig, 6_000, 500)
  t.equal((await client.answer()).status, 503)
})

t.test('a request that waits for the connection of an unlimited one leaves when that hangs up', async t => {
  const a = await holding(t)
  const off = { name: 'off', match: { path: '/off' }, mode: 'off' }
  const rig = await startRig(t, {
    ...configOf([
      { url: a.url, connections: 1 },
      { url: await deadUrl(t), backup: true },
    ]),
    routes: [off, { name: 'all' }],
  })
  const first = await connect(t, rig)
  first.send(get('/off'))
  await eventually(() => a.held.length === 1)
  const second = await connect(t, rig)
  second.send(get())
  await eventually(() => rig.proxy.context.shaper.queued === 1)
  first.hangUp()
  await eventually(() => {
    rig.pacer.runUntil(rig.pacer.now() + 10)
    return a.held.length === 2
  })
  a.held[1]!()
  t.equal((await second.answer()).status, 200)
})

t.test('`connections` of a server holds for unlimited requests, too, whatever the upstream bounds', async t => {
  const [a, b] = [await holding(t), await holding(t)]
  const rig = await startRig(t, {
    ...configOf([a.url, { url: b.url, connections: 1 }].reverse(), { maxInFlight: 10 }),
    routes: [{ name: 'off', mode: 'off' }],
  })
  for (let at = 0; at < 6; at += 1) {
    const client = await connect(t, rig)
    client.send(get())
    await eventually(() => rig.began === at + 1)
  }
  await eventually(() => a.held.length === 3)
  await turns()
  t.equal(b.held.length, 1)
})

t.test('an unlimited request that is sent again may be the probe of a server', async t => {
  const [a, b] = [await rawUpstream(t), await httpUpstream(t, (_req, res) => res.end('b'))]
  const rig = await startRig(
    t,
    { ...configOf([a.url, b.url], { breaker: { failures: 3, probe: '1h' } }), routes: [{ name: 'off', mode: 'off' }] },
    VIRTUAL,
  )
  const [, server] = rig.proxy.context.routes[0]!.upstream.servers
  for (let at = 0; at < 3; at += 1) server!.breaker!.failed('usual', { detail: 'broken', unconnected: true }, 'a')
  const client = await connect(t, rig)
  client.send(get())
  await a.until(({ requests }) => requests === 1)
  server!.place.probe = true
  a.connections[0]!.socket.destroy()
  t.equal((await client.answer()).text, 'b')
  t.equal(server!.breaker!.isOpen, false, 'its breaker has heard of it')
})

t.test('a reload while a server warms up does not leave it with a part for ever', async t => {
  const [a, b] = await several(t, 2)
  const config = (idleTimeout: string) => configOf([a!.url, b!.url], { warmUp: '10s', idleTimeout })
  const rig = await startRig(t, config('60s'), VIRTUAL)
  const upstream = rig.proxy.context.routes[0]!.upstream
  upstream.warmUp(rig.pacer.now())
  await passBoth(rig, 2_000, 500)
  t.ok(upstream.part < 1)
  await reload(rig, config('59s'))
  await passBoth(rig, 20_000, 1_000)
  t.same(
    placesOf(rig).map(({ part }) => part),
    [1, 1],
  )
})

t.test('what a removed server still has takes no place of the others', async t => {
  const [a, b] = [await holding(t), await holding(t)]
  const [one, two] = [
    { url: a.url, maxInFlight: 1 },
    { url: b.url, maxInFlight: 1 },
  ]
  for (const more of [{}, { idleTimeout: '59s' }]) {
    const rig = await startRig(t, configOf([one, two]))
    const first = await connect(t, rig)
    first.send(get())
    await eventually(() => a.held.length + b.held.length === 1)
    const isFirst = a.held.length === 1
    await reload(rig, configOf([isFirst ? two : one, { url: await deadUrl(t), backup: true }], more))
    const second = await connect(t, rig)
    second.send(get())
    await eventually(() => a.held.length + b.held.length === 2)
    for (const answer of [...a.held.splice(0), ...b.held.splice(0)]) answer()
    t.same([(await first.answer()).status, (await second.answer()).status], [200, 200])
  }
})

t.test('a request that meets the close of an idle connection at one server after another is answered', async t => {
  const closing = () =>
    rawUpstream(t, incoming => {
      const asked = incoming.text.split('\r\n\r\n').length - 1
      if (asked === 1) incoming.socket.write(OK)
      else incoming.socket.destroy()
    })
  const [a, b, c] = [await closing(), await closing(), await httpUpstream(t, (_req, res) => res.end('c'))]
  const rig = await startRig(t, configOf([a.url, b.url, c.url], { pick: 'round-robin', breaker: false }))
  for (let at = 0; at < 9; at += 1) t.equal((await askOnce(t, rig, get())).status, 200, `${at}`)
})

t.test(
  'a request that waits for a connection to a server that goes down goes elsewhere, whatever its method',
  async t => {
    const [a, b] = [await checkable(t, 'a', 'holds'), await checkable(t, 'b')]
    const rig = await startRig(
      t,
      {
        ...configOf(
          [
            { url: a.url, connections: 1 },
            { url: b.url, backup: true },
          ],
          { health: HEALTH },
        ),
        routes: [{ name: 'off', mode: 'off' }],
      },
      VIRTUAL,
    )
    const clients = []
    for (const ask of [post('one'), post('two')]) {
      const client = await connect(t, rig)
      client.send(ask)
      await eventually(() => placesOf(rig)[0]!.ungated === clients.length + 1)
      clients.push(client)
    }
    await eventually(() => a.held.length === 1)
    await checkUntil(rig, a, 0, false)
    t.equal((await clients[1]!.answer()).text, 'b')
    t.equal(placesOf(rig)[0]!.ungated, 1, 'the other has been sent, and is not repeated')
    a.held[0]!()
    t.equal((await clients[0]!.answer()).text, 'a')
  },
)

t.test('checks that fail at all servers cut off no request', async t => {
  const [a, b] = [await checkable(t, 'a', 'holds'), await checkable(t, 'b', 'holds')]
  const rig = await startRig(t, configOf([a.url, b.url], { health: { ...HEALTH, rise: 60 } }), VIRTUAL)
  const client = await connect(t, rig)
  client.send(get())
  await eventually(() => a.held.length + b.held.length === 1)
  const [other, its] = a.held.length === 1 ? [b, a] : [a, b]
  await checkUntil(rig, other, other === a ? 0 : 1, false)
  await checkUntil(rig, its, its === a ? 0 : 1, false)
  its.held[0]!()
  t.equal((await client.answer()).status, 200)
})
