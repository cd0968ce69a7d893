/** What a client could make grow, or last, and how far it goes. */
import type { ServerResponse } from 'node:http'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import {
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  post,
  type Rig,
  rawUpstream,
  stalled,
  startRig,
  TLS,
  taken,
  turns,
} from '../proxy/harness.js'
import { sendPieces } from './stage.js'

const HELD = { buckets: { all: { key: 'all', rate: '1/h', capacity: 5 } } }
const H2C = ['Connection: Upgrade', 'Upgrade: h2c']
const HANDSHAKE = get(
  '/',
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
)

setFlagsFromString('--expose-gc')
type Teardown = Parameters<typeof connect>[0]

const collect = runInNewContext('gc') as () => void

async function heap(): Promise<number> {
  await turns()
  collect()
  return process.memoryUsage().heapUsed
}

for (const [what, first] of [
  ['a request that is held', get('/held')],
  ['one with too many fields', get('/fields', ...Array.from({ length: 2_000 }, (_, at) => `${at}:`))],
] as const) {
  t.test(`endless pipelined requests behind ${what} are not kept in memory`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...HELD })
    await (await connect(t, rig)).ask(get('/first'))
    const client = await connect(t, rig)
    client.send(get('/held'))
    await rig.until(({ queued }) => queued.length === 1)
    client.send(first)
    const ahead = Array.from({ length: 64 }, () => get('/ahead').repeat(4_000))
    const before = await heap()
    const sent = sendPieces(client, ahead).catch(() => undefined)
    const read = (await stalled(() => taken(client))) / 1024 / 1024
    t.ok(client.socket.writableLength > 0, `not all is read, ${read.toFixed(1)} MB`)
    const grown = ((await heap()) - before) / 1024 / 1024
    t.ok(grown < 20, `${grown.toFixed(1)} MB more`)
    t.equal(rig.proxy.context.shaper.queued, 1)
    client.resetConnection()
    await sent
    await turns()
    rig.pacer.runUntil(3_700_000)
    await rig.until(() => rig.proxy.context.inProgress === 0)
    t.same(upstream.requests, ['GET /first'])
  })
}

t.test('a client with endless pipelined requests takes no more than its turn', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, routes: [{ match: { path: '/on' }, mode: 'off' }] })
  const other = await connect(t, rig)
  const median = async (): Promise<number> => {
    const times: number[] = []
    for (let count = 0; count < 60; count += 1) {
      const before = performance.now()
      await other.ask(get('/on'))
      times.push(performance.now() - before)
    }
    return times.sort((a, b) => a - b)[30]!
  }
  await median()
  const quiet = await median()
  const flooding = await Promise.all(Array.from({ length: 4 }, () => connect(t, rig)))
  const piece = Buffer.from(get('/none').repeat(5_000))
  let answered = 0
  for (const { socket } of flooding) {
    socket.removeAllListeners('data').on('data', chunk => {
      answered += chunk.toString('latin1').split('HTTP/1.1 404').length - 1
    })
    const send = (): void => {
      while (socket.writable && socket.write(piece)) {}
    }
    socket.on('drain', send)
    send()
  }
  const busy = await median()
  const counted = rig.outcomes.length - 180
  t.ok(counted > 500, `${counted} of theirs were answered`)
  t.ok(busy < 60 * quiet, `${busy.toFixed(2)} ms against ${quiet.toFixed(2)}`)
  const { arrayBuffers } = process.memoryUsage()
  for (let due = 2_000; due <= 40_000; due += 2_000) await rig.finished(due)
  const grown = (process.memoryUsage().arrayBuffers - arrayBuffers) / 1024 / 1024
  t.ok(grown < 10, `what is not read yet is not kept, ${grown.toFixed(1)} MB more`)
  for (const client of flooding) client.hangUp()
  t.ok(answered > 0.9 * (rig.outcomes.length - 180), `${answered} answers came`)
})

t.test('a refused upgrade as the last permitted pipelined request gets its answer', async t => {
  const upstream = await httpUpstream(t, (req, res) => res.end(req.url))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await connect(t, rig)
  client.send(get('/before').repeat(64) + get('/h2c', ...H2C) + get('/behind'))
  for (let count = 0; count < 64; count += 1) t.equal((await client.answer()).text, '/before')
  t.equal((await client.answer()).text, '/h2c')
  t.equal((await client.answer()).text, '/behind')
})

/** Sends requests until every buffer is full of answers. Returns how many answers are due. */
async function untilStuck(client: Client, rig: Rig): Promise<number> {
  for (let sent = 50; ; sent += 50) {
    client.send(get('/').repeat(50))
    for (let tries = 0; tries < 100 && rig.outcomes.length < sent; tries += 1) await turns(1)
    if (rig.outcomes.length < sent && (await stalled(() => rig.outcomes.length)) < sent) return sent
  }
}

