/** `upstream.connections`: how many connections there are to an upstream, whoever needs one. */
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import {
  type Client,
  connect,
  eventually,
  get,
  OK,
  pass,
  post,
  type Rig,
  type RigOptions,
  startRig,
  turns,
} from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const UPGRADE = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
const SWITCHED = 'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'

/** A route of each kind. */
const ROUTES = [
  { name: 'off', match: { path: '/off*' }, mode: 'off' },
  { name: 'dry', match: { path: '/dry*' }, dryRun: true },
  { name: 'meter', match: { path: '/meter*' }, mode: 'meter' },
  { name: 'shape' },
]
const FAST = { all: { key: 'all', rate: '1000/s', capacity: 1_000 } }

interface Held {
  readonly path: string
  answer(): void
}

/** An upstream that keeps its connections, switches protocols at once, and answers all else when told to. */
async function upstreamOf(t: Teardown, { delay }: { delay?: () => number } = {}) {
  const sockets: { socket: Socket; ended: boolean }[] = []
  const held: Held[] = []
  /** Paths in the order in which they came. */
  const paths: string[] = []
  const seen = { most: 0 }
  const server = createServer({ noDelay: true }, socket => {
    const here = { socket, ended: false }
    sockets.push(here)
    const known = sockets.length
    const end = (): void => {
      here.ended = true
    }
    socket.on('end', end).on('close', end).on('error', end)
    // What was closed before this one was opened is known to be closed a few turns later.
    void turns(4).then(() => {
      seen.most = Math.max(seen.most, sockets.slice(0, known).filter(({ ended }) => !ended).length)
    })
    socket.on('data', data => {
      const text = data.toString('latin1')
      const path = / (\S+) HTTP/.exec(text)?.[1]
      if (path === undefined) return
      paths.push(path)
      if (/^Upgrade:/im.test(text)) return void socket.write(SWITCHED)
      const answer = (): void => void (socket.destroyed || socket.write(OK))
      if (delay === undefined) held.push({ path, answer })
      else setTimeout(answer, delay())
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const { socket } of sockets) socket.destroy()
    server.close()
  })
  const open = (): number => sockets.filter(({ ended }) => !ended).length
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    held,
    paths,
    seen,
    open,
    /** Waits until so many requests have come. */
    async came(count: number): Promise<void> {
      await eventually(() => paths.length >= count)
      await turns()
    },
    /** Waits until so many connections are open. */
    async settled(count: number): Promise<void> {
      await eventually(() => open() === count)
      await turns()
    },
  }
}

function config(upstream: object, more: object = {}): object {
  return { upstream, buckets: FAST, routes: ROUTES, ...more }
}

/** Sends a request on a connection of its own. Returns when it has come. */
async function asking(t: Teardown, rig: Rig, path: string, ...headers: string[]): Promise<Client> {
  const client = await connect(t, rig)
  const { began } = rig
  client.send(get(path, ...headers))
  await eventually(() => rig.began > began)
  await turns()
  return client
}

const tunnel = (t: Teardown, rig: Rig, path: string): Promise<Client> => asking(t, rig, path, ...UPGRADE)

function gateOf(rig: Rig) {
  return rig.proxy.context.routes.at(-1)!.lane.gate
}

const REAL: RigOptions = { realPacer: true }

t.test('off routes and dry runs share the connections: they wait their turn, and none is rejected', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 2 }), REAL)
  const paths = ['/off1', '/dry1', '/off2', '/dry2', '/off3']
  const clients: Client[] = []
  for (const path of paths) clients.push(await asking(t, rig, path))
  await upstream.came(2)
  t.same(upstream.paths, ['/off1', '/dry1'])
  for (let count = 0; count < paths.length; count += 1) {
    upstream.held[count]!.answer()
    t.equal((await clients[count]!.answer()).status, 200)
    await upstream.came(Math.min(count + 3, paths.length))
  }
  t.same(upstream.paths, paths, 'first come, first served')
  t.equal(upstream.seen.most, 2)
})

