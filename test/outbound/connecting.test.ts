/** What happens between a release and the end of an answer, when things hang or go wrong. */
import { createServer } from 'node:net'
import { Readable } from 'node:stream'
import t, { type Test } from 'tap'
import { Agent, buildConnector, type Dispatcher, fetch, request } from 'undici'
import { type ShapeOptions, shape } from '../../src/index.js'
import { watchStalls } from '../stalls.js'
import { gaps, serve } from './upstreams.js'

function shaped(t: Test, options: Partial<ShapeOptions> = {}, agent = new Agent()) {
  const interceptor = shape({ rate: '50/s', capacity: 100, ...options } as ShapeOptions)
  t.teardown(() => agent.destroy())
  return { dispatcher: agent.compose(interceptor), shaper: interceptor.shaper }
}

const wait = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))

/** Connections that are never opened: the first `count`, to these ports or to any. */
function hanging(count: number, port?: string): Agent {
  const connect = buildConnector({})
  let left = count
  return new Agent({
    connect: (options, callback) => {
      if ((port === undefined || options.port === port) && left-- > 0) return
      connect(options, callback)
    },
  })
}

// These tests wait more than they compute.
t.jobs = 4

t.test('handlers of undici 6 get an error at once that asks for undici 7', async t => {
  const { shaper } = shape({ rate: 5, capacity: 5 })
  const dispatch = shape({ rate: 5, capacity: 5 })(() => true)
  const old = { onConnect() {}, onHeaders: () => true, onData: () => true, onComplete() {}, onError() {} }
  t.throws(() => dispatch({ path: '/', method: 'GET' }, old), {
    name: 'TypeError',
    message: 'shape() needs undici 7 or 8: npm install undici@7',
  })
  t.match(shaper.status(), { queued: 0 })
})

t.test('a handler with only onError gets its error there', async t => {
  const errors: Error[] = []
  const dispatch = shape({ rate: 5, capacity: 5 })(() => {
    throw new Error('cannot be dispatched')
  })
  dispatch({ path: '/', method: 'GET' }, { onRequestStart() {}, onError: error => errors.push(error) })
  t.match(errors, [{ message: 'cannot be dispatched' }])
})

t.test('limits that change while a connection opens keep the distance to the next request', async t => {
  const { origin, seen } = await serve(t, (_, res) => res.end('ok'))
  const connect = buildConnector({})
  let opened = 0
  const agent = new Agent({
    connect: (options, callback) => void setTimeout(() => connect(options, callback), opened++ === 0 ? 360 : 0),
  })
  const { dispatcher, shaper } = shaped(t, { rate: '5/s' }, agent)
  const stalls = watchStalls(t)
  const answers = [1, 2, 3].map(async () => (await request(origin, { dispatcher })).body.dump())
  await wait(120)
  shaper.update({ rate: '5.25/s' })
  await Promise.all(answers)
  const times = seen.map(({ at }) => at)
  t.ok(Math.min(...gaps(times)) > 150 - stalls.longest(), `${gaps(times)}`)
})