t.test('a client that does not read our own answers is cut off after a minute', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, routes: [{ match: { path: '/x' }, mode: 'off' }] },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.socket.pause()
  await untilStuck(client, rig)
  t.equal(rig.proxy.context.inProgress, 1)
  rig.clock.runUntil(rig.clock.now() + 59_000)
  await turns()
  t.equal(rig.proxy.context.inProgress, 1, 'not before')
  rig.clock.runUntil(rig.clock.now() + 1_000)
  client.socket.resume()
  await client.end()
  await turns()
  t.equal(rig.proxy.context.inProgress, 0)
})

t.test('a client that reads our answers late, but all of them, may go on', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, limits: { keepAliveTimeout: '10m' }, routes: [{ match: { path: '/x' }, mode: 'off' }] },
    { virtualClock: true },
  )
  const client = await connect(t, rig)
  client.socket.pause()
  const sent = await untilStuck(client, rig)
  client.socket.resume()
  await rig.finished(sent)
  await client.until(({ rest }) => (rest.match(/HTTP\/1\.1 404/g) ?? []).length === sent)
  await turns()
  rig.clock.runUntil(rig.clock.now() + 120_000)
  await turns()
  client.send(get('/x'))
  await client.until(({ rest }) => rest.endsWith('ok'))
})

t.test('while none is idle, connections above maxConnections get 503 for any request; existing ones stay', async t => {
  const waiting: ServerResponse[] = []
  const upstream = await httpUpstream(t, (_req, res) => void waiting.push(res))
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 2 }, ...OFF })
  const early = [await connect(t, rig), await connect(t, rig)]
  for (const client of early) client.send(get('/early'))
  await upstream.until(({ requests }) => requests.length === 2)
  for (const text of [get('/late'), post('body', '/late'), HANDSHAKE, get('/late', ...H2C), get('/late').repeat(3)]) {
    const late = await connect(t, rig)
    const answer = await late.ask(text)
    t.equal(answer.status, 503)
    t.equal(answer.header('retry-after'), '1')
    t.equal(answer.header('connection'), 'close')
    t.match(answer.json(), { status: 503, detail: 'there are too many connections' })
    await late.end()
    t.equal(late.rest, '')
    late.hangUp()
  }
  t.ok(rig.outcomes.every(outcome => / refused 503| cancelled 499/.test(outcome)))
  for (const res of waiting) res.end()
  for (const client of early) t.equal((await client.answer()).status, 200)
  t.ok(upstream.requests.every(request => request === 'GET /early'))

  early[0]!.hangUp()
  await turns(50)
  const next = await connect(t, rig)
  next.send(get('/early'))
  await upstream.until(({ requests }) => requests.length === 3)
  waiting[2]!.end()
  t.equal((await next.answer()).status, 200, 'one has left, so one is accepted')
})

t.test('maxConnections follows a reload; existing connections stay', async t => {
  // None of the connections is idle.
  const waiting: ServerResponse[] = []
  const upstream = await httpUpstream(t, (_req, res) => void waiting.push(res))
  const config = (maxConnections: number) => ({ upstream: upstream.url, limits: { maxConnections }, ...OFF })
  const settings = (maxConnections: number) => parseConfig(JSON.stringify(config(maxConnections)))
  const rig = await startRig(t, config(1))
  const first = await connect(t, rig)
  first.send(get())
  await upstream.until(({ requests }) => requests.length === 1)
  t.equal((await (await connect(t, rig)).ask(get())).status, 503)
  await rig.proxy.reload(settings(10))
  const second = await connect(t, rig)
  second.send(get())
  await upstream.until(({ requests }) => requests.length === 2)
  await rig.proxy.reload(settings(1))
  t.equal((await (await connect(t, rig)).ask(get())).status, 503)
  waiting[1]!.end()
  t.equal((await second.answer()).status, 200)
})

t.test('far above maxConnections connections are closed unread; after they end, others are accepted', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxConnections: 10 }, ...OFF })
  const begun: Client[] = []
  for (let count = 0; count < 10 + 256; count += 1) {
    const client = await connect(t, rig)
    // One that has sent nothing would make room.
    client.send('GET')
    begun.push(client)
    await turns(5)
  }
  await turns(50)
  const unheard = await connect(t, rig)
  await unheard.end()
  t.equal(unheard.bytes, 0)
  t.equal((await begun[0]!.ask(get().slice(3))).status, 200)
  for (const client of begun) client.hangUp()
  await turns(50)
  t.equal((await (await connect(t, rig)).ask(get())).status, 200)
})