t.test('what waits at the gate and what waits outside of it take turns', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 1 }))
  const paths = ['/1', '/off1', '/off2', '/2', '/3', '/off3', '/off4']
  const clients: Client[] = []
  for (const path of paths) {
    clients.push(await asking(t, rig, path))
    // Its slot comes.
    await pass(rig, rig.pacer.now() + 5, 1)
  }
  for (let count = 1; count <= paths.length; count += 1) {
    await upstream.came(count)
    t.equal(upstream.paths.length, count, 'one at a time')
    // The slot of the next comes.
    await pass(rig, rig.pacer.now() + 5, 1)
    upstream.held[count - 1]!.answer()
  }
  t.same(upstream.paths, ['/1', '/off1', '/off2', '/2', '/off3', '/3', '/off4'])
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.equal(upstream.seen.most, 1)
})

t.test('a request is released only when there is a connection for it', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 2 }), REAL)
  const off = await asking(t, rig, '/off')
  const first = await asking(t, rig, '/1')
  await upstream.came(2)
  const second = await asking(t, rig, '/2')
  await rig.until(({ queued }) => queued.length === 1)
  await new Promise(resolve => setTimeout(resolve, 20))
  t.equal(rig.released.length, 1, 'the second waits in its queue')
  t.equal((await (await asking(t, rig, '/meter')).answer()).status, 503, 'in meter there is no room')
  upstream.held[0]!.answer()
  await upstream.came(3)
  t.same(upstream.paths, ['/off', '/1', '/2'])
  for (const { answer } of upstream.held.slice(1)) answer()
  for (const client of [off, first, second]) t.equal((await client.answer()).status, 200)
  t.equal(upstream.seen.most, 2)
  t.same([gateOf(rig).inFlight, gateOf(rig).maxInFlight], [0, 2])
})

t.test('one who gives up waiting outside the gate leaves its turn to the next', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 1 }), REAL)
  const first = await asking(t, rig, '/off1')
  await upstream.came(1)
  const gone = await asking(t, rig, '/off2')
  const last = await asking(t, rig, '/3')
  await rig.until(({ queued }) => queued.length === 1)
  gone.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('off cancelled 499'))
  upstream.held[0]!.answer()
  await upstream.came(2)
  t.same(upstream.paths, ['/off1', '/3'])
  upstream.held[1]!.answer()
  for (const client of [first, last]) t.equal((await client.answer()).status, 200)
})

t.test('with maxInFlight alone, off routes and dry runs have connections of their own', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, maxInFlight: 1 }), REAL)
  const clients: Client[] = []
  for (const path of ['/1', '/off', '/dry']) clients.push(await asking(t, rig, path))
  await upstream.came(3)
  t.same(upstream.paths, ['/1', '/off', '/dry'])
  for (const { answer } of upstream.held) answer()
  for (const client of clients) t.equal((await client.answer()).status, 200)
})

for (const bound of ['connections', 'maxInFlight']) {
  t.test(`${bound}: a WebSocket counts until it is closed; for it an idle connection is closed`, async t => {
    const upstream = await upstreamOf(t)
    const rig = await startRig(t, config({ url: upstream.url, [bound]: 2 }), { ...REAL, virtualClock: true })
    const idle = [await asking(t, rig, '/1'), await asking(t, rig, '/2')]
    await upstream.came(2)
    for (const { answer } of upstream.held) answer()
    for (const client of idle) t.equal((await client.answer()).status, 200)
    t.equal(upstream.open(), 2)
    const first = await tunnel(t, rig, '/ws1')
    await first.until(({ rest }) => rest.includes(' 101 '))
    const second = await tunnel(t, rig, '/ws2')
    await second.until(({ rest }) => rest.includes(' 101 '))
    await upstream.settled(2)
    t.same(upstream.paths.slice(2), ['/ws1', '/ws2'])
    const before = rig.queued.length
    const third = await tunnel(t, rig, '/ws3')
    const fourth = await asking(t, rig, '/4')
    await rig.until(({ queued }) => queued.length === before + 2)
    await new Promise(resolve => setTimeout(resolve, 20))
    t.equal(upstream.paths.length, 4, 'both are full')
    first.hangUp()
    await third.until(({ rest }) => rest.includes(' 101 '))
    second.hangUp()
    await upstream.came(6)
    upstream.held.at(-1)!.answer()
    t.equal((await fourth.answer()).status, 200)
    t.equal(upstream.seen.most, 2)
    third.hangUp()
    await upstream.settled(1)
    await eventually(() => gateOf(rig).inFlight === 0)
    t.same([gateOf(rig).inFlight, gateOf(rig).maxInFlight], [0, 2])
  })
}