t.test('an aborted request with a hanging connection lets the next pass at once', async t => {
  const { origin, seen } = await serve(t, (_, res) => res.end('ok'))
  const { dispatcher, shaper } = shaped(t, { maxInFlight: 1 }, hanging(1))
  const body = new Readable({ read() {} })
  const controller = new AbortController()
  const { signal } = controller
  const first = request(origin, { dispatcher, method: 'POST', body, signal }).catch((error: Error) => error)
  const second = request(origin, { dispatcher })
  await wait(50)
  t.match(shaper.status(origin), { queued: 1, inFlight: 1 })
  const stalls = watchStalls(t)
  const abortedAt = performance.now()
  controller.abort(new Error('enough'))
  t.match(await first, { message: 'enough' })
  t.equal((await second).statusCode, 200)
  t.ok(seen[0]!.at - abortedAt < 400 + stalls.longest(), `${seen[0]!.at - abortedAt} ms later`)
  t.ok(body.destroyed)
  await (await second).body.dump()
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

for (const key of ['all', () => 'mine'] as const) {
  t.test(`${key}: a key that spans origins waits for a connection to one of them for a second at most`, async t => {
    const [dead, alive] = [await serve(t, (_, res) => res.end()), await serve(t, (_, res) => res.end('ok'))]
    const agent = hanging(2, new URL(dead.origin).port)
    const { dispatcher } = shaped(t, { rate: '10/s', key }, agent)
    const stalls = watchStalls(t)
    const began = performance.now()
    const stuck = fetch(dead.origin, { dispatcher }).catch((error: Error) => error)
    const others = [1, 2, 3].map(() => fetch(alive.origin, { dispatcher }))
    for (const other of others) t.equal(await (await other).text(), 'ok')
    const times = alive.seen.map(({ at }) => at)
    const late = stalls.longest()
    t.ok(times[0]! - began >= 999 && times[0]! - began < 2_000 + late, `${times[0]! - began} ms`)
    t.ok(Math.min(...gaps(times)) > 40 - late, `${gaps(times)}, noticed ${late} ms late`)
    await agent.destroy()
    t.match(await stuck, { name: 'TypeError' })
  })
}

t.test('a key of one origin keeps waiting, so that nothing is bunched when the origin is back', async t => {
  const { origin, seen } = await serve(t, (_, res) => res.end('ok'))
  const connect = buildConnector({})
  const agent = new Agent({ connect: (options, callback) => void setTimeout(() => connect(options, callback), 1_300) })
  const { dispatcher } = shaped(t, { rate: '5/s' }, agent)
  const stalls = watchStalls(t)
  await Promise.all([1, 2].map(async () => (await request(origin, { dispatcher })).body.dump()))
  const [gap] = gaps(seen.map(({ at }) => at))
  t.ok(gap! > 80 - stalls.longest(), `${gap} ms`)
})

/** Answers the first request with a 429 whose body never ends, others with 200. */
async function endless(t: Test) {
  const { origin, seen } = await serve(t, (_, res) => {
    if (seen.length > 1) return res.end('ok')
    res.writeHead(429, { 'content-length': 10, 'retry-after': '0' }).write('abc')
  })
  return { origin, seen }
}

t.test('a discarded answer is read for a second at most, and is in flight until then', async t => {
  const { origin, seen } = await endless(t)
  const { dispatcher, shaper } = shaped(t, { maxInFlight: 1, retry: { status: [429], max: 2 } })
  const began = performance.now()
  const answer = request(origin, { dispatcher })
  await new Promise(resolve => shaper.once('queued', resolve))
  t.match(shaper.status(origin), { queued: 1, inFlight: 1 })
  t.equal((await answer).statusCode, 200)
  const took = seen[1]!.at - began
  t.ok(took >= 999 && took < 2_500, `${took} ms`)
  await (await answer).body.dump()
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('a discarded answer ends when its caller has left', async t => {
  const { origin, seen } = await endless(t)
  const { dispatcher, shaper } = shaped(t, { maxInFlight: 1, retry: { status: [429], max: 2 } })
  const controller = new AbortController()
  const first = request(origin, { dispatcher, signal: controller.signal }).catch((error: Error) => error)
  await new Promise(resolve => shaper.once('queued', resolve))
  controller.abort()
  t.match(await first, { name: 'AbortError' })
  await (await request(origin, { dispatcher })).body.dump()
  t.ok(seen[1]!.at - seen[0]!.at < 999, `${seen[1]!.at - seen[0]!.at} ms later, before the second is over`)
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('a key with a running request keeps its bucket among any number of new keys', async t => {
  const { origin, seen } = await serve(t, (req, res) => void setTimeout(() => res.end(req.url), 150))
  const { dispatcher, shaper } = shaped(t, { rate: '2/s', maxKeys: 20, key: 'header:k' })
  const send = async () => (await request(origin, { dispatcher, headers: { k: 'victim' } })).body.dump()
  const stalls = watchStalls(t)
  const first = send()
  await wait(30)
  for (let at = 0; at < 100; at += 1) shaper.admit(`${at}`, { cost: 10 }).catch(() => undefined)
  await Promise.all([first, send()])
  const [gap] = gaps(seen.map(({ at }) => at))
  t.ok(gap! > 300 - stalls.longest(), `${gap} ms`)
})

t.test('bodies of every kind are released if their request is rejected', async t => {
  const { origin } = await serve(t, (req, res) => req.pipe(res))
  let returned = 0
  const iterable = () => ({
    [Symbol.asyncIterator]: () => ({
      next: async () => ({ done: true, value: undefined }),
      return: async () => {
        returned += 1
        return { done: true, value: undefined }
      },
    }),
  })
  const { dispatcher } = shaped(t, { rate: '1/s', capacity: 1 })
  await (await request(origin, { dispatcher })).body.dump()
  const post = (dispatcher: Dispatcher, body: unknown) =>
    request(origin, { dispatcher, method: 'POST', body: body as Readable })
  await t.rejects(post(dispatcher, iterable()), { code: 'SHAPER_OVERFLOW' })
  t.equal(returned, 1)
  const broken = (): never => {
    throw new Error('mine')
  }
  for (const options of [{ key: broken }, { cost: broken }, { cost: () => Number.NaN }, { key: () => 5 as never }]) {
    const body = new Readable({ read() {} })
    const throwing = shaped(t, options)
    await t.rejects(post(throwing.dispatcher, body))
    t.ok(body.destroyed)
    returned = 0
    await t.rejects(post(throwing.dispatcher, iterable()))
    t.equal(returned, 1)
  }
})

t.test('a server that accepts and never answers does not stop requests on other connections', async t => {
  const silent = createServer(() => undefined).listen(0)
  t.teardown(() => silent.close())
  const { port } = silent.address() as { port: number }
  const { origin } = await serve(t, (_, res) => res.end('ok'))
  const agent = new Agent({ connections: 1 })
  const { dispatcher } = shaped(t, { key: 'all' }, agent)
  const first = request(`http://127.0.0.1:${port}`, { dispatcher }).catch((error: Error) => error)
  const controller = new AbortController()
  const second = fetch(`http://127.0.0.1:${port}`, { dispatcher, signal: controller.signal }).catch((e: Error) => e)
  await wait(100)
  controller.abort()
  t.match(await second, { name: 'AbortError' })
  t.equal((await request(origin, { dispatcher })).statusCode, 200)
  await agent.destroy()
  await first
})
