/** An upstream that fails: what waits, what is refused, and what tries it (contract 8.4). */
import { createServer, type Socket } from 'node:net'
import t from 'tap'
import { freePort } from '../servers/free-port.js'
import {
  answering,
  askOnce,
  connect,
  get,
  httpUpstream,
  OK,
  type Rig,
  rawUpstream,
  resolving,
  startRig,
  turns,
} from './harness.js'

const SHAPED = { buckets: { all: { key: 'all', rate: '5/s', capacity: 20 } }, routes: [{ name: 'all' }] }

const ONE_HUNDRED_A_SECOND = {
  buckets: { all: { key: 'all', rate: '100/s', capacity: 1_000 } },
  routes: [{ name: 'all' }],
}

interface Teardown {
  teardown(run: () => unknown): void
}

/** Lets virtual time pass on both clocks in steps, and the event loop turn between them. */
async function pass({ pacer, clock }: Rig, ms: number, step = 50): Promise<void> {
  for (const end = pacer.now() + ms; pacer.now() < end; ) {
    const next = Math.min(end, pacer.now() + step)
    pacer.runUntil(next)
    clock.runUntil(next)
    await turns(40)
  }
}

/** Listens on a port that refused until now. */
async function comeUp(t: Teardown, port: number): Promise<{ readonly requests: string[] }> {
  const requests: string[] = []
  const sockets: Socket[] = []
  const server = createServer(socket => {
    sockets.push(socket.on('error', () => undefined))
    socket.on('data', data => {
      requests.push(data.toString('latin1').split('\r\n')[0]!)
      socket.write(OK)
    })
  })
  await new Promise<void>(resolve => server.listen(port, '127.0.0.1', resolve))
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  return { requests }
}

t.test('an upstream that comes back within hold costs no queued client an error, and the order stays', async t => {
  const port = await freePort()
  const rig = await startRig(t, { upstream: `http://127.0.0.1:${port}`, ...SHAPED }, { virtualClock: true })
  const clients = []
  for (let index = 0; index < 6; index += 1) {
    const client = await connect(t, rig)
    client.send(get(`/${index}`))
    clients.push(client)
    await turns()
  }
  await pass(rig, 2_500)
  t.same(rig.outcomes, [], 'nobody has an answer')
  const upstream = await comeUp(t, port)
  await pass(rig, 3_000)
  for (const client of clients) t.equal((await client.answer()).status, 200)
  t.same(
    upstream.requests,
    clients.map((_, index) => `GET /${index} HTTP/1.1`),
  )
})

t.test('an upstream that stays away: 503 after hold with Retry-After of the next probe, newcomers at once', async t => {
  const port = await freePort()
  const rig = await startRig(t, { upstream: `http://127.0.0.1:${port}`, ...SHAPED }, { virtualClock: true })
  const clients = await Promise.all(Array.from({ length: 10 }, () => connect(t, rig)))
  for (const client of clients) client.send(get())
  await rig.until(({ queued }) => queued.length >= 9)
  await pass(rig, 4_900)
  t.equal(rig.outcomes.length, 0, 'they wait')
  // The fifth failure was at 800 ms, so hold ends at 5,800.
  await pass(rig, 1_000)
  t.same(
    rig.outcomes,
    Array.from({ length: 10 }, () => 'all failed 503'),
  )
  for (const client of clients) {
    const answer = await client.answer()
    // Probes after 1 and 2 s: at 1,800 and 3,800. The next is at 7,800.
    t.match(answer.json(), { status: 503, title: 'Service Unavailable' })
    t.ok(Number(answer.header('retry-after')) <= 3 && Number(answer.header('retry-after')) >= 2)
  }
  t.ok(rig.failures.length >= 7 && rig.failures.length <= 8, `${rig.failures.length} tries: 5, then the probes`)
  const newcomer = await askOnce(t, rig, get())
  t.equal(newcomer.status, 503)
  await pass(rig, 2_200)
  const upstream = await comeUp(t, port)
  t.equal((await askOnce(t, rig, get('/probe'))).status, 200, 'the next that comes is the probe')
  t.same(upstream.requests, ['GET /probe HTTP/1.1'])
  await pass(rig, 200)
  t.equal((await askOnce(t, rig, get('/next'))).status, 200, 'it has closed the breaker')
})