t.test('over TLS, connections whose handshake is not over count too', async t => {
  const upstream = await httpUpstream(t)
  const config = (maxConnections: number) => ({ ...TLS, upstream: upstream.url, limits: { maxConnections }, ...OFF })
  const rig = await startRig(t, config(1))
  const silent = await Promise.all(Array.from({ length: 1 + 256 }, () => connect(t, rig)))
  await turns(50)
  const unheard = await connect(t, rig)
  await unheard.end()
  await rig.proxy.reload(parseConfig(JSON.stringify(config(10))))
  const heard = await connect(t, rig, { tls: true })
  t.equal((await heard.ask(get())).status, 200)
  for (const client of silent) client.hangUp()
  await turns(50)
  for (let count = 0; count < 20; count += 1) {
    const client = await connect(t, rig, { tls: true })
    t.equal((await client.ask(get())).status, 200)
    client.hangUp()
    await turns()
  }
})

/** Sends requests of the same size that differ in one way, in turn. Returns the least time of each, in ms. */
async function leastTimes(t: Teardown, rig: Rig, texts: readonly string[]): Promise<number[]> {
  const least = texts.map(() => Infinity)
  for (let round = 0; round < 30; round += 1) {
    for (const [at, text] of texts.entries()) {
      const client = await connect(t, rig)
      const before = performance.now()
      await client.ask(text)
      client.hangUp()
      least[at] = Math.min(least[at]!, performance.now() - before)
    }
  }
  return least
}

t.test('a long list of Connection options costs no more than other headers of that length', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, limits: { maxHeaders: 2_000 }, ...OFF })
  const fields = Array.from({ length: 1_200 }, (_, at) => `${String.fromCharCode(97 + (at % 26))}:`)
  const list = `x${',x'.repeat(4_000)}`
  const lines = Array.from({ length: 500 }, () => 'x,x')
  const texts = [
    get('/', `X-Other: ${list}`, ...fields),
    get('/', `Connection: ${list}`, ...fields),
    get('/', ...lines.map(line => `Connection: ${line}`)),
  ]
  const [other, options, split] = await leastTimes(t, rig, texts)
  t.ok(options! < 2 * other!, `one line: ${options!.toFixed(2)} ms against ${other!.toFixed(2)}`)
  t.ok(split! < 2 * other!, `many lines: ${split!.toFixed(2)} ms against ${other!.toFixed(2)}`)
})

t.test('an upstream that lists thousands of Connection options: its answer arrives, and costs no more', async t => {
  const options = Array.from({ length: 1_000 }, (_, at) => `x${at}`)
  const fields = Array.from({ length: 2_000 }, () => 'y:')
  const upstream = await rawUpstream(t, ({ text, socket }) => {
    const last = text.slice(text.lastIndexOf('GET '))
    const name = last.startsWith('GET /lists') ? 'Connection' : 'X-Elsewhere'
    const lists = / \/[a-z]+-each /.test(last) ? options.map(each => `${name}: ${each}`) : [`${name}: ${options}`]
    const head = ['HTTP/1.1 200 OK', ...lists, ...fields, 'x999: 1', 'X-Kept: 1', 'Content-Length: 0']
    socket.write(`${head.join('\r\n')}\r\n\r\n`)
  })
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  for (const path of ['/lists', '/lists-each']) {
    const answer = await askOnce(t, rig, get(path))
    t.equal(answer.header('x-kept'), '1')
    t.equal(answer.header('x999'), undefined)
  }
  const texts = ['/plain', '/lists', '/plain-each', '/lists-each'].map(path => get(path))
  const [plain, lists, plainEach, each] = await leastTimes(t, rig, texts)
  t.ok(lists! < 2 * plain!, `${lists!.toFixed(2)} ms against ${plain!.toFixed(2)}`)
  t.ok(each! < 2 * plainEach!, `${each!.toFixed(2)} ms against ${plainEach!.toFixed(2)}`)
})

t.test('thousands of hops in X-Forwarded-For cost no more than ten, for any trustProxy', async t => {
  const upstream = await httpUpstream(t)
  const ten = `X-Forwarded-For: ${'::1,'.repeat(9)}::1`
  const many = `X-Forwarded-For: ${'::1,'.repeat(3_900)}::1`
  const lines = Array.from({ length: 700 }, () => 'X-Forwarded-For: ::1')
  for (const trustProxy of [true, ['loopback'], 5_000]) {
    const rig = await startRig(t, {
      upstream: upstream.url,
      trustProxy,
      buckets: { client: { key: 'ip', rate: '1/h', capacity: 1 } },
    })
    await askOnce(t, rig, get('/', ten))
    const padded = [
      get('/', ten, `X-Pad: ${'p'.repeat(15_600)}`),
      get('/', many),
      get('/', ten, ...lines.map(line => line.replace('X-Forwarded-For', 'X-Different-For'))),
      get('/', ...lines),
    ]
    const [few, far, others, each] = await leastTimes(t, rig, padded)
    t.ok(far! < 3 * few!, `${trustProxy}, one line: ${far!.toFixed(2)} ms against ${few!.toFixed(2)}`)
    t.ok(each! < 3 * others!, `${trustProxy}, many lines: ${each!.toFixed(2)} ms against ${others!.toFixed(2)}`)
  }
})
