/** Short bodies are read before their requests are sent, so that slow clients do not occupy the upstream. */
import t from 'tap'
import { resetKey } from '../../src/admin/keys/reset.js'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import {
  answering,
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OFF,
  OK,
  ONE_A_SECOND,
  occupy,
  pass,
  post,
  type Rig,
  type RigOptions,
  rawUpstream,
  STREAMED,
  startRig,
  turns,
} from './harness.js'

type Test = Parameters<typeof startRig>[0]

/** The head of an upload, and what has come of it. */
function upload(length: number, body = '', ...headers: string[]): string {
  const lines = headers.map(header => `${header}\r\n`).join('')
  return `POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: ${length}\r\n${lines}\r\n${body}`
}

function chunked(body: string, ...headers: string[]): string {
  const lines = headers.map(header => `${header}\r\n`).join('')
  return `POST /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n${lines}\r\n${body}`
}

/** Sends a request on a connection of its own. Returns when the bytes have been read. */
async function send(t: Test, rig: Rig, text: string): Promise<Client> {
  const client = await connect(t, rig)
  client.send(text)
  await turns()
  return client
}

/** What requests that are over must not leave behind. */
function left({ proxy, pacer }: Rig): object {
  const { context } = proxy
  const { gate, queued } = context.routes[0]!.upstream
  const buckets = [...context.bucketTable.all()]
  return {
    bytes: context.bodyBytes.used,
    inFlight: gate.inFlight,
    queued: [queued, context.shaper.queued],
    inProgress: context.inProgress,
    waiting: buckets.reduce((sum, bucket) => sum + bucket.waiting, 0),
    level: buckets.reduce((sum, bucket) => sum + bucket.level(pacer.now() + 1e9), 0),
    watched: context.bodyLimits.size,
  }
}

const NOTHING = {
  bytes: 0,
  inFlight: 0,
  queued: [0, 0],
  inProgress: 0,
  waiting: 0,
  level: 0,
  watched: 0,
}

/** The paths in the order in which an upstream saw them. */
const seen = ({ requests }: { requests: readonly string[] }): string[] => requests.map(each => each.split(' ')[1]!)

for (const [name, text] of [
  ['of known length', upload(5, 'hello')],
  ['of unknown length', chunked('3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n')],
  ['of 64 kB', upload(65_536, 'x'.repeat(65_536))],
] as const) {
  t.test(`a body ${name} that is there at its turn leaves with its head, in one write`, async t => {
    const upstream = await rawUpstream(t, answering(OK))
    const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
    await occupy(t, rig)
    await (await upstream.connection(0)).until(/first/)
    const incoming = upstream.connections.find(({ text }) => text !== '')!
    const before = incoming.text.length
    const pieces: number[] = []
    incoming.socket.on('data', chunk => pieces.push(chunk.length))
    const client = await send(t, rig, text.slice(0, -2))
    client.send(text.slice(-2))
    await turns()
    t.same(left(rig), { ...NOTHING, ...busy(rig) })
    t.equal(incoming.text.length, before, 'nothing before its turn')
    rig.pacer.runUntil(1_000)
    t.equal((await client.answer()).status, 200)
    const sent = incoming.text.slice(before)
    t.equal(sent.split('\r\n\r\n')[0]!.match(/^POST/)?.length, 1)
    if (name !== 'of 64 kB') t.equal(pieces.length, 1, `${pieces} bytes`)
    if (name === 'of unknown length') t.match(sent, /\r\n\r\n5\r\nhello\r\n0\r\n\r\n$/)
    await turns()
    t.same(left(rig), NOTHING)
  })
}

/** What a request that is queued has to hold. */
function busy({ proxy }: Rig): object {
  const { context } = proxy
  return { bytes: context.bodyBytes.used, queued: [1, 1], inProgress: 1, waiting: 1, level: 1 }
}

t.test('a body that is not there at its turn is passed over; when it is there it leaves first', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  await occupy(t, rig)
  const slow = await send(t, rig, upload(5, 'hell'))
  for (const path of ['/a', '/b', '/c']) await send(t, rig, get(path))
  await pass(rig, 2_000, 500)
  t.same(seen(upstream), ['/first', '/a', '/b'], 'those behind it leave in its slot')
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
  await pass(rig, 2_500, 500)
  slow.send('o')
  await turns()
  await pass(rig, 4_000, 500)
  t.equal((await slow.answer()).status, 200)
  await rig.finished(5)
  t.same(seen(upstream), ['/first', '/a', '/b', '/upload', '/c'])
  t.same(
    rig.released.map(({ wait }) => Math.round(wait)),
    [0, 1_000, 2_000, 3_000, 4_000],
  )
  t.same(left(rig), NOTHING)
})