for (const [name, upstream] of [
  ['HTTP/1.1', {}],
  ['HTTP/2', { http2: true }],
  ['no keep-alive', { keepAlive: false }],
] as const) {
  t.test(`a dead port hears of five attempts and the probes, whatever waits or arrives: ${name}`, async t => {
    const names = resolving(t)
    const url = `http://upstream.test:${await freePort()}`
    const config = { upstream: { url, ...upstream }, ...ONE_HUNDRED_A_SECOND }
    const rig = await startRig(t, config, { virtualClock: true })
    const clients = await Promise.all(Array.from({ length: 100 }, () => connect(t, rig)))
    for (const client of clients) client.send(get())
    await rig.until(({ queued }) => queued.length >= 99)
    await pass(rig, 500, 10)
    t.equal(names.length, 5, 'the breaker is open')
    for (let count = 0; count < 100; count += 1) {
      const client = await connect(t, rig)
      client.send(get())
      await pass(rig, 50)
    }
    t.same(new Set(rig.outcomes), new Set(['all failed 503']))
    // After 1 and 3 s. The next is after 7 s.
    t.equal(names.length, 7)
  })
}

t.test('an upstream that has served and is gone, or takes connections to reset them, hears no more', async t => {
  const served = await rawUpstream(t, answering(OK))
  const names = resolving(t)
  const config = { upstream: `http://upstream.test:${served.port}`, trustProxy: ['loopback'], ...ONE_HUNDRED_A_SECOND }
  const rig = await startRig(t, config, { virtualClock: true })
  const askAll = async (): Promise<void> => {
    const clients = await Promise.all(Array.from({ length: 20 }, () => connect(t, rig)))
    for (const [index, client] of clients.entries()) client.send(get('/', `X-Forwarded-For: 10.0.0.${index}`))
    await pass(rig, 500, 10)
  }
  await askAll()
  t.equal((await rig.finished(20)).at(-1), 'all forwarded 200')
  await served.close()
  await turns()
  names.length = 0
  await askAll()
  t.equal(names.length, 5, 'the breaker is open')
  const resetting = createServer(socket => socket.on('error', () => undefined).resetAndDestroy())
  await new Promise<void>(resolve => resetting.listen(served.port, '127.0.0.1', resolve))
  t.teardown(() => resetting.close())
  await askAll()
  await pass(rig, 3_000)
  t.equal(names.length, 7, 'one for each probe')
})

t.test('failures of one client do not open it, those of two do', async t => {
  const upstream = await rawUpstream(t, incoming => {
    if (incoming.text.includes('/crash')) incoming.socket.destroy()
    else answering(OK)(incoming)
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url },
      trustProxy: ['loopback'],
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all', mode: 'meter' }],
    },
    { virtualClock: true },
  )
  const crash = (from: string): Promise<{ status: number }> =>
    askOnce(t, rig, get('/crash', `X-Forwarded-For: ${from}`))
  for (let count = 0; count < 10; count += 1) t.equal((await crash('10.0.0.1')).status, 502)
  t.equal((await askOnce(t, rig, get('/fine'))).status, 200)
  for (let count = 0; count < 4; count += 1) await crash('10.0.0.1')
  t.equal((await crash('10.0.0.2')).status, 502)
  const refused = await askOnce(t, rig, get('/fine'))
  t.match([refused.status, refused.header('retry-after')], [503, '1'], 'in meter nobody waits')
  await pass(rig, 1_000)
  t.equal((await askOnce(t, rig, get('/fine'))).status, 200, 'the probe')
  t.equal((await askOnce(t, rig, get('/fine'))).status, 200)
})

t.test('false turns it off: 502 at once', async t => {
  const rig = await startRig(t, {
    upstream: { url: `http://127.0.0.1:${await freePort()}`, breaker: false },
    ...SHAPED,
  })
  for (let count = 0; count < 7; count += 1) {
    const asked = askOnce(t, rig, get())
    if (count > 0) await rig.until(({ queued }) => queued.length === count)
    rig.pacer.runUntil(count * 200)
    t.equal((await asked).status, 502)
  }
})