t.test('a WebSocket of an off route waits for a connection, and its client may leave meanwhile', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 1 }), REAL)
  const first = await tunnel(t, rig, '/off/ws1')
  await first.until(({ rest }) => rest.includes(' 101 '))
  const gone = await tunnel(t, rig, '/off/ws2')
  const last = await tunnel(t, rig, '/off/ws3')
  gone.hangUp()
  await rig.until(({ outcomes }) => outcomes.includes('off cancelled 499'))
  first.hangUp()
  await last.until(({ rest }) => rest.includes(' 101 '))
  t.same(upstream.paths, ['/off/ws1', '/off/ws3'])
  last.hangUp()
  await upstream.settled(0)
  const after = await asking(t, rig, '/1')
  await upstream.came(3)
  upstream.held[0]!.answer()
  t.equal((await after.answer()).status, 200)
  t.equal(upstream.seen.most, 1)
})

t.test('a reload that lowers connections: no other one is opened until fewer are left', async t => {
  const upstream = await upstreamOf(t)
  const file = (connections: number) => ({ listen: '127.0.0.1:0', ...config({ url: upstream.url, connections }) })
  const rig = await startRig(t, file(3), REAL)
  const idle = await Promise.all(['/1', '/2', '/3'].map(path => asking(t, rig, path)))
  await upstream.came(3)
  for (const { answer } of upstream.held) answer()
  for (const client of idle) t.equal((await client.answer()).status, 200)
  const socket = await tunnel(t, rig, '/ws')
  await socket.until(({ rest }) => rest.includes(' 101 '))
  const old = await asking(t, rig, '/off')
  await upstream.came(5)
  await rig.proxy.reload(parseConfig(JSON.stringify(file(1))))
  await upstream.settled(2)
  t.equal(upstream.open(), 2, 'idle ones are closed')
  const next = await asking(t, rig, '/4')
  const last = await asking(t, rig, '/off2')
  upstream.held.at(-1)!.answer()
  t.equal((await old.answer()).status, 200)
  await upstream.settled(1)
  await new Promise(resolve => setTimeout(resolve, 20))
  t.same([upstream.open(), upstream.paths.length], [1, 5], 'the WebSocket has the only one')
  socket.hangUp()
  await upstream.came(6)
  t.equal(upstream.open(), 1)
  upstream.held.at(-1)!.answer()
  await upstream.came(7)
  upstream.held.at(-1)!.answer()
  for (const client of [next, last]) t.equal((await client.answer()).status, 200)
  t.equal(upstream.seen.most, 3)
})

t.test('a reload that sets connections counts what off routes have open already', async t => {
  const upstream = await upstreamOf(t)
  const file = (more: object) => ({ listen: '127.0.0.1:0', ...config({ url: upstream.url, ...more }) })
  const rig = await startRig(t, file({ maxInFlight: 2 }), REAL)
  const old = [await tunnel(t, rig, '/off/ws'), await asking(t, rig, '/off1')]
  await old[0]!.until(({ rest }) => rest.includes(' 101 '))
  await upstream.came(2)
  await rig.proxy.reload(parseConfig(JSON.stringify(file({ connections: 2 }))))
  const [next, other] = [await asking(t, rig, '/1'), await asking(t, rig, '/off2')]
  await new Promise(resolve => setTimeout(resolve, 20))
  t.equal(upstream.paths.length, 2, 'all are taken')
  upstream.held[0]!.answer()
  await upstream.came(3)
  old[0]!.hangUp()
  await upstream.came(4)
  for (const { answer } of upstream.held) answer()
  for (const client of [next, other]) t.equal((await client.answer()).status, 200)
  t.equal(upstream.seen.most, 2)
})

