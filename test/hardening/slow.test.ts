/** Slow clients and upstreams have a documented time, and then leave nothing behind. */
import t, { type Test } from 'tap'
import {
  type Client,
  connect,
  eventually,
  get,
  type Incoming,
  type RawUpstream,
  type Rig,
  rawUpstream,
  STREAMED,
  stalled,
  startRig,
  turns,
} from '../proxy/harness.js'

/** Timeouts in ms, on the virtual clock. */
const HEADERS = 400
const IDLE = 5_000

const POST = `POST / HTTP/1.1\r\nHost: h\r\nContent-Length: ${STREAMED}\r\n\r\n`
const LONG = 'HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n'

interface Scene {
  readonly client: Client
  readonly rig: Rig
  readonly upstream: RawUpstream
  /** Moves the clock of timeouts, and lets happen what is due. */
  pass(ms: number): Promise<void>
}

function openSockets(): number {
  return process.getActiveResourcesInfo().filter(name => name === 'TCPSocketWrap').length
}

/** Plays a scene from nothing, and sees that afterwards there is nothing. */
function play(name: string, outcomes: string[], run: (t: Test, scene: Scene) => Promise<void>): void {
  t.test(name, async t => {
    const before = openSockets()
    const upstream = await rawUpstream(t)
    const config = {
      upstream: { url: upstream.url, idleTimeout: `${IDLE}ms`, responseTimeout: '10s' },
      limits: { headersTimeout: `${HEADERS}ms`, minBodyRate: 0 },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 10 } },
      routes: [{ name: 'all' }],
    }
    const rig = await startRig(t, config, { virtualClock: true })
    const client = await connect(t, rig)
    const { clock, proxy } = rig
    async function pass(ms: number): Promise<void> {
      clock.runUntil(clock.now() + ms)
      await turns()
    }
    await run(t, { client, rig, upstream, pass })
    await client.end()
    client.hangUp()
    await rig.finished(outcomes.length)
    await turns(50)
    t.same(rig.outcomes, outcomes)
    const { gate, servers } = proxy.context.routes[0]!.upstream
    t.same(
      {
        inProgress: proxy.context.inProgress,
        inFlight: gate.inFlight,
        requests: servers[0]!.pool.requests,
      },
      { inProgress: 0, inFlight: 0, requests: 0 },
    )
    // Connections to the upstream may be kept for others.
    const kept = upstream.connections.filter(({ closed }) => !closed)
    for (const { socket } of kept) socket.destroy()
    // They close in their turn.
    await eventually(() => openSockets() <= before)
  })
}

/** The connection that a request has come on: some are made to be ready. */
async function reached(upstream: RawUpstream): Promise<Incoming> {
  await upstream.until(({ text }) => text.includes('\r\n\r\n'))
  return upstream.connections.find(({ text }) => text !== '')!
}

play('a client that sends nothing: closed after headersTimeout, without a word', [], async (t, { client, pass }) => {
  await pass(HEADERS - 1)
  t.notOk(client.ended)
  await pass(1)
  await client.end()
  t.equal(client.bytes, 0)
})

for (const [what, bytes] of [
  ['empty lines without end', '\r\n'.repeat(HEADERS)],
  ['headers that come byte by byte', get('/', `X: ${'x'.repeat(HEADERS)}`)],
] as const) {
  play(`${what}: 408 after headersTimeout`, [' refused 408'], async (t, { client, pass }) => {
    for (let sent = 1; sent < HEADERS; sent += 1) {
      client.send(bytes[sent - 1]!)
      await pass(1)
    }
    t.equal(client.bytes, 0)
    // The time counts from the first byte.
    await pass(2)
    t.equal((await client.answer()).status, 408)
  })
}

play(
  'the headers of a second request that come byte by byte: 408, too',
  ['all forwarded 200', ' refused 408'],
  async (t, { client, upstream, pass }) => {
    client.send(get())
    const incoming = await reached(upstream)
    incoming.socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
    t.equal((await client.answer()).status, 200)
    for (const byte of 'GET / HT') {
      client.send(byte)
      await turns()
      await pass(HEADERS / 8 - 1)
    }
    t.equal(client.rest, '')
    await pass(8)
    t.equal((await client.answer()).status, 408)
  },
)

play('a body that trickles lives, one that stops: 408 after idleTimeout', ['all failed 408'], async (t, scene) => {
  const { client, upstream, pass } = scene
  client.send(`${POST}-`)
  const incoming = await reached(upstream)
  for (let sent = 1; sent <= 20; sent += 1) {
    client.send('x')
    await incoming.until(({ text }) => text.endsWith('x'.repeat(sent)))
    await pass(IDLE - 1)
  }
  t.equal(client.bytes, 0, 'alive after twenty times nearly idleTimeout')
  await pass(1)
  t.equal((await client.answer()).status, 408)
  await incoming.until(({ closed }) => closed)
})

play(
  'an upstream that trickles lives, one that stops is cut off after idleTimeout',
  ['all failed 200'],
  async (t, scene) => {
    const { client, upstream, pass } = scene
    client.send(get())
    const incoming = await reached(upstream)
    incoming.socket.write(LONG)
    await client.until(({ rest }) => rest.endsWith('\r\n\r\n'))
    for (let sent = 1; sent <= 20; sent += 1) {
      incoming.socket.write('x')
      await client.until(({ rest }) => rest.endsWith('x'.repeat(sent)))
      await pass(IDLE - 1)
    }
    t.notOk(client.ended)
    await pass(1)
    t.notOk((await client.answer()).whole)
    await incoming.until(({ closed }) => closed)
  },
)

for (const [what, step] of [
  ['reads nothing', 0],
  ['reads a byte at a time, and hardly any', 1],
] as const) {
  play(
    `a client that ${what}: cut off after idleTimeout, and so is the upstream`,
    ['all failed 200'],
    async (_t, scene) => {
      const { client, upstream, pass } = scene
      client.socket.pause()
      client.send(get())
      const incoming = await reached(upstream)
      incoming.socket.write(LONG)
      const more = Buffer.alloc(1_000_000)
      const write = (): void =>
        void (incoming.socket.write(more) ? setImmediate(write) : incoming.socket.once('drain', write))
      write()
      await stalled(() => incoming.socket.bytesWritten - incoming.socket.writableLength)
      for (let read = 0; read < 5; read += 1) {
        if (step > 0) client.socket.read(step)
        await pass(IDLE / 5)
      }
      await incoming.until(({ closed }) => closed)
      client.socket.resume()
    },
  )
}

play('a client that reads a byte at a time gets all of it', ['all forwarded 200'], async (t, { client, upstream }) => {
  let text = ''
  client.socket.removeAllListeners('data').on('readable', function read() {
    const byte: Buffer | null = client.socket.read(1)
    if (byte === null) return
    text += byte
    setImmediate(read)
  })
  client.send(get('/', 'Connection: close'))
  const incoming = await reached(upstream)
  incoming.socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n${'x'.repeat(2_000)}`)
  await client.end()
  t.match(text, /\r\n\r\nx{2000}$/)
})