t.test('a probe whose client hangs up lets another one try', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, responseTimeout: '100ms', breaker: { failures: 2 } },
      trustProxy: ['loopback'],
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all' }],
    },
    { virtualClock: true },
  )
  for (const from of ['10.0.0.1', '10.0.0.2']) {
    const asked = askOnce(t, rig, get('/', `X-Forwarded-For: ${from}`))
    await upstream.until(({ requests }) => requests > (from === '10.0.0.1' ? 0 : 1))
    await pass(rig, 150)
    t.equal((await asked).status, 504)
  }
  const first = await connect(t, rig)
  first.send(get('/first'))
  const second = await connect(t, rig)
  await rig.until(({ queued }) => queued.length === 1)
  second.send(get('/second'))
  await rig.until(({ queued }) => queued.length === 2)
  await pass(rig, 1_000)
  await upstream.until(({ text }) => text.includes('/first'))
  t.notMatch(upstream.text, '/second')
  first.hangUp()
  await upstream.until(({ text }) => text.includes('/second'))
})

t.test('an off route: its request is the probe, others are refused', async t => {
  const port = await freePort()
  const rig = await startRig(
    t,
    { upstream: `http://127.0.0.1:${port}`, routes: [{ name: 'off', mode: 'off' }] },
    { virtualClock: true },
  )
  for (let count = 0; count < 5; count += 1) t.equal((await askOnce(t, rig, get())).status, 502)
  t.equal((await askOnce(t, rig, get())).status, 503)
  await pass(rig, 1_000)
  t.equal((await askOnce(t, rig, get())).status, 502, 'the probe')
  t.equal((await askOnce(t, rig, get())).status, 503)
  await comeUp(t, port)
  await pass(rig, 2_000)
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.equal((await askOnce(t, rig, get())).status, 200)
})

t.test('an answer with a status of the list counts as a failure', async t => {
  let status = 500
  const upstream = await httpUpstream(t, (_req, res) => {
    res.statusCode = status
    res.end()
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, breaker: { failures: 3, status: [500] } },
      trustProxy: ['loopback'],
      routes: [{ name: 'off', mode: 'off' }],
    },
    { virtualClock: true },
  )
  for (const from of ['10.0.0.1', '10.0.0.2', '10.0.0.1']) {
    t.equal((await askOnce(t, rig, get('/', `X-Forwarded-For: ${from}`))).status, 500)
  }
  t.equal((await askOnce(t, rig, get())).status, 503)
  status = 200
  await pass(rig, 1_000)
  t.equal((await askOnce(t, rig, get())).status, 200)
})

t.test('warmUp: after a pause, and after it failed, the rate climbs evenly from a tenth', async t => {
  let status = 200
  const upstream = await httpUpstream(t, (_req, res) => {
    res.statusCode = status
    res.end()
  })
  const rig = await startRig(
    t,
    {
      upstream: { url: upstream.url, warmUp: '10s', pauseOn: { status: [429], default: '1s' } },
      buckets: { all: { key: 'all', rate: '20/s', capacity: 300 } },
      routes: [{ name: 'all' }],
    },
    { virtualClock: true },
  )
  status = 429
  t.equal((await askOnce(t, rig, get())).status, 429)
  status = 200
  const clients = await Promise.all(Array.from({ length: 250 }, () => connect(t, rig)))
  for (const client of clients) client.send(get())
  await rig.until(({ queued }) => queued.length === 250)
  const perSecond: number[] = []
  let before = rig.released.length
  for (let second = 0; second < 13; second += 1) {
    await pass(rig, 1_000, 10)
    perSecond.push(rig.released.length - before)
    before = rig.released.length
  }
  t.ok(perSecond[0]! <= 1, 'the pause, to its last moment')
  t.ok(perSecond[1]! >= 1 && perSecond[1]! <= 4, `a tenth at first: ${perSecond.join(' ')}`)
  const climb = perSecond.slice(1, 11)
  const sum = climb.reduce((total, count) => total + count, 0)
  t.ok(Math.abs(sum - 110) <= 6, `the mean of a tenth and all, for 10 s: ${sum}`)
  t.same(
    climb,
    climb.toSorted((a, b) => a - b),
    'evenly',
  )
  t.same(perSecond.slice(11), [20, 20], 'then all of it')
})
