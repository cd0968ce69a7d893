/** Deadlines and patience: what is not worth sending is not sent (contract 9.1). */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import {
  answering,
  askOnce,
  type Client,
  connect,
  get,
  httpUpstream,
  OK,
  ONE_A_SECOND,
  occupy,
  pass,
  type RawUpstream,
  type Rig,
  rawUpstream,
  startRig,
  turns,
} from './harness.js'

/** One request a second, the first at once; `waiting` others wait. */
async function queue(
  t: Parameters<typeof connect>[0],
  { waiting, route = {}, config = {} }: { waiting: number; route?: object; config?: object },
) {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    ...ONE_A_SECOND,
    routes: [{ name: 'all', ...route }],
    ...config,
  })
  await occupy(t, rig)
  for (let number = 0; number < waiting; number += 1) {
    const client = await connect(t, rig)
    client.send(get(`/${number}`))
    await rig.until(({ queued }) => queued.length === number + 1)
  }
  return { upstream, rig }
}

t.test('patience of a route: who would wait longer is rejected, with the time until the wait fits', async t => {
  const { rig } = await queue(t, { waiting: 2, route: { patience: '2s' } })
  // It would leave after 3 s.
  const late = await askOnce(t, rig, get())
  t.equal(late.status, 429)
  t.equal(late.header('retry-after'), '1')
  t.equal(late.json().retryAfterMs, 1_000)
  t.match(late.json().detail, /would make it wait 3 s, and clients stop waiting before the answer: this one waits 2 s$/)
  t.same(rig.rejections, ['patience all'])
  t.same(rig.outcomes.at(-1), 'all rejected 429')
})

for (const [name, header, config] of [
  ['Prefer: wait', 'Prefer: wait=2', {}],
  ['grpc-timeout in ms', 'grpc-timeout: 2500m', {}],
  ['grpc-timeout in s', 'grpc-timeout: 2S', {}],
  ['the timeout of Envoy from a trusted hop', 'X-Envoy-Expected-Rq-Timeout-Ms: 2500', { trustProxy: ['127.0.0.1'] }],
] as const) {
  t.test(`${name} is a deadline`, async t => {
    const { rig } = await queue(t, { waiting: 2, config })
    t.equal((await askOnce(t, rig, get('/', header))).status, 429)
    // A client without one waits.
    const client = await connect(t, rig)
    client.send(get())
    await rig.until(({ queued }) => queued.length === 3)
  })
}

for (const [name, header, route] of [
  ['the timeout of Envoy from anybody', 'X-Envoy-Expected-Rq-Timeout-Ms: 2500', {}],
  ['a grpc-timeout that is malformed', 'grpc-timeout: 2.5S', {}],
  ['a grpc-timeout with too many digits', 'grpc-timeout: 000000001S', {}],
  ['a grpc-timeout with "patience": "none"', 'grpc-timeout: 2S', { patience: 'none' }],
] as const) {
  t.test(`${name} is no deadline`, async t => {
    const { rig } = await queue(t, { waiting: 2, route })
    const client = await connect(t, rig)
    client.send(get('/', header))
    await rig.until(({ queued }) => queued.length === 3)
  })
}

t.test('a client that names a deadline is believed instead of the route', async t => {
  const { rig } = await queue(t, { waiting: 2, route: { patience: '2s' } })
  const client = await connect(t, rig)
  client.send(get('/', 'grpc-timeout: 10S'))
  await rig.until(({ queued }) => queued.length === 3)
})

t.test('a release that is a little late is not given up, though its client was to wait just so long', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(
    t,
    { upstream: upstream.url, ...ONE_A_SECOND, routes: [{ name: 'all', patience: '2s' }] },
    { lateness: () => 1.5 },
  )
  await occupy(t, rig)
  const answers = [1, 2].map(number => askOnce(t, rig, get(`/${number}`)))
  await rig.until(({ queued }) => queued.length === 2)
  await pass(rig, 3_000, 100)
  t.same(
    (await Promise.all(answers)).map(({ status }) => status),
    [200, 200],
  )
})

