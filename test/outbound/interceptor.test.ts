/** shape() with everything that undici can send, and with Node's own fetch, against real servers. */
import { once } from 'node:events'
import { PassThrough, Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { Agent, buildConnector, Client, FormData, fetch, request } from 'undici'
import { retryAfterOf, type ShapeOptions, shape } from '../../src/index.js'
import { watchStalls } from '../stalls.js'
import { gaps, serve, serveStrictly } from './upstreams.js'

/** An agent whose requests are shaped; closed with the test. */
function shaped(t: Test, options: Partial<ShapeOptions> = {}, agent = new Agent()) {
  const limit = options.buckets === undefined ? { rate: '50/s', capacity: 100 } : {}
  const interceptor = shape({ ...limit, ...options } as ShapeOptions)
  t.teardown(() => agent.destroy())
  return { dispatcher: agent.compose(interceptor), shaper: interceptor.shaper }
}

/** Node's own fetch, which is of another version of undici than its dispatcher. */
const ownFetch = globalThis.fetch as unknown as typeof fetch

const range = (count: number) => Array.from({ length: count }, (_, place) => place)

// These tests wait more than they compute.
t.jobs = 4

t.test('an API with a hard limit rejects nothing', async t => {
  const { origin, seen } = await serveStrictly(t, 10, 90)
  const { dispatcher, shaper } = shaped(t, { rate: '10/s' })
  const began = performance.now()
  const answers = await Promise.all(range(16).map(() => fetch(origin, { dispatcher })))
  const took = performance.now() - began
  t.same(new Set(answers.map(({ status }) => status)), new Set([200]))
  t.equal((await seen()).length, 16)
  t.ok(took >= 1_499, `it took ${took} ms`)
  t.ok(took < 4_500, `it took ${took} ms`)
  await Promise.all(answers.map(answer => answer.text()))
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

for (const [name, send] of [
  ["undici's fetch", fetch],
  ["Node's own fetch", ownFetch],
] as const) {
  t.test(`${name}: one of three is aborted while it waits; the rest move up`, async t => {
    const { origin, seen } = await serve(t, (_, res) => res.end('ok'))
    const { dispatcher, shaper } = shaped(t)
    const began = performance.now()
    const controllers = range(30).map(() => new AbortController())
    const calls = controllers.map(({ signal }, place) => send(`${origin}/${place}`, { dispatcher, signal }))
    const outcomes = Promise.allSettled(calls)
    for (const [place, controller] of controllers.entries()) if (place % 3 === 2) controller.abort()
    const statuses = (await outcomes).map(outcome =>
      outcome.status === 'fulfilled' ? outcome.value.status : (outcome.reason as Error).name,
    )
    t.same(
      statuses,
      range(30).map(place => (place % 3 === 2 ? 'AbortError' : 200)),
    )
    t.same(
      seen.map(({ path }) => path),
      range(30)
        .filter(place => place % 3 !== 2)
        .map(place => `/${place}`),
    )
    const took = seen.at(-1)!.at - began
    t.ok(took >= 379 && took < 5_000, `20 at 50/s: ${took} ms`)
    t.match(shaper.status(), { queued: 0 })
  })

  t.test(`${name}: a rejection has its reason and a Retry-After`, async t => {
    const { origin } = await serve(t, (_, res) => res.end('ok'))
    const { dispatcher, shaper } = shaped(t, { rate: '1/10s', capacity: 2, maxWait: '60s' })
    const first = send(origin, { dispatcher })
    await first
    const second = send(origin, { dispatcher })
    const overflow = await send(origin, { dispatcher }).catch((error: Error) => error)
    t.match(overflow, { name: 'TypeError', message: 'fetch failed', cause: { code: 'SHAPER_OVERFLOW', key: origin } })
    const { retryAfterMs } = (overflow as { cause: { retryAfterMs: number } }).cause
    t.ok(retryAfterMs > 5_000 && retryAfterMs <= 10_001, `${retryAfterMs}`)
    shaper.pause(600_000)
    t.match(await second.catch((error: Error) => error), { cause: { code: 'SHAPER_EXPIRED' } })
    await shaper.drain()
    t.match(await send(origin, { dispatcher }).catch((error: Error) => error), { cause: { code: 'SHAPER_CLOSED' } })
  })

  for (const retry of [undefined, { status: [429], max: 3 }]) {
    t.test(`${name}: a pause that the upstream asks for is kept, ${retry ? 'with' : 'without'} retries`, async t => {
      let until = -Infinity
      let limited = 0
      const { origin, seen } = await serve(t, (req, res) => {
        const now = performance.now()
        if (req.url === '/5' && limited === 0) until = now + 1_000
        if (now >= until) return res.end('ok')
        limited += 1
        res.writeHead(429, { 'retry-after': '1' }).end('later')
      })
      const { dispatcher, shaper } = shaped(t, { rate: '20/s', ...(retry && { retry }) })
      const stalls = watchStalls(t)
      const answers = await Promise.all(range(12).map(place => send(`${origin}/${place}`, { dispatcher })))
      const statuses = answers.map(({ status }) => status)
      t.equal(statuses.filter(status => status === 429).length, retry === undefined ? limited : 0)
      t.equal(statuses.filter(status => status === 200).length, retry === undefined ? 12 - limited : 12)
      t.ok(limited >= 1 && limited <= 4, `${limited} that were on the wire already`)
      t.equal(seen.length, retry === undefined ? 12 : 12 + limited)
      const times = seen.map(({ at }) => at)
      const after = times.filter(time => time > until - 100)
      t.ok(after[0]! >= until - 1, `the first comes ${after[0]! - until} ms after the pause`)
      t.ok(Math.min(...gaps(after)) > 10 - stalls.longest(), `then they are spaced: ${gaps(after)}`)
      if (retry !== undefined) t.equal(seen[5 + limited]!.path, '/5', 'the first in the queue')
      await Promise.all(answers.map(answer => answer.text()))
      t.match(shaper.status(), { queued: 0, inFlight: 0 })
    })
  }
}

t.test('a body is not touched before its turn, and streams both ways', async t => {
  const { origin } = await serve(t, (req, res) => req.pipe(res))
  const { dispatcher, shaper } = shaped(t, { rate: '3/s' })
  await (await request(origin, { dispatcher })).body.text()
  let reads = 0
  const source = (name: string) => {
    const chunks = [`${name} `, 'body']
    return new Readable({
      read() {
        reads += 1
        this.push(chunks.shift() ?? null)
      },
    })
  }
  const sent = request(origin, { dispatcher, method: 'POST', body: source('request') })
  const streamed = new PassThrough()
  const streaming = dispatcher.stream({ origin, path: '/', method: 'POST', body: source('stream') }, () => streamed)
  const piped = dispatcher.pipeline({ origin, path: '/', method: 'POST' }, ({ body }) => body)
  source('pipeline').pipe(piped)
  t.equal(shaper.status().queued, 3)
  await new Promise(resolve => setImmediate(resolve))
  t.ok(reads <= 3, 'only what is piped')
  t.equal(await (await sent).body.text(), 'request body')
  t.equal(await text(streamed), 'stream body')
  await streaming
  t.equal(await text(piped), 'pipeline body')
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('a body that fails while it waits cancels its request', async t => {
  const { origin, seen } = await serve(t, (req, res) => req.pipe(res))
  const { dispatcher, shaper } = shaped(t, { rate: '10/s' })
  const first = request(origin, { dispatcher })
  const body = new Readable({ read() {} })
  const second = request(origin, { dispatcher, method: 'POST', body }).catch((error: Error) => error)
  body.destroy(new Error('broken'))
  t.match(await second, { message: 'broken' })
  t.equal(shaper.status().queued, 0)
  await (await first).body.dump()
  t.equal(seen.length, 1)
  t.equal(body.listenerCount('error'), 2, "undici's own, and what keeps it quiet")
})

t.test('bodies of rejected requests are released', async t => {
  const { origin } = await serve(t, (req, res) => req.pipe(res))
  const { dispatcher, shaper } = shaped(t, { rate: '1/s', capacity: 2, maxWait: '30s' })
  await (await request(origin, { dispatcher })).body.dump()
  const bodies = range(4).map(() => new Readable({ read() {} }))
  const controller = new AbortController()
  const post = (body: Readable, signal?: AbortSignal) =>
    request(origin, { dispatcher, method: 'POST', body, ...(signal && { signal }) }).catch((error: Error) => error)
  const aborted = post(bodies[0]!, controller.signal)
  t.match(await post(bodies[1]!), { code: 'SHAPER_OVERFLOW' })
  controller.abort()
  t.match(await aborted, { name: 'AbortError' })
  const expired = post(bodies[2]!)
  shaper.pause(60_000)
  t.match(await expired, { code: 'SHAPER_EXPIRED' })
  await shaper.drain()
  t.match(await post(bodies[3]!), { code: 'SHAPER_CLOSED' })
  t.ok(bodies.every(body => body.destroyed))
})

t.test('slowly opened connections bunch nothing', async t => {
  const { origin, seen } = await serve(t, (_, res) => void setTimeout(() => res.end('ok'), 1_000))
  const connect = buildConnector({})
  const waits = [300, 20, 120, 10]
  const agent = new Agent({
    connect: (options, callback) => void setTimeout(() => connect(options, callback), waits.shift() ?? 0),
  })
  const { dispatcher } = shaped(t, { rate: '10/s' }, agent)
  const stalls = watchStalls(t)
  const began = performance.now()
  await Promise.all(range(6).map(async () => (await request(origin, { dispatcher })).body.text()))
  const times = seen.map(({ at }) => at)
  t.ok(times[0]! - began >= 299)
  t.ok(Math.min(...gaps(times)) > 40 - stalls.longest(), `${gaps(times)}`)
})

t.test('one that was aborted while its connection was being opened is never sent', async t => {
  const { origin, seen } = await serve(t, (_, res) => res.end('ok'))
  const connect = buildConnector({})
  const opened: (() => void)[] = []
  const agent = new Agent({
    connect: (options, callback) => {
      if (opened.length > 0) connect(options, callback)
      else opened.push(() => connect(options, callback))
    },
  })
  const { dispatcher, shaper } = shaped(t, { maxInFlight: 1 }, agent)
  const controller = new AbortController()
  const first = fetch(`${origin}/1`, { dispatcher, signal: controller.signal }).catch((error: Error) => error)
  const second = fetch(`${origin}/2`, { dispatcher })
  await new Promise(resolve => setTimeout(resolve, 50))
  t.match(shaper.status(origin), { queued: 1, inFlight: 1 }, 'no request overtakes')
  controller.abort()
  opened[0]!()
  t.match(await first, { name: 'AbortError' })
  t.equal((await second).status, 200)
  t.same(
    seen.map(({ path }) => path),
    ['/2'],
  )
})

t.test('at any end of a request its place in flight is freed once', async t => {
  const { origin, server } = await serve(t, (req, res) => {
    if (req.url === '/reset') {
      res.writeHead(200, { 'content-length': 10 }).write('half')
      setTimeout(() => res.destroy(), 20)
    } else if (req.url === '/info') {
      res.writeProcessing()
      res.writeEarlyHints({ link: '</style.css>; rel=preload' })
      res.end('informed')
    } else res.end('ok')
  })
  server.on('upgrade', (_, socket) =>
    socket.end('HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhi'),
  )
  const { dispatcher, shaper } = shaped(t, { maxInFlight: 1, rate: '200/s', key: 'all' })
  const free = async (name: string) => {
    await new Promise(resolve => setImmediate(resolve))
    t.match(shaper.status(), { queued: 0, inFlight: 0 }, name)
    t.equal((await request(origin, { dispatcher })).statusCode, 200, `after ${name}`)
  }
  // Sent together: each has to end before the next is sent.
  const refused = request('http://127.0.0.1:1', { dispatcher })
  await t.rejects(refused, { code: 'ECONNREFUSED' })
  await free('a refused connection')
  const broken = await request(`${origin}/reset`, { dispatcher })
  await t.rejects(broken.body.text())
  await free('a reset')
  const told: number[] = []
  const informed = await request(`${origin}/info`, { dispatcher, onInfo: ({ statusCode }) => told.push(statusCode) })
  t.equal(await informed.body.text(), 'informed')
  t.same(told, [102, 103])
  await free('informational answers')
  const { socket } = await dispatcher.upgrade({ path: '/', protocol: 'x', ...{ origin } })
  t.equal(await text(socket), 'hi')
  await free('an upgrade')
  await t.rejects(
    dispatcher.stream({ origin, path: '/', method: 'GET' }, () => {
      throw new Error('mine')
    }),
    { message: 'mine' },
  )
  await free('a handler that throws')
  await t.rejects(request(`${origin}/\u{20ac}`.replace('%', ''), { dispatcher, method: 'B D' as never }))
  await free('an invalid request')
  const aborting = new AbortController()
  const aborted = request(`${origin}/reset`, { dispatcher, signal: aborting.signal })
  await aborted.then(({ body }) => {
    aborting.abort()
    return t.rejects(body.text(), { name: 'AbortError' })
  })
  await free('an abort in the answer')
})

t.test('retries: only repeatable requests, up to the limit, and in time', async t => {
  let connections = 0
  const { origin, seen, server } = await serve(t, (req, res) => {
    req.resume()
    res.writeHead(503, { 'retry-after': '0' }).end('x'.repeat(1_000))
  })
  server.on('connection', () => {
    connections += 1
  })
  const { dispatcher } = shaped(t, { retry: { status: [503], max: 2 }, key: 'all', maxWait: '5s' })
  const send = async (method: 'GET' | 'PUT' | 'POST', options: object = {}) => {
    seen.length = 0
    const answer = await request(origin, { dispatcher, method, ...options })
    t.equal(answer.statusCode, 503)
    t.equal((await answer.body.text()).length, 1_000)
    return seen.length
  }
  t.equal(await send('GET'), 3)
  t.equal(connections, 1, 'on the same connection: unread answers are read')
  t.equal(await send('PUT'), 3)
  t.equal(await send('PUT', { body: 'text' }), 3)
  t.equal(await send('PUT', { body: Readable.from(['text']) }), 1)
  t.equal(await send('POST'), 1)
  t.equal(await send('POST', { idempotent: true }), 3)
  // The third comes after 600 ms and what a busy machine takes, the fourth could not before 900.
  const impatient = shaped(t, { retry: { status: [503], max: 9, backoff: 0 }, pauseOn: { default: 300 }, maxWait: 880 })
  server.removeAllListeners('request')
  server.on('request', (_, res) => {
    seen.push({ at: performance.now(), path: '' })
    res.writeHead(503).end()
  })
  seen.length = 0
  t.equal((await request(origin, impatient)).statusCode, 503)
  t.equal(seen.length, 3, 'a fourth could not have been in time')
})

t.test('retries: full jitter where the answer names no time, and after a connection that failed', async t => {
  t.intercept(Math, 'random', { value: () => 0.5 })
  for (const fail of ['503', 'reset', 'refused'] as const) {
    let place = 0
    const { origin, seen, server } = await serve(t, (req, res) => {
      place += 1
      if (place > 3) res.end('ok')
      else if (fail === '503') res.writeHead(503).end()
      else req.socket.resetAndDestroy()
    })
    const retry = { status: [503], max: 3, backoff: 400, maxBackoff: 700 }
    const { dispatcher, shaper } = shaped(t, { rate: '1000/s', retry, pauseOn: false })
    if (fail === 'refused') {
      server.close()
      await t.rejects(request(origin, { dispatcher }), { code: 'ECONNREFUSED' })
      t.match(shaper.status(), { queued: 0, inFlight: 0 })
      continue
    }
    const began = performance.now()
    const { body } = await request(origin, { dispatcher })
    t.equal(await body.text(), 'ok', fail)
    // Half of 400, 700 and 700 ms.
    t.ok(performance.now() - began >= 899, fail)
    t.ok(
      gaps(seen.map(({ at }) => at)).every((gap, turn) => gap >= [199, 349, 349][turn]!),
      fail,
    )
    place = 0
    const post = { dispatcher, method: 'POST', body: 'x' } as const
    if (fail === '503') t.equal((await request(origin, post)).statusCode, 503)
    else await t.rejects(request(origin, post), 'a request that may not be repeated')
    t.match(shaper.status(), { queued: 0 })
  }
})

t.test('retryAfterOf reads the headers of any client', async t => {
  const headers = { 'Retry-After': '2' }
  for (const given of [headers, new Headers(headers), new Map([['retry-after', '2']]), { 'retry-after': ['1', '2'] }])
    t.equal(retryAfterOf(given), 2_001)
  t.equal(retryAfterOf({ 'x-ratelimit-remaining': '0', 'x-ratelimit-reset-after': 0.25 }), 251)
  for (const given of [undefined, null, {}, new Headers(), { get: 'x' }]) t.equal(retryAfterOf(given), undefined)
})

t.test('retries: a body that can be read again is sent whole each time', async t => {
  const bodies: string[] = []
  const { origin } = await serve(t, (req, res) => {
    void text(req).then(body => {
      bodies.push(body)
      res.writeHead(bodies.length % 2 === 1 ? 429 : 200, { 'retry-after': '0' }).end()
    })
  })
  const { dispatcher } = shaped(t, { rate: '1000/s', retry: { status: [429], max: 2 } })
  const bytes = new TextEncoder().encode('bytes')
  for (const body of ['text', Buffer.from('buffer'), bytes, bytes.buffer, new Blob(['blob'])] as const) {
    const answer = await request(origin, { dispatcher, method: 'POST', body, idempotent: true } as never)
    t.equal(answer.statusCode, 200, body.constructor.name)
    t.same(bodies.splice(0), Array(2).fill(await new Response(body).text()), body.constructor.name)
  }
  const form = new FormData()
  form.set('name', 'value')
  t.equal((await request(origin, { dispatcher, method: 'PUT', body: form } as never)).statusCode, 200)
  t.equal(bodies.length, 2)
  for (const body of bodies.splice(0)) t.match(body, /value/)
  async function* once() {
    yield 'once'
  }
  const answer = await request(origin, { dispatcher, method: 'POST', body: once(), idempotent: true } as never)
  t.equal(answer.statusCode, 429, 'an iterable cannot be read again')
})

t.test('costAfter: an answer says what its request has cost', async t => {
  const { origin, seen } = await serve(t, (req, res) => {
    res.setHeader('x-cost', req.url === '/cheap' ? '1' : '40')
    res.end('ok')
  })
  const { dispatcher, shaper } = shaped(t, {
    buckets: { requests: { rate: '1000/s' }, points: { rate: '100/s', capacity: 1_000 } },
    cost: { points: 20 },
    costAfter: (_, headers) => ({ points: Number(headers['x-cost']) }),
  })
  const stalls = watchStalls(t)
  for (const path of ['/cheap', '/dear', '/cheap']) {
    await request(`${origin}${path}`, { dispatcher }).then(({ body }) => body.text())
  }
  // 10 ms after the first, as it cost 1; 400 ms after the second.
  const [first, second] = gaps(seen.map(({ at }) => at)) as [number, number]
  const late = stalls.longest()
  t.ok(first < 150 + late, `${first}`)
  t.ok(second > 380 - late, `${second}`)
  t.match(shaper.status(), { queued: 0 })
})

t.test('an aborted retry is not sent', async t => {
  const { origin, seen } = await serve(t, (_, res) => res.writeHead(429, { 'retry-after': '30' }).end())
  const { dispatcher, shaper } = shaped(t, { retry: { status: [429], max: 3 } })
  const controller = new AbortController()
  const sent = fetch(origin, { dispatcher, signal: controller.signal }).catch((error: Error) => error)
  await once(shaper, 'queued')
  t.match(shaper.status(origin), { queued: 1 })
  controller.abort()
  t.match(await sent, { name: 'AbortError' })
  t.match(shaper.status(), { queued: 0 })
  t.equal(seen.length, 1)
})

t.test('a listener of `paused` may abort the request that was refused', async t => {
  for (const retry of [undefined, { status: [503], max: 2 }]) {
    const { origin, seen } = await serve(t, (_, res) => void res.writeHead(503).end('full'))
    const { dispatcher, shaper } = shaped(t, { ...(retry !== undefined && { retry }) })
    const controller = new AbortController()
    shaper.once('paused', () => controller.abort())
    await t.rejects(request(origin, { dispatcher, signal: controller.signal }), { name: 'AbortError' })
    t.match(shaper.status(), { queued: 0, inFlight: 0 })
    await shaper.drain()
    t.equal(seen.length, 1)
  }
})

t.test('which requests share a queue', async t => {
  const { origin } = await serve(t, (_, res) => res.end('ok'))
  const keys: string[] = []
  const send = async (key: ShapeOptions['key'], options: object, clientOf?: string) => {
    const client = clientOf === undefined ? undefined : new Client(clientOf)
    const interceptor = shape({ rate: 50, capacity: 10, ...(key && { key }) })
    interceptor.shaper.on('released', event => keys.push(event.key))
    const dispatcher = (client ?? new Agent()).compose(interceptor)
    t.teardown(() => dispatcher.destroy())
    if (client !== undefined) return (await dispatcher.request({ path: '/', method: 'GET' } as never)).body.dump()
    await (await request(`${origin}/a?b`, { dispatcher, ...options })).body.dump()
  }
  await send(undefined, {})
  await send('origin', {}, origin)
  await send('all', {})
  await send('header:X-Tenant', { headers: { 'x-tenant': 'a' } })
  await send('header:x-tenant', { headers: ['X-Tenant', 'b'] })
  await send('header:x-tenant', { headers: new Map([['x-tenant', 'c']]) })
  await send('header:x-tenant', {})
  await send(({ path, method }) => `${method} ${path}`, {})
  t.same(keys, [origin, '', '', 'a', 'b', 'c', '', 'GET /a?b'])
  const { dispatcher, shaper } = shaped(t, {
    rate: 50,
    capacity: 10,
    cost: ({ method }) => (method === 'POST' ? 5 : 1),
  })
  const costs: number[] = []
  shaper.on('released', ({ cost }) => costs.push(cost))
  await (await request(origin, { dispatcher, method: 'POST' })).body.dump()
  t.same(costs, [5])
  const broken = shaped(t, { key: () => 5 as never })
  await t.rejects(request(origin, broken), TypeError)
  const free = shaped(t, { cost: () => -1 })
  t.match(await fetch(origin, free).catch((error: Error) => error), { cause: { name: 'RangeError' } })
})

t.test('bad options', async t => {
  const bad = { rate: 5, capacity: 5, key: 'host', cost: -1, pauseOn: { status: [42] }, retry: { max: 3 }, pauseon: 1 }
  t.throws(() => shape(bad as never), {
    message: [
      'key: "host" is not a key; use "origin", "all", "header:NAME" or a function',
      'cost: -1 is not a cost; use a finite number of units, 0 or more, or a function',
      'pauseOn.status[0]: 42 is not a status; use e.g. 429',
      'retry.status: not a list of statuses; use e.g. [429, 503]',
      'pauseon: unknown key; did you mean "pauseOn"?',
    ].join('\n'),
  })
  t.throws(() => shape({ rate: 5, capacity: 5, key: 'header:a b' }), /^key: "a b" is not a header name/)
})