t.test('the first of an idle bucket is not sent before its body is there, and leaves then at once', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const slow = await send(t, rig, upload(5, 'hell'))
  t.equal((await askOnce(t, rig, get('/other'))).status, 200, 'its slot is free')
  await pass(rig, 1_500, 500)
  t.same(seen(upstream), ['/other'])
  slow.send('o')
  t.equal((await slow.answer()).status, 200)
  t.equal(rig.released.at(-1)!.wait, 1_500)
})

t.test('408 after bodyTimeout from its turn on, not from its arrival', async t => {
  const upstream = await httpUpstream(t)
  const config = { upstream: upstream.url, limits: { bodyTimeout: '7s', minBodyRate: 0 }, ...ONE_A_SECOND }
  const rig = await startRig(t, config, { virtualClock: true })
  rig.pacer.runUntil(1)
  await occupy(t, rig)
  const slow = await send(t, rig, upload(5, 'hell'))
  rig.clock.runUntil(60_000)
  await pass(rig, 1_001, 500)
  t.equal(rig.proxy.context.shaper.queued, 1)
  rig.clock.runUntil(66_999)
  await turns()
  t.equal(slow.rest, '')
  rig.clock.runUntil(67_000)
  const answer = await slow.answer()
  t.match(answer, { status: 408, reason: 'Request Timeout' })
  t.equal(answer.header('content-type'), 'application/problem+json')
  t.equal(answer.json().detail, 'the request body did not come in time')
  t.equal(answer.header('connection'), 'close')
  await slow.end()
  t.same(await rig.finished(2), ['all forwarded 200', 'all failed 408'])
  t.same(seen(upstream), ['/first'])
  t.same(left(rig), NOTHING)
})

t.test('a larger body is streamed: its head leaves in its turn, whether or not a byte of it has come', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await send(t, rig, upload(STREAMED))
  await (await upstream.connection(0)).until(/\r\n\r\n$/)
  client.send('abc')
  await upstream.connections[0]!.until(/abc$/)
})

t.test('a body of unknown length that fills the buffer is streamed', async t => {
  const upstream = await rawUpstream(t)
  const settings = { url: upstream.url, requestBuffer: 1_000 }
  const rig = await startRig(t, { upstream: settings, ...OFF }, { virtualClock: true })
  const client = await send(t, rig, chunked(`3e7\r\n${'x'.repeat(999)}\r\n`))
  await turns(50)
  t.equal(upstream.text, '')
  client.send('1\r\ny\r\n')
  await (await upstream.connection(0)).until(/xy\r\n$/)
  client.send('3\r\nend\r\n')
  await upstream.connections[0]!.until(/3\r\nend\r\n$/)
})

t.test('a body of unknown length that has not ended one second after its turn is sent as it comes', async t => {
  const upstream = await rawUpstream(t)
  const config = { upstream: upstream.url, limits: { minBodyRate: 0 }, ...ONE_A_SECOND }
  const rig = await startRig(t, config, { virtualClock: true })
  const client = await send(t, rig, chunked('2\r\nab\r\n'))
  rig.clock.runUntil(999)
  await turns()
  t.equal(upstream.text, '')
  rig.clock.runUntil(1_000)
  await upstream.until(({ text }) => text.endsWith('\r\n\r\n2\r\nab\r\n'))
  client.send('3\r\ncde\r\n')
  await upstream.until(({ text }) => text.endsWith('3\r\ncde\r\n'))
  const [incoming] = upstream.connections.filter(({ text }) => text !== '')
  incoming!.socket.write(OK)
  t.equal((await client.answer()).status, 200, 'also before it has ended')
})