t.test('a request whose answer would come too late is answered 503 by then, and its slot is used', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    ...ONE_A_SECOND,
    routes: [{ name: 'all', patience: '2s' }],
  })
  const first = await connect(t, rig)
  first.send(get('/1'))
  const incoming = await upstream.connection(0)
  await incoming.until(/\/1 /)
  const second = await connect(t, rig)
  second.send(get('/2'))
  await rig.until(({ queued }) => queued.length === 1)
  await pass(rig, 2_500, 500)
  const given = await second.answer()
  t.same(rig.waits, [2_000])
  t.equal(given.status, 503)
  t.ok(Number(given.header('retry-after')) >= 1)
  t.match(given.json().detail, /the answer would come after clients have stopped waiting/)
  const third = await connect(t, rig)
  third.send(get('/3'))
  await rig.until(({ queued }) => queued.length === 2)
  incoming.socket.write(OK)
  t.equal((await first.answer()).status, 200)
  await incoming.until(/\/3 /)
  incoming.socket.write(OK)
  t.equal((await third.answer()).status, 200)
  t.same(rig.outcomes, ['all expired 503', 'all forwarded 200', 'all forwarded 200'])
  t.notMatch(upstream.text, /\/2 /)
})

for (const [source, header, route] of [
  ['grpc-timeout', 'grpc-timeout: 2S', {}],
  ['X-Envoy-Expected-Rq-Timeout-Ms', 'X-Envoy-Expected-Rq-Timeout-Ms: 2000', {}],
  ['Prefer: wait', 'Prefer: wait=2', {}],
  ['patience of the route', 'X-Other: 1', { patience: '2s' }],
  ['maxWait of the route', 'X-Other: 1', { maxWait: '2s', patience: 'none' }],
] as const) {
  t.test(`${source}: 503 by then while the upstream is full, or pauses`, async t => {
    const upstream = await rawUpstream(t)
    const rig = await startRig(t, {
      upstream: { url: upstream.url, maxInFlight: 2, pauseOn: { status: [429], max: '60s' } },
      trustProxy: ['loopback'],
      buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
      routes: [{ name: 'all', ...route }],
    })
    const ask = async (from: number, ...headers: string[]) => {
      const client = await connect(t, rig)
      client.send(get('/', `X-Forwarded-For: 10.0.0.${from}`, ...headers))
      return client
    }
    // Answers after 300 ms, but for maxWait, which is of the wait alone.
    for (let round = 0; round < 10; round += 1) {
      const clients = [await ask(2 * round), await ask(2 * round + 1)]
      await rig.until(({ queued }) => queued.length === round + 1)
      await pass(rig, rig.pacer.now() + 1, 1)
      await upstream.until(({ requests }) => requests === 2 * round + 2)
      await pass(rig, rig.pacer.now() + 300, 300)
      for (const { socket } of upstream.connections) socket.write(OK)
      for (const client of clients) await client.answer()
    }
    const longest = 'maxWait' in route ? 2_000 : 1_700
    for (const from of [31, 32]) void (await ask(from, 'grpc-timeout: 60S'))
    await rig.until(({ queued }) => queued.length === 11)
    await pass(rig, rig.pacer.now() + 1, 1)
    await upstream.until(({ requests }) => requests === 22)
    rig.waits.length = 0
    const { length } = rig.queued
    const full = await ask(33, header)
    await rig.until(({ queued }) => queued.length > length)
    await pass(rig, rig.pacer.now() + 2_000, 100)
    t.equal((await full.answer()).status, 503)
    t.ok(Math.abs(rig.waits[0]! - longest) < 2, `full: ${rig.waits[0]} ms`)
    const paused = await ask(34, header)
    await rig.until(({ queued }) => queued.length > length + 1)
    upstream.connections[0]!.socket.write('HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n')
    await rig.finished(22)
    await pass(rig, rig.pacer.now() + 900, 100)
    upstream.connections[1]!.socket.write('HTTP/1.1 429 No\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n')
    t.equal((await paused.answer()).status, 503)
    t.match(rig.outcomes.slice(-3).sort(), ['all expired 503', 'all forwarded 429', 'all forwarded 429'])
    t.ok(rig.waits.every(wait => wait < 2_002))
  })
}