t.test('a reload that takes the bound away lets all go that wait', async t => {
  const upstream = await upstreamOf(t)
  const file = (more: object) => ({ listen: '127.0.0.1:0', ...config({ url: upstream.url, ...more }) })
  const rig = await startRig(t, file({ connections: 1 }), REAL)
  const clients: Client[] = []
  for (const path of ['/off1', '/off2', '/1', '/off3']) clients.push(await asking(t, rig, path))
  await upstream.came(1)
  await rig.proxy.reload(parseConfig(JSON.stringify(file({}))))
  await upstream.came(4)
  for (const { answer } of upstream.held) answer()
  for (const client of clients) t.equal((await client.answer()).status, 200)
})

t.test('the end of shutdownTimeout: those who wait for a connection are answered 503, and never sent', async t => {
  const upstream = await upstreamOf(t)
  const rig = await startRig(t, config({ url: upstream.url, connections: 1 }), REAL)
  const clients = [await asking(t, rig, '/off1'), await asking(t, rig, '/off2'), await tunnel(t, rig, '/off/ws')]
  await upstream.came(1)
  await rig.proxy.drain(0)
  for (const client of clients) t.equal((await client.answer()).status, 503)
  t.same(upstream.paths, ['/off1'])
  t.equal(rig.outcomes.length, 3)
})

/** Not a random number each time, so that a failure can be repeated. */
function createRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

t.test('whatever comes, leaves, hangs up and is reloaded: the bound holds, and nothing is left over', async t => {
  for (let seed = 1; seed <= 6; seed += 1) {
    const random = createRandom(seed)
    const upstream = await upstreamOf(t, { delay: () => random() * 8 })
    const file = (idleTimeout: string) => ({
      listen: '127.0.0.1:0',
      ...config({ url: upstream.url, connections: 3, idleTimeout }),
    })
    const rig = await startRig(t, file('60s'), { realPacer: seed % 2 === 0 ? true : 'precise' })
    const kinds = ['/off', '/dry', '/meter', '/shape']
    const act = async (): Promise<void> => {
      const path = `${kinds[Math.floor(random() * kinds.length)]}`
      const client = await connect(t, rig)
      const chance = random()
      if (chance < 0.15) {
        client.send(get(path, ...UPGRADE))
        await new Promise(resolve => setTimeout(resolve, random() * 40))
        return client.hangUp()
      }
      client.send(chance < 0.3 ? post('x'.repeat(20_000), path) : get(path))
      if (chance > 0.8) {
        await new Promise(resolve => setTimeout(resolve, random() * 15))
        return client.hangUp()
      }
      const { status } = await client.answer()
      if (status !== 200 && !(status === 503 && path === '/meter')) t.fail(`${path}: ${status}`)
      client.hangUp()
    }
    const all: Promise<void>[] = []
    for (let count = 0; count < 150; count += 1) {
      all.push(act())
      if (count % 40 === 20) await rig.proxy.reload(parseConfig(JSON.stringify(file(`${count + 1}s`))))
      await new Promise(resolve => setTimeout(resolve, random() * 3))
    }
    await Promise.all(all)
    await eventually(() => rig.proxy.context.inProgress === 0)
    t.ok(upstream.seen.most <= 3, `seed ${seed}: ${upstream.seen.most} at once`)
    const { gate, limit } = rig.proxy.context.routes.at(-1)!.upstream
    // Tunnels are closed after their requests have ended, and the pacing thread may have sent one that was given up.
    const isFree = (): boolean => gate.inFlight === 0 && gate.maxInFlight === 3
    await eventually(isFree)
    t.same([gate.inFlight, gate.maxInFlight, gate.armed], [0, 3, 0], `seed ${seed}`)
    t.ok(limit.budget.open <= 3)
    await upstream.settled(limit.budget.open)
    t.equal(upstream.open(), limit.budget.open, 'it counts what is open')
  }
})