t.test('only one body of each client is sent as it comes; its place is free when it has come whole', async t => {
  const upstream = await rawUpstream(t)
  const config = {
    upstream: upstream.url,
    trustProxy: true,
    limits: { minBodyRate: 0, bodyTimeout: '5s' },
    ...OFF,
  }
  const rig = await startRig(t, config, { virtualClock: true })
  const texts = (): string[] => upstream.connections.map(({ text }) => /X-Name: (.)/.exec(text)?.[1] ?? '').sort()
  const by = (client: number, name: string): string =>
    chunked('1\r\nx\r\n', `X-Forwarded-For: 192.0.2.${client}`, `X-Name: ${name}`)
  const first = await send(t, rig, by(1, 'a'))
  const second = await send(t, rig, by(1, 'b'))
  const third = await send(t, rig, by(1, 'c'))
  await send(t, rig, by(2, 'd'))
  rig.clock.runUntil(1_000)
  await upstream.until(() => texts().join('') === 'ad')
  await turns()
  // Its answer may take as long as it likes.
  first.send('0\r\n\r\n')
  await upstream.until(() => texts().join('') === 'abd')
  second.hangUp()
  await upstream.until(() => texts().join('') === 'abcd')
  third.hangUp()
  await rig.finished(2)
  const fourth = await send(t, rig, by(1, 'e'))
  const fifth = await send(t, rig, by(1, 'f'))
  rig.clock.runUntil(2_000)
  await upstream.until(() => texts().join('') === 'abcde')
  fourth.send('1\r\ny\r\n')
  fifth.send('0\r\n\r\n')
  await upstream.until(() => texts().join('') === 'abcdef')
  const sixth = await send(t, rig, by(1, 'g'))
  rig.clock.runUntil(6_999)
  await turns()
  t.equal(sixth.rest, '')
  rig.clock.runUntil(7_000)
  t.equal((await sixth.answer()).status, 408, 'one that gets no place is answered 408 after bodyTimeout')
})

t.test('gRPC is sent at once: its body may be a conversation', async t => {
  for (const [type, sent] of [
    ['application/grpc', true],
    ['application/grpc+proto', true],
    ['Application/gRPC; x=y', true],
    ['application/grpc-web', false],
    ['application/grpcs', false],
  ] as const) {
    const upstream = await rawUpstream(t)
    const rig = await startRig(t, { upstream: upstream.url, ...OFF })
    await send(t, rig, chunked('1\r\nx\r\n', `Content-Type: ${type}`))
    if (sent) await upstream.until(({ text }) => text.endsWith('1\r\nx\r\n'))
    await turns(50)
    t.equal(upstream.text !== '', sent, type)
  }
})

t.test('requests that are set aside count: the (b+1)th is 429, and Retry-After is finite', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND })
  const slow: Client[] = []
  for (let count = 0; count < 5; count += 1) slow.push(await send(t, rig, upload(5, 'hell')))
  rig.pacer.runUntil(5_000)
  const answer = await askOnce(t, rig, get())
  t.equal(answer.status, 429)
  t.same([answer.header('retry-after'), answer.json().retryAfterMs], ['1', 1_000])
  t.equal(answer.json().detail, 'bucket "all" is full: 5 of 5')
  t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 0)
  for (const client of slow) client.send('o')
  await turns()
  await pass(rig, 6_000, 500)
  const late = await connect(t, rig)
  late.send(get('/late'))
  await pass(rig, 12_000, 500)
  t.equal((await late.answer()).status, 200, 'a second later there is room')
  for (const client of slow) t.equal((await client.answer()).status, 200)
  t.same(left(rig), NOTHING)
})

t.test('requests that are set aside count for maxQueued: the next client takes the place of the heaviest', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: ['loopback'],
    limits: { maxQueued: 3 },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
    routes: [{ name: 'all' }],
  })
  const head = (from: number): string =>
    `POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nX-Forwarded-For: 10.0.0.${from}\r\n\r\n`
  const clients: Client[] = []
  for (const from of [1, 1, 1, 2, 3, 3]) {
    const client = await connect(t, rig)
    client.send(head(from))
    clients.push(client)
    await turns()
    rig.pacer.runUntil(rig.pacer.now() + 1)
  }
  t.equal(rig.proxy.context.shaper.queued, 3)
  t.same(rig.outcomes, ['all rejected 503', 'all rejected 503', 'all rejected 503'])
  t.equal((await clients[2]!.answer()).status, 503, 'the newest of the first client, for the second')
  t.equal((await clients[1]!.answer()).status, 503, 'its next one, for the third')
  t.equal((await clients[5]!.answer()).status, 503, 'nobody has more than the third, for its second')
  for (const client of [clients[0]!, clients[3]!, clients[4]!]) {
    client.send('0123456789')
    await turns()
    rig.pacer.runUntil(rig.pacer.now() + 1)
    t.equal((await client.answer()).status, 200)
  }
  const { gate } = rig.proxy.context.routes[0]!.lane
  t.same([rig.proxy.context.shaper.queued, gate.inFlight], [0, 0])
})

