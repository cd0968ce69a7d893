/** `limits.bufferMemory`: what is buffered for all clients together, and for each. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { ByteBudget, HeldBytes } from '../../src/proxy/http/byte-budget.js'
import {
  type Client,
  connect,
  get,
  OFF,
  OK,
  pass,
  type Rig,
  rawUpstream,
  stalled,
  startRig,
  taken,
  turns,
} from './harness.js'

type Test = Parameters<typeof startRig>[0]

const READ = 64 * 1024
const MB = 1024 * 1024

t.test('a client may hold half of it, and a sixteenth while others hold some', async t => {
  const budget = new ByteBudget(1_600)
  const [one, other] = [new HeldBytes(budget, 'one'), new HeldBytes(budget, 'other')]
  t.equal(budget.room('one'), 800)
  one.hold(799)
  t.equal(one.hasRoom, true)
  one.hold(800)
  t.equal(one.hasRoom, false)
  t.equal(budget.room('other'), 100)
  other.hold(1)
  t.equal(budget.room('one'), 100 - 800)
  const more = new HeldBytes(budget, 'one')
  more.hold(5)
  t.equal(budget.used, 806)
  one.hold(50)
  t.equal(budget.room('one'), 100 - 55, 'all that a client holds counts')
  other.hold(0)
  t.equal(budget.room('one'), 800 - 55)
  one.hold(0)
  more.hold(0)
  t.equal(budget.used, 0)
  t.equal(budget.room('one'), 800)
})

t.test('all together hold no more than there is', async t => {
  const budget = new ByteBudget(1_600)
  const held = Array.from({ length: 20 }, (_, client) => new HeldBytes(budget, String(client)))
  for (const each of held) if (each.hasRoom) each.hold(100)
  t.equal(budget.used, 1_600)
  t.equal(budget.room('another'), 0)
  budget.most = 3_200
  t.equal(budget.room('another'), 200)
})

/** What is buffered when nothing moves any more. A busy machine takes a while to begin. */
async function settled(rig: Rig): Promise<number> {
  const { bodyBytes } = rig.proxy.context
  while (bodyBytes.used === 0) await turns()
  return stalled(() => bodyBytes.used)
}

/** Sends a body as fast as it is taken. */
async function flood(t: Test, rig: Rig, by: string, size: number): Promise<Client> {
  const client = await connect(t, rig)
  client.send(`POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${size}\r\nX-Forwarded-For: ${by}\r\n\r\n`)
  client.send(Buffer.alloc(size - 1))
  return client
}

/** Lets requests pass, or none. */
function open(rig: Rig, maxInFlight: number): void {
  const { context } = rig.proxy
  const { gate } = context.routes[0]!.upstream
  gate.maxInFlight = maxInFlight
  context.shaper.wake(gate)
}

t.test('the bodies of one client, and of many', async t => {
  const upstream = await rawUpstream(t)
  const config = (bufferMemory: number): object => ({
    listen: '127.0.0.1:0',
    trustProxy: true,
    upstream: { url: upstream.url, requestBuffer: 8 * MB },
    limits: { bufferMemory },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 1_000 } },
    routes: [{ name: 'all' }],
  })
  const rig = await startRig(t, config(8 * MB))
  open(rig, 0)
  const clients = [await flood(t, rig, '192.0.2.1', 7 * MB)]
  const alone = await settled(rig)
  t.ok(alone >= 4 * MB && alone <= 4 * MB + READ, `${alone}: half of it`)
  clients.push(await flood(t, rig, '192.0.2.1', 7 * MB))
  t.ok((await settled(rig)) <= 4 * MB + 2 * READ, 'however many bodies it sends')
  const second = await flood(t, rig, '192.0.2.2', 7 * MB)
  clients.push(second)
  const before = await settled(rig)
  t.ok(before <= 4.5 * MB + 3 * READ, `${before}: a sixteenth more`)
  for (let other = 3; other < 30; other += 1) clients.push(await flood(t, rig, `192.0.2.${other}`, 7 * MB))
  const all = await settled(rig)
  t.ok(all >= 8 * MB && all <= 8 * MB + clients.length * READ, `${all}: all of it, and a read of each connection`)
  // A hang-up behind unread bytes is noticed in its turn.
  for (const client of clients) client.hangUp()
  open(rig, Infinity)
  while (rig.outcomes.length < clients.length) await pass(rig, rig.pacer.now() + 1, 1)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 0)

  open(rig, 0)
  await rig.proxy.reload(parseConfig(JSON.stringify(config(MB))))
  const small = await flood(t, rig, '192.0.2.1', 7 * MB)
  const less = await settled(rig)
  t.ok(less >= MB / 2 && less <= MB / 2 + READ, `${less}: after a reload`)
  small.hangUp()
  open(rig, Infinity)
  while (rig.outcomes.length <= clients.length) await pass(rig, rig.pacer.now() + 1, 1)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 0)
})

t.test('without room a body is sent as it comes', async t => {
  const upstream = await rawUpstream(t)
  const config = { upstream: upstream.url, limits: { bufferMemory: 65_536 }, ...OFF }
  const rig = await startRig(t, config)
  rig.proxy.context.bodyBytes.change('somebody', 65_536)
  const client = await connect(t, rig)
  client.send('POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n')
  await turns(50)
  t.equal(upstream.text, '')
  client.send('abc')
  await upstream.until(({ text }) => text.endsWith('abc'))
  client.send('defghij')
  await upstream.until(({ text }) => text.endsWith('abcdefghij'))
  upstream.connections[0]!.socket.write(OK)
  t.equal((await client.answer()).status, 200)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 65_536)
})

t.test('without room an answer is not read ahead', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${64 * MB}\r\n\r\n`)
    socket.write(Buffer.alloc(64 * MB))
  })
  const config = { upstream: { url: upstream.url, responseBuffer: 8 * MB }, limits: { bufferMemory: 8 * MB }, ...OFF }
  const rig = await startRig(t, config)
  const clients: Client[] = []
  for (let count = 0; count < 3; count += 1) {
    const client = await connect(t, rig)
    client.socket.pause()
    client.send(get())
    clients.push(client)
  }
  const used = await settled(rig)
  t.ok(used >= 4 * MB && used <= 4 * MB + 3 * 2 * READ, `${used} for three readers of one address`)
  for (const client of clients) client.hangUp()
  await rig.finished(3)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 0)
})

t.test('requests that wait behind others count, and those on their way to the upstream', async t => {
  const upstream = await rawUpstream(t, ({ socket }) => socket.pause())
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const pipelined = await connect(t, rig)
  pipelined.send(get() + 'GET / HTTP/1.1\r\nHost: h\r\n\r\n'.repeat(1_000))
  await upstream.until(({ requests }) => requests === 1)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 27 * 1_000)
  pipelined.hangUp()
  await rig.finished(1)
  const size = 16 * MB
  const uploading = await flood(t, rig, '192.0.2.1', size)
  await stalled(() => taken(uploading))
  const used = await settled(rig)
  t.ok(used >= READ && used <= 4 * READ, `${used} bytes`)
  for (const { socket } of upstream.connections) socket.destroy()
  t.equal((await uploading.answer()).status, 502)
  await turns()
  t.equal(rig.proxy.context.bodyBytes.used, 0)
})