t.test('long: a deadline holds while the connection to the upstream is being opened', async t => {
  // A handshake that is never answered.
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, { upstream: `https://127.0.0.1:${new URL(upstream.url).port}`, ...ONE_A_SECOND })
  const client = await connect(t, rig)
  client.send(get('/', 'Prefer: wait=2'))
  await rig.until(({ queued, outcomes }) => queued.length + outcomes.length > 0 || upstream.connections.length > 0)
  await upstream.until(({ connections }) => connections.length > 0)
  await pass(rig, 1_900, 100)
  t.same(rig.outcomes, [])
  await pass(rig, 2_000, 100)
  const answer = await client.answer()
  t.equal(answer.status, 503)
  t.match(answer.json().detail, /after clients have stopped waiting/)
  t.match(rig.outcomes, [/expired 503$/])
})

t.test('explain on arrival: what was predicted, how long the client waits, and that this decided', async t => {
  const { rig } = await queue(t, { waiting: 2, route: { patience: '2s', explain: true } })
  t.equal(
    (await askOnce(t, rig, get())).header('Shaper-Explain'),
    '"all";position=2;wait=0.0;cost=1;predicted=3000.0;patience=2000.0;source=known;given-up=arrival',
  )
  t.match(rig.givenUp, [{ at: 'arrival', patience: 2_000, source: 'known', service: 0 }])
  const patient = await connect(t, rig)
  patient.send(get('/', 'grpc-timeout: 10S'))
  await rig.until(({ queued }) => queued.length === 3)
  await pass(rig, 3_000, 500)
  t.equal(
    (await patient.answer()).header('Shaper-Explain'),
    '"all";position=2;wait=3000.0;cost=1;predicted=3000.0;patience=10000.0;source=known',
  )
})

t.test('explain of one that is given up while it waits: it has waited longer than was predicted', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, maxInFlight: 1 },
    ...ONE_A_SECOND,
    routes: [{ name: 'all', patience: '2s', explain: true }],
  })
  const first = await connect(t, rig)
  first.send(get('/1'))
  const incoming = await upstream.connection(0)
  await incoming.until(/\/1 /)
  const second = await connect(t, rig)
  second.send(get('/2'))
  await rig.until(({ queued }) => queued.length === 1)
  await pass(rig, 2_500, 500)
  incoming.socket.write(OK)
  t.equal(
    (await second.answer()).header('Shaper-Explain'),
    '"all";position=0;wait=2000.0;cost=1;predicted=1000.0;patience=2000.0;source=known;given-up=release',
  )
  t.match(rig.givenUp, [{ at: 'release', patience: 2_000, source: 'known' }])
})

t.test('a rejection for maxWait is none for patience, and does not say so', async t => {
  const { rig } = await queue(t, { waiting: 1, route: { maxWait: '1s', patience: '10s', explain: true } })
  const late = await askOnce(t, rig, get())
  t.equal(late.status, 429)
  t.match(late.json().detail, /would make it wait 2 s$/)
  t.same(rig.rejections, ['max-wait all'])
  t.notMatch(late.header('Shaper-Explain'), /given-up/)
  t.same(rig.givenUp, [])
})

t.test('explain in meter predicts no wait', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    ...ONE_A_SECOND,
    routes: [{ name: 'all', mode: 'meter', explain: true }],
  })
  t.equal((await askOnce(t, rig, get())).header('Shaper-Explain'), '"all";position=0;wait=0.0;cost=1')
})

t.test('what the upstream takes to answer counts: its 90th percentile after 20 answers', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, connections: 1 },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
    routes: [{ name: 'all', patience: '2s' }],
  })
  const client = await connect(t, rig)
  const answered = answerAfter(t, { rig, upstream, client })
  for (let number = 0; number < 20; number += 1) await answered(`/${number}`, 1_500)
  // Nothing waits, but an answer takes 1.5 s.
  const hurried = await askOnce(t, rig, get('/', 'Prefer: wait=1'))
  t.equal(hurried.status, 429)
  client.send(get('/last', 'Prefer: wait=2'))
  await (await upstream.connection(0)).until(/last/)
})