t.test('a client that hangs up while its request is set aside: nothing of it is left', async t => {
  const upstream = await httpUpstream(t)
  for (const mode of ['shape', 'meter', 'off']) {
    const rig = await startRig(t, {
      upstream: { url: upstream.url, maxInFlight: 5 },
      buckets: ONE_A_SECOND.buckets,
      routes: [{ name: 'all', mode }],
    })
    for (const leave of ['hangUp', 'resetConnection'] as const) {
      const client = await send(t, rig, upload(50_000, 'x'.repeat(40_000)))
      t.equal((left(rig) as typeof NOTHING).bytes, 40_000)
      client[leave]()
      await rig.until(({ outcomes }) => outcomes.at(-1) === 'all cancelled 499')
      rig.outcomes.length = 0
      await turns()
      t.same(left(rig), NOTHING, mode)
    }
  }
  t.same(upstream.requests, [])
})

const KINDS: [name: string, options: RigOptions][] = [
  ['without a store', {}],
  ['with a store', { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) }],
]

for (const [kind, options] of KINDS) {
  const config = (url: string, rate: string, route: object = {}): object => ({
    listen: '127.0.0.1:0',
    upstream: url,
    buckets: { all: { key: 'all', rate, capacity: 5 } },
    routes: [{ name: 'all', ...route }],
  })
  const reload = (rig: Rig, next: object): Promise<unknown> => rig.proxy.reload(parseConfig(JSON.stringify(next)))

  t.test(`${kind}: a reload reaches those that are set aside when they come back`, async t => {
    const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
    const rig = await startRig(t, config(upstream.url, '1/s'), options)
    const slow = [await send(t, rig, upload(5, 'hell')), await send(t, rig, upload(5, 'hell'))]
    await pass(rig, 2_500, 5)
    await reload(rig, config(upstream.url, '10/s'))
    for (const client of slow) client.send('o')
    await turns()
    await pass(rig, 2_700, 5)
    for (const client of slow) t.equal((await client.answer()).status, 200)
    const [first, second] = rig.released.map(({ wait }) => wait)
    t.ok(second! - first! > 90 && second! - first! < 115, `${second! - first!} ms apart`)
    await turns()
    t.same(left(rig), NOTHING)
  })

  t.test(`${kind}: a shorter maxWait counts from the return on, and other reloads do not cut it`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, config(upstream.url, '1/s', { maxWait: '60s' }), options)
    const { gate } = rig.proxy.context.routes[0]!.upstream
    const slow = await send(t, rig, upload(5, 'hell'))
    await pass(rig, 30_000, 100)
    await reload(rig, config(upstream.url, '1/s', { maxWait: '5s' }))
    gate.maxInFlight = 0
    slow.send('o')
    await turns()
    await pass(rig, 34_000, 100)
    gate.maxInFlight = Infinity
    await reload(rig, config(upstream.url, '1/s', { maxWait: '5s' }))
    await pass(rig, 36_000, 100)
    t.equal((await slow.answer()).status, 200)
  })

  t.test(`${kind}: a reset forgets what has passed, not who is set aside`, async t => {
    const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
    const rig = await startRig(t, config(upstream.url, '1/m'), options)
    t.equal((await askOnce(t, rig, get())).status, 200)
    const slow = await send(t, rig, upload(5, 'hell'))
    await pass(rig, 61_000, 1_000)
    const [bucket] = rig.proxy.context.bucketTable.all()
    t.same([bucket!.waiting, bucket!.aside], [1, 1])
    await resetKey(rig.proxy.context, 'all', 'all')
    t.same([bucket!.waiting, bucket!.aside], [1, 1])
    slow.send('o')
    await turns()
    await pass(rig, 61_020, 5)
    t.equal((await slow.answer()).status, 200)
    t.same(left(rig), NOTHING)
  })

  t.test(`${kind}: one that comes back during a pause leaves at its end`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(t, config(upstream.url, '1/s'), options)
    const slow = await send(t, rig, upload(5, 'hell'))
    await pass(rig, 1_000, 5)
    const { context } = rig.proxy
    context.shaper.engine.pause(context.routes[0]!.upstream.gate, 3_000)
    slow.send('o')
    await turns()
    await pass(rig, 3_900, 100)
    t.same(upstream.requests, [])
    await pass(rig, 4_100, 5)
    t.equal((await slow.answer()).status, 200)
  })

  t.test(`${kind}: what was admitted stays counted, and is given back after 408`, async t => {
    const upstream = await httpUpstream(t)
    const rig = await startRig(
      t,
      { ...config(upstream.url, '1/h'), limits: { minBodyRate: 0 } },
      { ...options, virtualClock: true },
    )
    const slow: Client[] = []
    for (let count = 0; count < 5; count += 1) slow.push(await send(t, rig, upload(5, 'hell')))
    await pass(rig, 500, 5)
    t.equal((await askOnce(t, rig, get())).status, 429, 'five of five')
    rig.clock.runUntil(rig.clock.now() + 10_000)
    for (const client of slow) t.equal((await client.answer()).status, 408)
    await turns()
    const answers = [0, 1, 2, 3, 4].map(() => askOnce(t, rig, get()).catch(() => undefined))
    await rig.until(({ queued }) => queued.length >= 9)
    await pass(rig, 600, 5)
    t.equal((await answers[0])!.status, 200)
    const further = askOnce(t, rig, get())
    // A store is asked about it with the next report of the lease.
    await pass(rig, 1_000, 5)
    t.equal((await further).status, 429, 'again five of five')
  })

  t.test(`${kind}: a shutdown waits for those that are set aside, and answers the rest 503`, async t => {
    const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end()))
    const rig = await startRig(t, config(upstream.url, '1/s'), { ...options, virtualClock: true })
    const quick = await send(t, rig, upload(5, 'hell'))
    const slow = await send(t, rig, upload(5, 'hell'))
    await pass(rig, 2_000, 5)
    const drained = rig.proxy.drain(5_000)
    quick.send('o')
    await turns()
    await pass(rig, 2_100, 5)
    t.equal((await quick.answer()).status, 200)
    rig.clock.runUntil(rig.clock.now() + 5_000)
    const answer = await slow.answer()
    t.same([answer.status, answer.header('connection')], [503, 'close'])
    for (const client of [quick, slow]) client.hangUp()
    await turns()
    rig.clock.runUntil(rig.clock.now() + 10_000)
    await drained
    t.same(left(rig), NOTHING)
    t.same(rig.outcomes, ['all forwarded 200', 'all expired 503'])
  })
}

