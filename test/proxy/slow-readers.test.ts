/** Answers are read ahead of slow clients, so that the upstream is free sooner. */
import { once } from 'node:events'
import { type AddressInfo, createServer, connect as tcpConnect } from 'node:net'
import t from 'tap'
import { unconfirmedBytes } from '../../src/proxy/client/backlog.js'
import {
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  type RawUpstream,
  type Rig,
  rawUpstream,
  stalled,
  startRig,
  TLS,
  taken,
  turns,
} from './harness.js'

type Test = Parameters<typeof startRig>[0]

const MB = 1024 * 1024

/** More than the kernels between us and a client hold. */
const LARGE = 24 * MB

/** Room for all that these tests read ahead. */
const ROOMY = { bufferMemory: 1024 * MB, minBodyRate: 0 }

/** An upstream that answers each request with so many bytes at once. */
async function sending(t: Test, size: number): Promise<RawUpstream> {
  return rawUpstream(t, ({ socket, text }) => {
    if (!text.endsWith('\r\n\r\n')) return
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${size}\r\n\r\n`)
    socket.write(Buffer.alloc(size, 'x'))
  })
}

/** A client that reads only when it is told to. */
async function reader(t: Test, rig: Rig, options: { tls?: boolean } = {}): Promise<Client> {
  const client = await connect(t, rig, options)
  client.socket.removeAllListeners('data').pause()
  client.send(get())
  return client
}

/** Reads this many bytes. */
async function read(client: Client, count: number): Promise<void> {
  const { socket } = client
  for (let left = count; left > 0 && !client.ended; ) {
    const chunk: Buffer | null = socket.read()
    left -= chunk?.length ?? 0
    await turns(1)
  }
}

/** Waits until nothing more is read ahead. */
async function settled(rig: Rig): Promise<number> {
  return stalled(() => rig.proxy.context.bodyBytes.used)
}

t.test('ten slow readers hold no places in flight once the rest of their answers is buffered', async t => {
  for (const [responseBuffer, inFlight] of [
    [LARGE, 0],
    [65_536, 10],
  ] as const) {
    const upstream = await sending(t, LARGE)
    const rig = await startRig(t, {
      upstream: { url: upstream.url, maxInFlight: 10, responseBuffer },
      limits: ROOMY,
      buckets: { client: { key: 'ip', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'slow', mode: 'meter' }],
    })
    const clients: Client[] = []
    for (let count = 0; count < 10; count += 1) clients.push(await reader(t, rig))
    await upstream.until(({ requests }) => requests === 10)
    await settled(rig)
    t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, inFlight, `responseBuffer ${responseBuffer}`)
    if (inFlight === 0) {
      const other = await connect(t, rig)
      other.send(get())
      t.equal((await other.answer()).status, 200)
    } else t.equal((await askOnce(t, rig, get())).status, 503)
    for (const client of clients) client.hangUp()
  }
})

t.test('an answer is read responseBuffer bytes ahead, and one read more at most', async t => {
  for (const responseBuffer of [0, 100_000, 262_144, 3 * MB]) {
    const upstream = await sending(t, 64 * MB)
    const rig = await startRig(t, { upstream: { url: upstream.url, responseBuffer }, limits: ROOMY, ...OFF })
    const client = await reader(t, rig)
    await upstream.until(({ requests }) => requests === 1)
    await stalled(() => taken(upstream.connections[0]!))
    const used = await settled(rig)
    t.ok(used >= responseBuffer && used <= responseBuffer + 2 * 65_536, `${used} bytes for ${responseBuffer}`)
    client.hangUp()
    await rig.finished(1)
    await turns()
    t.equal(rig.proxy.context.bodyBytes.used, 0)
  }
})

for (const tls of [false, true]) {
  const over = tls ? 'over TLS' : 'over TCP'
  t.test(`${over}: a slow reader gets every byte, and its next answer`, async t => {
    const upstream = await httpUpstream(t, (_req, res) => {
      const bytes = Buffer.alloc(LARGE)
      for (let at = 0; at < LARGE; at += 4) bytes.writeUInt32LE(at, at)
      res.end(bytes)
    })
    const rig = await startRig(t, {
      ...(tls && TLS),
      upstream: { url: upstream.url, responseBuffer: MB },
      limits: ROOMY,
      ...OFF,
    })
    const client = await connect(t, rig, { tls })
    client.socket.pause()
    client.send(get())
    await upstream.until(({ requests }) => requests.length === 1)
    t.ok((await settled(rig)) > 0)
    client.send(get('/next'))
    client.socket.resume()
    for (const path of ['first', 'next']) {
      const { body } = await client.answer()
      t.equal(body.length, LARGE, path)
      let same = true
      for (let at = 0; at < LARGE; at += 4) same &&= body.readUInt32LE(at) === at
      t.ok(same)
    }
    await rig.finished(2)
    await turns()
    t.equal(rig.proxy.context.bodyBytes.used, 0)
    t.equal(rig.proxy.context.bodyLimits.size, 0)
  })

  t.test(`${over}: idleTimeout cuts a reader that takes nothing, not one that is slow`, async t => {
    for (const responseBuffer of [MB, LARGE]) {
      const upstream = await sending(t, LARGE)
      const rig = await startRig(
        t,
        {
          ...(tls && TLS),
          upstream: { url: upstream.url, responseBuffer, idleTimeout: '5s' },
          limits: ROOMY,
          ...OFF,
        },
        { virtualClock: true },
      )
      const client = await reader(t, rig, { tls })
      await upstream.until(({ requests }) => requests === 1)
      await settled(rig)
      for (let count = 0; count < 3; count += 1) {
        await read(client, 4 * MB)
        await turns(50)
        rig.clock.runUntil(rig.clock.now() + 4_900)
        await turns()
      }
      t.notOk(client.socket.destroyed || client.ended, `alive after three times nearly idleTimeout: ${responseBuffer}`)
      t.ok(rig.proxy.context.bodyBytes.used > 0)
      for (let seconds = 0; seconds < 2; seconds += 1) {
        rig.clock.runUntil(rig.clock.now() + 5_000)
        await turns()
      }
      t.equal(rig.proxy.context.bodyBytes.used, 0, 'cut')
      client.hangUp()
    }
  })

  t.test(`${over}: minBodyRate cuts a reader that takes less than its bytes in 20 s`, async t => {
    for (const [perWindow, outcome, failures] of [
      [1, 'all failed 200', ['all the client took too little of the answer in 20 s']],
      [4, 'all cancelled 499', []],
    ] as const) {
      const upstream = await sending(t, 64 * MB)
      const rig = await startRig(
        t,
        {
          ...(tls && TLS),
          upstream: { url: upstream.url, idleTimeout: '1h' },
          limits: { ...ROOMY, minBodyRate: 100_000 },
          ...OFF,
        },
        { virtualClock: true },
      )
      const client = await reader(t, rig, { tls })
      await upstream.until(({ requests }) => requests === 1)
      await settled(rig)
      // On a busy machine the first windows still fill the buffers of the kernel.
      for (let window = 0; window < 5 && rig.outcomes.length === 0; window += 1) {
        for (let part = 0; part < 2; part += 1) {
          if (!client.socket.destroyed) await read(client, (perWindow * MB) / 2)
          await turns(50)
          rig.clock.runUntil(rig.clock.now() + 10_000)
          await turns()
        }
      }
      t.equal(rig.outcomes.length, failures.length, `${perWindow} MB of 2 in 20 s`)
      client.hangUp()
      t.same(await rig.finished(1), [outcome])
      t.same(rig.failures, failures)
      t.equal(rig.proxy.context.bodyLimits.size, 0)
    }
  })
}

t.test('minBodyRate does not count the silence of the upstream, and 0 turns it off', async t => {
  const silent = await rawUpstream(
    t,
    ({ socket }) => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc'),
  )
  const upstream = { url: silent.url, idleTimeout: '1h' }
  const rig = await startRig(t, { upstream, limits: { minBodyRate: 1_000_000 }, ...OFF }, { virtualClock: true })
  const client = await connect(t, rig)
  client.send(get())
  await client.until(({ rest }) => rest.endsWith('abc'))
  rig.clock.runUntil(600_000)
  await turns()
  silent.connections[0]!.socket.write('defghi')
  t.equal((await client.answer()).text, 'abcdefghi')

  const large = await sending(t, LARGE)
  const lenient = await startRig(
    t,
    { upstream: { url: large.url, idleTimeout: '1h' }, limits: ROOMY, ...OFF },
    { virtualClock: true },
  )
  const slow = await reader(t, lenient)
  await large.until(({ requests }) => requests === 1)
  await settled(lenient)
  lenient.clock.runUntil(600_000)
  await turns()
  t.ok(lenient.proxy.context.bodyBytes.used > 0)
  t.equal(lenient.outcomes.length, 0)
  slow.hangUp()
})

const NOT_LINUX = process.platform === 'linux' ? false : 'only Linux tells what its kernel keeps'

t.test(
  'what the kernel keeps is not taken: a client that reads it slowly is not cut off',
  { skip: NOT_LINUX },
  async t => {
    const upstream = await sending(t, LARGE)
    const config = { upstream: { url: upstream.url, idleTimeout: '1h' }, limits: { bufferMemory: 1024 * MB }, ...OFF }
    const rig = await startRig(t, config, { virtualClock: true })
    const client = await reader(t, rig)
    await settled(rig)
    // Questions of one moment are answered together, in their order.
    const asked = (): Promise<unknown> => unconfirmedBytes(client.socket)
    const window = async (): Promise<void> => {
      rig.clock.runUntil(rig.clock.now() + 20_000)
      await asked()
      await turns()
    }
    await window()
    for (let number = 0; number < 5; number += 1) {
      await asked()
      // Less than the kernel frees before it takes more of us.
      await read(client, 200_000)
      await settled(rig)
      await window()
      t.notOk(client.ended, `window ${number}`)
    }
    client.socket.pause()
    await window()
    client.socket.resume()
    await client.end()
    t.same(await rig.finished(1), ['all failed 200'])
  },
)

t.test('what the kernel keeps of a connection, as Linux tells it', { skip: NOT_LINUX }, async t => {
  for (const [host, address] of [
    ['127.0.0.1', '127.0.0.1'],
    ['::1', '::1'],
    ['::', '127.0.0.1'],
  ] as const) {
    const server = createServer(socket => void socket.on('error', () => undefined).pause())
    server.listen(0, host)
    await once(server, 'listening')
    const { port } = server.address() as AddressInfo
    const socket = tcpConnect(port, address)
    await once(socket, 'connect')
    t.equal(await unconfirmedBytes(socket), 0, `${address} to ${host}`)
    socket.write(Buffer.alloc(LARGE))
    await stalled(() => socket.writableLength)
    const kept = (await unconfirmedBytes(socket))!
    t.ok(kept > 10_000 && kept < LARGE, `${kept} bytes to ${host}`)
    socket.destroy()
    server.close()
    t.equal(await unconfirmedBytes(socket), undefined)
  }
})