t.test('answers that took longer than clients wait are looked at again', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, {
    upstream: { url: upstream.url, connections: 1 },
    buckets: { all: { key: 'all', rate: '1000/s', capacity: 100 } },
    routes: [{ name: 'all', patience: '2s' }],
  })
  const client = await connect(t, rig)
  const answered = answerAfter(t, { rig, upstream, client })
  for (let number = 0; number < 20; number += 1) await answered(`/slow${number}`, 3_000)
  const early = await askOnce(t, rig, get())
  t.equal(early.status, 429)
  t.equal(early.json().retryAfterMs, 10_000, 'then one may look')
  t.match(early.json().detail, /would make it wait 0 s, .*: this one waits 2 s, and answers take 3 s$/)
  rig.pacer.runUntil(rig.pacer.now() + 10_000)
  await answered('/look', 3_000)
  t.equal((await askOnce(t, rig, get())).status, 429, 'answers are as slow as before')
  rig.pacer.runUntil(rig.pacer.now() + 10_000)
  await answered('/again', 100)
  for (let number = 0; number < 20; number += 1) await answered(`/fast${number}`, 100)
  t.same(rig.rejections, ['patience all', 'patience all'])
  t.equal(rig.trials, 0)
})

t.test('without a bucket a look goes the same way, and the answer does not speak of a pause', async t => {
  const upstream = await rawUpstream(t)
  const rig = await startRig(t, {
    upstream: upstream.url,
    buckets: { user: { key: { from: 'header:x-user', missing: 'skip' }, rate: '5/s' } },
    routes: [{ name: 'all', patience: '2s' }],
  })
  const client = await connect(t, rig)
  const answered = answerAfter(t, { rig, upstream, client })
  for (let number = 0; number < 20; number += 1) await answered(`/${number}`, 3_000)
  const told = await askOnce(t, rig, get())
  t.match(told.json(), {
    detail: 'clients stop waiting before the answer: this one waits 2 s, and answers take 3 s',
    retryAfterMs: 10_000,
  })
  t.same(rig.rejections, ['patience '])
})

/** Sends requests that the upstream answers after a time in ms. */
function answerAfter(assert: Pick<typeof t, 'equal'>, { rig, upstream, client }: Answered) {
  return async (path: string, ms: number) => {
    client.send(get(path))
    const incoming = await upstream.connection(0)
    await incoming.until(new RegExp(`${path} `))
    rig.pacer.runUntil(rig.pacer.now() + ms)
    incoming.socket.write(OK)
    assert.equal((await client.answer()).status, 200)
  }
}

interface Answered {
  readonly rig: Rig
  readonly upstream: RawUpstream
  readonly client: Client
}

/** 30 clients come at once and leave after 600 ms. Then somebody knows how long they wait. */
async function impatience(t: Parameters<typeof connect>[0], route: object = {}) {
  const upstream = await rawUpstream(t, answering(OK))
  const config = {
    listen: '127.0.0.1:0',
    upstream: upstream.url,
    buckets: { all: { key: 'all', rate: '10/s', capacity: 100 } },
    routes: [{ name: 'all', ...route }],
  }
  const rig = await startRig(t, config)
  const clients = []
  for (let number = 0; number < 30; number += 1) {
    const client = await connect(t, rig)
    client.send(get('/first'))
    clients.push(client)
    await rig.until(({ queued, outcomes }) => queued.length + outcomes.length > number)
  }
  await pass(rig, 600, 50)
  // Those that have left by now have their answers.
  await rig.finished(7)
  for (const client of clients) client.hangUp()
  await rig.finished(30)
  return { upstream, rig, config }
}

t.test('how long clients wait is learnt: newcomers that would wait longer are rejected', async t => {
  const { rig } = await impatience(t, {})
  t.equal(rig.outcomes.filter(outcome => outcome === 'all cancelled 499').length, 23)
  const start = rig.outcomes.length
  for (let number = 0; number < 19; number += 1) {
    const client = await connect(t, rig)
    client.send(get('/second'))
    await rig.until(({ queued, outcomes }) => queued.length - 29 + outcomes.length - start > number)
  }
  // The last release was at 600 ms. 582 ms is the learnt patience.
  t.same(new Set(rig.outcomes.slice(start)), new Set(['all rejected 429']))
  t.equal(rig.outcomes.length - start, 19 - 5, 'five may wait, up to 500 ms')
})