t.test(
  'meter: slow uploads hold no place in flight; one that comes whole to a full upstream is answered 503',
  async t => {
    const upstream = await rawUpstream(t)
    const rig = await startRig(t, {
      upstream: { url: upstream.url, maxInFlight: 1 },
      buckets: { all: { key: 'all', rate: '1/s', capacity: 10 } },
      routes: [{ name: 'all', mode: 'meter' }],
    })
    const slow = await send(t, rig, upload(5, 'hell'))
    const later = await send(t, rig, upload(5, 'hell'))
    const other = await send(t, rig, get('/other'))
    await upstream.until(({ text }) => text.includes('/other'))
    t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 1)
    later.send('o')
    t.equal((await later.answer()).status, 503)
    upstream.connections.find(({ text }) => text !== '')!.socket.write(OK)
    t.equal((await other.answer()).status, 200)
    slow.send('o')
    await upstream.until(({ text }) => text.endsWith('hello'))
    t.equal(rig.proxy.context.routes[0]!.upstream.gate.inFlight, 1)
    slow.hangUp()
    later.hangUp()
    await rig.finished(3)
    await turns()
    t.same(left(rig), NOTHING)
  },
)

for (const [name, routes] of [
  ['off', OFF.routes],
  ['a dry run', [{ name: 'all', dryRun: true }]],
] as const) {
  t.test(`${name}: a short body is read first, too`, async t => {
    const upstream = await httpUpstream(t, (req, res) => {
      let body = ''
      req.on('data', chunk => {
        body += chunk
      })
      req.on('end', () => res.end(body))
    })
    const rig = await startRig(
      t,
      { upstream: upstream.url, buckets: ONE_A_SECOND.buckets, routes, limits: { minBodyRate: 0 } },
      { virtualClock: true },
    )
    const client = await send(t, rig, upload(5, 'hell'))
    t.same(upstream.requests, [])
    client.send('o')
    t.equal((await client.answer()).text, 'hello')
    const slow = await send(t, rig, upload(5, 'hell'))
    rig.clock.runUntil(9_999)
    await turns()
    t.equal(slow.rest, '')
    rig.clock.runUntil(10_000)
    t.equal((await slow.answer()).status, 408)
    t.same(seen(upstream), ['/upload'])
  })
}

t.test('requestBuffer 0: every body is streamed', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: { url: upstream.url, requestBuffer: 0 }, ...OFF })
  await send(t, rig, upload(5, 'hell'))
  await upstream.until(({ text }) => text.endsWith('hell'))
})