t.test('explain tells learnt patience and that it decided; a trial is no request that was given up', async t => {
  const { rig } = await impatience(t, { explain: true })
  const start = rig.outcomes.length
  const clients = []
  for (let number = 0; number < 25; number += 1) {
    const client = await connect(t, rig)
    client.send(get('/second'))
    clients.push(client)
    await rig.until(({ queued, outcomes }) => queued.length - 29 + outcomes.length - start > number)
  }
  t.equal(
    (await clients[5]!.answer()).header('Shaper-Explain'),
    '"all";position=5;wait=0.0;cost=1;predicted=600.0;patience=582.0;source=learnt;given-up=arrival',
  )
  t.equal(rig.givenUp.length, 19)
  t.ok(rig.givenUp.every(({ at, source }) => at === 'arrival' && source === 'learnt'))
  t.equal(rig.trials, 0, 'it is not over')
  await pass(rig, 2_000, 50)
  const kept = (await clients[24]!.answer()).header('Shaper-Explain')
  t.match(kept, /;predicted=600\.0;patience=582\.0;source=learnt$/)
  t.equal(rig.trials, 1)
  t.equal(rig.givenUp.length, 19)
})

t.test('with "patience": "none" nothing is learnt', async t => {
  const { rig } = await impatience(t, { patience: 'none' })
  const start = rig.outcomes.length
  for (let number = 0; number < 19; number += 1) {
    const client = await connect(t, rig)
    client.send(get('/second'))
    await rig.until(({ queued, outcomes }) => queued.length - 29 + outcomes.length - start > number)
  }
  t.equal(rig.outcomes.length, start)
})

t.test('one in twenty that would be sent away waits on: it is sent if its client does', async t => {
  const { rig, upstream } = await impatience(t, {})
  const start = rig.outcomes.length
  const before = rig.queued.length
  const clients = []
  for (let number = 0; number < 25; number += 1) {
    const client = await connect(t, rig)
    client.send(get(`/${number}`))
    clients.push(client)
    await rig.until(({ queued, outcomes }) => queued.length - before + outcomes.length - start > number)
  }
  // 5 wait, 19 are sent away, and one is on trial.
  t.equal(rig.queued.length - before, 6)
  t.equal(rig.outcomes.length - start, 19)
  await pass(rig, 2_000, 50)
  await rig.until(({ outcomes }) => outcomes.length - start === 25)
  t.match(upstream.text, /\/24 /, 'the 20th that would be sent away was the last')
  await turns()
})

t.test('one that waits on is sent at its turn where its maxWait leaves no time for a trial', async t => {
  const { rig, upstream, config } = await impatience(t)
  const [route] = config.routes
  await rig.proxy.reload(parseConfig(JSON.stringify({ ...config, routes: [{ ...route, maxWait: '620ms' }] })))
  // Its turn is after 500 ms, and its answer comes after 600. A trial would last until 630.
  const { service } = rig.proxy.context.routes[0]!.waits
  for (let number = 0; number < 20; number += 1) service.add('127.0.0.1', 100, rig.pacer.now())
  const start = rig.outcomes.length
  const before = rig.queued.length
  for (let number = 0; number < 24; number += 1) {
    const client = await connect(t, rig)
    client.send(get(`/${number}`))
    await rig.until(({ queued, outcomes }) => queued.length - before + outcomes.length - start > number)
  }
  await pass(rig, 2_000, 50)
  await rig.until(({ outcomes }) => outcomes.length - start === 24)
  t.equal(rig.trials, 1)
  t.match(upstream.text, /\/23 /)
  t.equal(rig.outcomes.at(-1), 'all forwarded 200')
  t.equal(rig.waits.at(-1), 500)
})

t.test('a dry run heeds known deadlines and learns nothing', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startRig(t, { upstream: upstream.url, ...ONE_A_SECOND, routes: [{ name: 'all', dryRun: true }] })
  t.equal((await askOnce(t, rig, get())).status, 200)
  t.equal((await askOnce(t, rig, get('/', 'grpc-timeout: 500m'))).status, 200)
  t.same(rig.rehearsed, ['all would_reject'])
})