t.test('a longer requestBuffer takes longer bodies', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.endsWith('last')) incoming.socket.write(OK)
  })
  const rig = await startRig(t, { upstream: { url: upstream.url, requestBuffer: 1_000_000 }, ...OFF })
  const client = await connect(t, rig)
  client.send(upload(1_000_000, 'x'.repeat(500_000)))
  client.send('x'.repeat(499_995))
  while (rig.proxy.context.bodyBytes.used < 999_995) await turns()
  t.equal(upstream.text, '')
  client.send('-last')
  t.equal((await client.answer()).status, 200)
  t.equal(upstream.text.split('\r\n\r\n')[1]!.length, 1_000_000)
})

t.test('a request that expires or is answered otherwise leaves nothing of its body behind', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, maxInFlight: 1, responseTimeout: '1h' },
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 10 } },
      routes: [{ name: 'all', maxWait: '2s' }],
    },
    { virtualClock: true },
  )
  const holding = await send(t, rig, get('/holds'))
  await upstream.until(({ text }) => text.includes('/holds'))
  for (const text of [upload(5_000, 'x'.repeat(4_000)), post('x'.repeat(5_000))]) {
    const client = await send(t, rig, text)
    t.ok((left(rig) as typeof NOTHING).bytes >= 4_000)
    rig.pacer.runUntil(rig.pacer.now() + 2_000)
    t.equal((await client.answer()).status, 503)
    await turns()
    t.equal((left(rig) as typeof NOTHING).bytes, 0)
    // The rest of the body, and another request.
    if (text.startsWith('POST /upload')) client.send('x'.repeat(1_000))
    client.send(get('/next'))
    await turns()
    rig.clock.runUntil(rig.clock.now() + 60_000)
    await turns()
    t.equal(client.rest, '', 'no 408 for a body of which nobody wants the rest')
    rig.pacer.runUntil(rig.pacer.now() + 2_000)
    t.equal((await client.answer()).status, 503)
  }
  holding.hangUp()
  await rig.finished(5)
  await turns()
  t.same(left(rig), NOTHING)
})

t.test('a pipelined request behind one that is set aside waits for its answer', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end(req.url)))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await send(t, rig, upload(5, 'hell'))
  client.send(`o${get('/behind')}`)
  t.equal((await client.answer()).text, '/upload')
  t.equal((await client.answer()).text, '/behind')
})

t.test('HTTP/1.0 uploads are read first, too, and get no 100', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end('done')))
  const rig = await startRig(t, { upstream: upstream.url, ...OFF })
  const client = await send(t, rig, 'POST /old HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbo')
  t.same(upstream.requests, [])
  t.equal(client.rest, '')
  client.send('dy')
  t.equal((await client.answer()).text, 'done')
})

t.test('a body over TLS is read first, too', async t => {
  const { TLS } = await import('./harness.js')
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end('done')))
  const rig = await startRig(t, { ...TLS, upstream: upstream.url, ...OFF })
  const client = await connect(t, rig, { tls: true })
  client.send(upload(5, 'hell'))
  await turns(50)
  t.same(upstream.requests, [])
  client.send('o')
  t.equal((await client.answer()).text, 'done')
  await turns()
  t.same(left(rig), NOTHING)
})

t.test('twenty uploads of a byte every 2.5 s hold no place of others in flight', async t => {
  const upstream = await httpUpstream(t, (req, res) => req.resume().on('end', () => res.end('ok')))
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, maxInFlight: 20 },
      buckets: { client: { key: 'ip', rate: '100/s', capacity: 100 } },
      routes: [{ name: 'all' }],
      trustProxy: true,
    },
    { virtualClock: true },
  )
  const slow: Client[] = []
  for (let count = 0; count < 20; count += 1) {
    slow.push(await send(t, rig, upload(100, '', 'X-Forwarded-For: 192.0.2.1')))
    await pass(rig, rig.pacer.now() + 10, 10)
  }
  let served = 0
  for (let other = 0; other < 12; other += 1) {
    // 2.5 s pass for each other request. After 10 s the uploads are answered 408.
    for (const client of slow) if (!client.ended) client.send('x')
    rig.clock.runUntil(rig.clock.now() + 2_500)
    await pass(rig, rig.pacer.now() + 2_500, 500)
    const answer = await askOnce(t, rig, get('/', `X-Forwarded-For: 192.0.2.${other + 2}`))
    if (answer.status === 200) served += 1
  }
  t.equal(served, 12)
  for (const client of slow) t.equal((await client.answer()).status, 408)
})
