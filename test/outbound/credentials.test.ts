/** Several credentials with one queue in front: each call takes the one that is free first. */
import { setImmediate as turn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Agent, fetch, getGlobalDispatcher, interceptors, Pool, request, setGlobalDispatcher } from 'undici'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, type OutboundShaper, type RunContext, type ShaperOptions, shape } from '../../src/index.js'
import { serve } from './upstreams.js'

const THREE = [{ name: 'a' }, { name: 'b' }, { name: 'c' }]

function world(options: Partial<ShaperOptions> = {}) {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', credentials: THREE, ...options, clock } as ShaperOptions)
  const record: string[] = []
  const run = (name: string, more = {}) =>
    shaper.run(({ key }) => void record.push(`${name} by ${key} at ${Math.round(clock.now())}`), more)
  return { clock, shaper, record, run }
}

/** How many calls left at a later time than one that came after them. */
function inversions(record: readonly string[]): number {
  const times = new Map(record.map(entry => [Number(entry.split(' ')[0]), Number(entry.split(' ').at(-1))]))
  let latest = -1
  let count = 0
  for (let place = 0; place < times.size; place += 1) {
    const at = times.get(place)!
    if (at < latest) count += 1
    latest = Math.max(latest, at)
  }
  return count
}

t.test('calls go in order, by the credential that is free first', async t => {
  const { clock, record, run } = world()
  for (const name of ['1', '2', '3', '4', '5']) void run(name)
  clock.runUntil(250)
  void run('6')
  void run('7')
  clock.runAll()
  t.same(record.slice(0, 3), ['1 by a at 0', '2 by b at 0', '3 by c at 0'])
  t.same(record.slice(3, 5).sort(), ['4 by a at 100', '5 by b at 100'])
  t.same(record.slice(5), ['6 by a at 250', '7 by b at 250'])
})

t.test('10,000 calls with three credentials at 10/s: 30.0/s, none refused', async t => {
  const { clock, record, run, shaper } = world()
  for (let place = 0; place < 10_000; place += 1) void run(`${place}`)
  clock.runAll()
  t.equal(record.length, 10_000)
  const ends = 1_000 * Math.floor(9_999 / 30) + 100 * Math.floor((9_999 % 30) / 3)
  t.match(record.at(-1), new RegExp(`^9999 by . at ${ends}$`))
  const perKey = new Map<string, number[]>()
  for (const entry of record) {
    const [, key, at] = /by (.) at (\d+)/.exec(entry) as unknown as [string, string, string]
    perKey.set(key, [...(perKey.get(key) ?? []), Number(at)])
  }
  for (const [key, times] of perKey) {
    t.ok(
      times.every((at, place) => place === 0 || at - times[place - 1]! >= 100),
      `${key} keeps its rate`,
    )
  }
  t.equal(inversions(record), 0, 'in order')
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('while one pauses the others go on, and none is stuck; then it takes its part again', async t => {
  const { clock, record, run, shaper } = world()
  for (let place = 0; place < 20; place += 1) void run(`${place}`)
  clock.runUntil(150)
  shaper.pause(400, 'b')
  clock.runAll()
  t.equal(inversions(record), 0, 'in order all the time')
  const byB = record.filter(entry => entry.includes('by b')).map(entry => Number(entry.split(' ').at(-1)))
  t.same(byB.slice(0, 3), [0, 100, 550])
})

t.test('each with its own rate; priorities; maxWait, capacity and maxQueued in front', async t => {
  const { clock, record, run } = world({
    credentials: [
      { name: 'slow', rate: '1/s' },
      { name: 'fast', rate: '10/s' },
    ],
  })
  for (let place = 0; place < 11; place += 1) void run(`${place}`)
  void run('first', { priority: 0 })
  clock.runAll()
  t.equal(record.filter(entry => entry.includes('by slow')).length, 2)
  t.ok(record[3]!.startsWith('first '), `${record}`)
  const full = world({ capacity: 1 })
  const calls = Array.from({ length: 9 }, () => full.run('x'))
  // Three go, three wait for a slot of a credential each, three in front.
  const tenth = full.run('x')
  await t.rejects(tenth, { name: 'OverflowError', reason: 'overflow', retryAfterMs: 35 })
  full.clock.runAll()
  await Promise.all(calls)
  const impatient = world({ maxWait: '120ms' })
  const all = Array.from({ length: 12 }, () => impatient.run('x').catch((error: Error) => error.name))
  impatient.clock.runAll()
  const names = await Promise.all(all)
  t.equal(names.filter(name => typeof name !== 'string').length, 6)
  t.ok(names.includes('OverflowError') && names.includes('ExpiredError'), `${names}`)
  const crowded = world({ maxQueued: 2 })
  for (let place = 0; place < 5; place += 1) crowded.run('x').catch(() => {})
  await t.rejects(crowded.run('x'), { name: 'OverflowError', reason: 'crowded' })
  crowded.clock.runAll()
})

t.test('a signal, clear and drain reach those in front', async t => {
  const { clock, run, shaper, record } = world({ credentials: [{ name: 'only' }] })
  const controller = new AbortController()
  const calls = ['1', '2', '3', '4'].map(name => run(name, name === '3' ? { signal: controller.signal } : {}))
  for (const call of calls) call.catch(() => {})
  controller.abort(new Error('gone'))
  await t.rejects(calls[2]!, { message: 'gone' })
  clock.runUntil(100)
  t.same(record, ['1 by only at 0', '2 by only at 100'])
  t.equal(await shaper.clear(), 1)
  await t.rejects(calls[3]!, { name: 'ClearedError' })
  await t.rejects(
    shaper.run('key', () => 1),
    { message: /^key: "key" is given, but the shaper has credentials/ },
  )
  await turn()
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('wrong keys; what headers say is not told', async t => {
  const wrong: [credentials: unknown, message: RegExp][] = [
    [[], /^credentials: empty; /],
    [5, /^credentials: not a list of credentials; /],
    [[5], /^credentials\[0\]: not a credential; /],
    [[{}], /^credentials\[0\]\.name: undefined is not a name; /],
    [[{ name: 'a' }, { name: 'a' }], /^credentials\[1\]\.name: there is another one of this name; /],
    [[{ name: 'a', rate: 'x' }], /^credentials\[0\]\.rate: "x" is not a rate; /],
    [[{ name: 'a', header: { 'b c': 'secret' } }], /^credentials\[0\]\.header\["b c"\]: "b c" is not a header name; /],
    [[{ name: 'a', header: { b: 'sec\nret' } }], /^credentials\[0\]\.header\.b: not the value of a header; /],
    [
      [{ name: 'a', origins: ['https://u:secret@x/'] }],
      /^credentials\[0\]\.origins\[0\]: "https:\/\/\*\*\*@x\/" is not an origin; /,
    ],
  ]
  for (const [credentials, message] of wrong) {
    t.throws(() => createShaper({ rate: '5/s', credentials } as never), { name: 'RangeError', message })
    try {
      createShaper({ rate: '5/s', credentials } as never)
    } catch (error) {
      t.notMatch((error as Error).message, /sec\n?ret/)
    }
  }
  t.throws(() => createShaper({ buckets: { a: { rate: '5/s' } }, credentials: [{ name: 'x', rate: '5/s' }] }), {
    message: 'credentials[0].rate: with several buckets all have the same rates; remove it',
  })
})

t.test(
  'shape: each request is sent with its credential; one that is revoked is not used, and no error is seen',
  async t => {
    const revoked = new Set<string>()
    const used: string[] = []
    const { origin } = await serve(t, (req, res) => {
      const token = req.headers.authorization!
      used.push(token)
      res.writeHead(revoked.has(token) ? 401 : 200).end(token)
    })
    const agent = new Agent()
    t.teardown(() => agent.destroy())
    const interceptor = shape({
      rate: '200/s',
      credentials: ['one', 'two', 'three'].map(name => {
        return { name, origins: [origin], header: { Authorization: `Bearer ${name}` } }
      }),
    })
    const dispatcher = agent.compose(interceptor)
    const send = async (place: number) => {
      if (place === 30) revoked.add('Bearer two')
      const { statusCode, body } = await request(origin, { dispatcher, headers: { AUTHORIZATION: 'mine', x: '1' } })
      return [statusCode, await body.text()]
    }
    const answers = []
    for (let batch = 0; batch < 6; batch += 1) {
      answers.push(...(await Promise.all(Array.from({ length: 10 }, (_, place) => send(10 * batch + place)))))
    }
    t.ok(
      answers.every(([status]) => status === 200),
      'no error',
    )
    t.equal(answers.length, 60)
    t.notOk(used.includes('mine'))
    t.ok(used.filter(token => token === 'Bearer two').length < 20, 'the revoked one is left alone')
    t.ok(interceptor.shaper.status('two').pausedForMs > 50_000)
    for (const token of ['one', 'two', 'three']) revoked.add(`Bearer ${token}`)
    t.equal((await send(100))[0], 401, 'with no other the answer is told')
    t.match(interceptor.shaper.status(), { queued: 0, inFlight: 0 })
  },
)

t.test('events name the credential, and a call that waits for one counts as queued', async t => {
  const { clock, shaper, run } = world({ credentials: [{ name: 'a' }, { name: 'b' }] })
  const told: string[] = []
  shaper.on('queued', ({ key, queued }) => told.push(`queued ${key} ${queued}`))
  shaper.on('released', ({ key }) => told.push(`released ${key}`))
  shaper.on('done', ({ key }) => told.push(`done ${key}`))
  for (const name of ['1', '2', '3', '4', '5']) void run(name)
  const began = ['released a', 'done a', 'released b', 'done b']
  t.same([...told].sort(), [...began, 'queued a 1', 'queued b 2', 'queued  3'].sort())
  clock.runAll()
  t.notOk(told.includes('released '))
})

t.test('while all credentials pause for longer than maxWait, a call fails at once and is told the time', async t => {
  const ways: ((shaper: OutboundShaper) => void)[] = [
    shaper => shaper.pause('60s'),
    shaper => {
      shaper.pause('70s', 'a')
      shaper.pause('60s', 'b')
      shaper.pause('65s', 'c')
    },
  ]
  for (const pause of ways) {
    const { shaper, clock, run } = world({ maxWait: 500 })
    const early = Array.from({ length: 8 }, (_, at) => run(`${at}`).catch((error: Error) => error))
    pause(shaper)
    const errors = (await Promise.all(early)).slice(3)
    t.equal(errors.length, 5)
    for (const error of errors) t.match(error, { name: 'ExpiredError' })
    for (const { retryAfterMs } of errors as unknown as { retryAfterMs: number }[]) {
      t.equal(retryAfterMs, 59_501)
    }
    const error = await run('late').catch((error: unknown) => error)
    t.match(error, { name: 'OverflowError', reason: 'max-wait', retryAfterMs: 59_501 })
    clock.runUntil((error as { retryAfterMs: number }).retryAfterMs)
    const again = run('again')
    clock.runAll()
    await again
  }
})

t.test('names that are no credential are refused', async t => {
  const { shaper } = world()
  const unknown = { name: 'RangeError', message: 'key: "zz" is not the name of a credential; use "a", "b" or "c"' }
  t.throws(() => shaper.pause(5, 'zz'), unknown)
  t.throws(() => shaper.resume('zz'), unknown)
  t.throws(() => shaper.status('zz'), unknown)
  const own = { name: 'TypeError', message: 'key: "u" is given, but the shaper has credentials: leave it out' }
  await t.rejects(shaper.room('u'), own)
  await t.rejects(shaper.clear('u'), own)
  t.throws(() => createShaper({ rate: 5 }).status(5 as never), {
    message: 'key: 5 is not a string; use e.g. "user_42"',
  })
})

t.test('maxWait of a call that is put back to the front by a pause', async t => {
  const { clock, shaper, run } = world({ credentials: [{ name: 'only' }], maxWait: 500 })
  void run('1')
  const times: number[] = []
  shaper.on('expired', () => times.push(clock.now()))
  const second = run('2')
  second.catch(() => {})
  shaper.pause(2_000, 'only')
  clock.runAll()
  t.same(times, [0])
  await t.rejects(second, { name: 'ExpiredError', retryAfterMs: 1_501 })
})

t.test('a call with a maxWait leaves a credential that pauses for longer', async t => {
  const { clock, shaper, record, run } = world({ credentials: [{ name: 'a' }, { name: 'b' }], maxWait: 500 })
  const calls = ['1', '2', '3'].map(name => run(name))
  t.equal(shaper.status('a').queued, 1)
  shaper.pause(2_000, 'a')
  clock.runAll()
  await Promise.all(calls)
  t.equal(record[2], '3 by b at 100')
})

t.test('calls that all credentials keep waiting leave when a pause ends, or is ended, or a bound grows', async t => {
  const begins = {
    'the end of a pause of all': [(shaper: OutboundShaper) => shaper.pause(300), undefined],
    'the end of a pause of each': [
      (shaper: OutboundShaper) => ['a', 'b', 'c'].map(name => shaper.pause(300, name)),
      undefined,
    ],
    'resume of all': [(shaper: OutboundShaper) => shaper.pause('1m'), (shaper: OutboundShaper) => shaper.resume()],
    'resume of one': [
      (shaper: OutboundShaper) => ['a', 'b', 'c'].map(name => shaper.pause('1m', name)),
      (shaper: OutboundShaper) => shaper.resume('b'),
    ],
  } as const
  for (const [name, [begin, end]] of Object.entries(begins)) {
    for (const isKnown of [true, false]) {
      const { clock, shaper, record, run } = world()
      if (isKnown) for (const each of ['x', 'y', 'z']) void run(each)
      clock.runUntil(1_000)
      record.length = 0
      begin(shaper)
      void run('late')
      clock.runUntil(1_300)
      end?.(shaper)
      clock.runUntil(1_400)
      t.match(record, [/^late by . at 1300$/], `${name}, ${isKnown}`)
      await shaper.clear()
      clock.runAll()
    }
  }
  const { clock, shaper, record } = world({ credentials: [{ name: 'a' }], maxInFlight: 1 })
  void shaper.run(() => new Promise(() => {}))
  void shaper.run(() => void record.push('second'))
  clock.runUntil(1_000)
  t.same(record, [])
  shaper.update({ maxInFlight: 2 })
  clock.runUntil(1_100)
  t.same(record, ['second'])
})

t.test('a run that waits for its next try is not tried early because a credential pauses', async t => {
  const { clock, shaper, record } = world({ retry: (_error, attempt) => (attempt < 2 ? 1_000 : undefined) })
  const flaky = shaper.run(({ attempt }) => {
    record.push(`${attempt} at ${clock.now()}`)
    if (attempt < 2) throw new Error('not yet')
  })
  await turn()
  clock.runUntil(100)
  shaper.pause(50, 'b')
  clock.runAll()
  await flaky
  t.same(record, ['1 at 0', '2 at 1000'])
})

/** A server that answers by the token, and a dispatcher with a credential for each token. */
async function tokens(t: Test, statuses: Record<string, [status: number, headers: Record<string, string>]>) {
  const used: string[] = []
  const { origin } = await serve(t, (req, res) => {
    const token = req.headers.authorization!
    used.push(token)
    // Meanwhile its bucket drains: nothing else keeps the credential.
    setTimeout(() => res.writeHead(...(statuses[token] ?? [200, {}])).end(), 50)
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const credentials = ['one', 'two'].map(name => ({ name, origins: [origin], header: { authorization: name } }))
  const interceptor = shape({ rate: '100/s', retry: { status: [429], max: 1 }, credentials })
  const dispatcher = agent.compose(interceptor)
  const send = async () => {
    const { statusCode, body } = await request(origin, { dispatcher })
    await body.dump()
    return statusCode
  }
  return { send, used, shaper: interceptor.shaper }
}

t.test('what a try cost counts for its credential, though another one takes the next try', async t => {
  const { clock, shaper, record } = world({ rate: '1/s', credentials: THREE.slice(0, 2), retry: () => 10 })
  const charges: RunContext['charge'][] = []
  const call = shaper.run(({ key, charge }) => {
    record.push(key)
    charges.push(charge)
    if (charges.length === 1) throw new Error('again')
  })
  await turn()
  // It waits for its next slot of a.
  clock.runUntil(50)
  shaper.pause(5_000, 'a')
  clock.runUntil(3_000)
  await call
  t.same(record, ['a', 'b'])
  // The one that was reserved has drained.
  charges[0]!(20)
  t.same(
    ['a', 'b'].map(key => shaper.status(key).level),
    [19, 0],
  )
})

t.test('with several buckets each has its capacity and its wait in front', async t => {
  const slow = { rate: '1/s', capacity: 3 }
  const fast = { rate: '1000/s', capacity: 100_000 }
  for (const [buckets, cost] of [
    [{ requests: slow, tokens: fast }, { tokens: 1 }],
    [{ tokens: fast, requests: slow }, { tokens: 2 }],
    [{ requests: { ...slow, capacity: 1.5 }, tokens: fast }, { requests: 0.5 }],
    [{ requests: { ...slow, key: 'all' }, tokens: fast }, {}],
  ] as const) {
    const { clock, shaper } = world({ rate: undefined, buckets, credentials: THREE.slice(0, 1) } as never)
    const errors: unknown[] = []
    for (let place = 0; place < 100; place += 1) shaper.run(() => {}, { cost }).catch(error => errors.push(error))
    await turn()
    // One goes, one waits for its slot, three are in front.
    t.equal(errors.length, 95, JSON.stringify(buckets))
    t.match(errors[0], { reason: 'overflow' })
    clock.runAll()
  }
  const impatient = world({ rate: undefined, buckets: { requests: slow, tokens: fast }, maxWait: '1500ms' } as never)
  const refused: unknown[] = []
  for (let place = 0; place < 14; place += 1) impatient.shaper.run(() => {}).catch(error => refused.push(error))
  await turn()
  // Three go, three wait for their slots. Five make 5/3 s in front.
  t.equal(refused.length, 3)
  t.match(refused[0], { reason: 'max-wait', retryAfterMs: 168 })
  impatient.clock.runAll()
})

t.test('update: the capacity in front', async t => {
  const { clock, shaper } = world({ capacity: 1, credentials: THREE.slice(0, 1) })
  shaper.update({ capacity: 3 })
  let refused = 0
  for (let place = 0; place < 100; place += 1) shaper.run(() => {}).catch(() => (refused += 1))
  await turn()
  t.equal(refused, 95)
  clock.runAll()
})

t.test('shape: a revoked credential stays out, though its bucket has drained', async t => {
  const { send, used, shaper } = await tokens(t, { one: [401, {}] })
  t.equal(await send(), 200)
  t.same(used, ['one', 'two'])
  t.ok(shaper.status('one').pausedForMs > 50_000)
  t.equal(await send(), 200)
  t.same(used, ['one', 'two', 'two'])
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('shape: a request that is refused for a pause is sent again by a credential that does not pause', async t => {
  const { send, used, shaper } = await tokens(t, { one: [429, { 'retry-after': '30' }] })
  t.equal(await send(), 200)
  t.same(used, ['one', 'two'])
  t.ok(shaper.status('one').pausedForMs > 20_000)
  t.equal(shaper.status('two').pausedForMs, 0)
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
})

t.test('shape: a credential leaves for its origins only, and what goes elsewhere passes untouched', async t => {
  const foreign = await serve(t, (req, res) => res.end(`${req.headers['x-api-key']}`))
  const own = await serve(t, (req, res) => {
    if (req.url === '/go') res.writeHead(302, { location: `${foreign.origin}/from` }).end()
    else res.end(`${req.headers['x-api-key']}`)
  })
  const header = { 'x-api-key': 'secret' }
  const credentials = [{ name: 'a', origins: [own.origin.toUpperCase().toLowerCase()], header }]
  const interceptor = shape({ rate: '1000/s', credentials })
  let released = 0
  interceptor.shaper.on('released', () => (released += 1))
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const redirect = interceptors.redirect({ maxRedirections: 3 })
  const text = async (url: string, dispatcher = agent.compose(interceptor)) =>
    (await request(url, { dispatcher })).body.text()

  t.equal(await text(own.origin), 'secret')
  t.equal(await fetch(`${own.origin}/go`, { dispatcher: agent.compose(interceptor) }).then(_ => _.text()), 'undefined')
  t.equal(await text(`${own.origin}/go`, agent.compose(interceptor, redirect)), 'undefined')
  const inside = await request(`${own.origin}/go`, { dispatcher: agent.compose(redirect, interceptor) })
  t.equal(inside.statusCode, 302, 'a redirect that would keep the headers is not followed')
  await inside.body.dump()
  t.equal(foreign.seen.length, 2)

  const before = getGlobalDispatcher()
  t.teardown(() => setGlobalDispatcher(before))
  setGlobalDispatcher(agent.compose(interceptor))
  t.equal(await (await request(foreign.origin)).body.text(), 'undefined')
  t.equal(await (await request(own.origin)).body.text(), 'secret')
  t.equal(released, 5, 'what goes elsewhere takes no slot')
  const pool = new Pool(own.origin)
  t.teardown(() => pool.destroy())
  const nameless = pool.compose(interceptor).request({ path: '/', method: 'GET' })
  await t.rejects(nameless, { name: 'TypeError', message: /^origin: missing, / })
  await interceptor.shaper.drain()
  t.equal(await (await request(foreign.origin)).body.text(), 'undefined', 'after the end of the shaper, too')
})

t.test('shape: credentials of other origins neither take nor hold up a request', async t => {
  const [one, other] = await Promise.all([0, 1].map(() => serve(t, (req, res) => res.end(req.headers.authorization))))
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const interceptor = shape({
    rate: '100/s',
    capacity: 2,
    credentials: [
      { name: 'both', origins: [one!.origin, other!.origin], header: { authorization: 'both' } },
      { name: 'other', origins: [other!.origin], header: { authorization: 'other' } },
    ],
  })
  interceptor.shaper.pause('1m', 'both')
  const dispatcher = agent.compose(interceptor)
  const signal = new AbortController()
  const held = request(one!.origin, { dispatcher, signal: signal.signal })
  held.catch(() => {})
  const answers = await Promise.all(
    [1, 2, 3].map(async () => (await request(other!.origin, { dispatcher })).body.text()),
  )
  t.same(answers, ['other', 'other', 'other'])
  t.equal(one!.seen.length, 0)
  await interceptor.shaper.room()
  t.equal(await interceptor.shaper.run(({ key }) => key), 'other', 'a call takes any')
  interceptor.shaper.resume('both')
  t.equal(await (await held).body.text(), 'both')
})

t.test('shape: a path that is always 401 takes no credential out, whether there are one or three', async t => {
  for (const names of [['a'], ['a', 'b', 'c']]) {
    const tried: string[] = []
    const { origin } = await serve(t, (req, res) => {
      if (req.url === '/bad') tried.push(req.headers.authorization!)
      res.writeHead(req.url === '/bad' ? 401 : 200).end()
    })
    const agent = new Agent()
    t.teardown(() => agent.destroy())
    const credentials = names.map(name => ({ name, origins: [origin], header: { authorization: name } }))
    const interceptor = shape({ rate: '500/s', credentials })
    const dispatcher = agent.compose(interceptor)
    const send = async (path: string, method: 'GET' | 'POST' = 'GET') => {
      const { statusCode, body } = await request(`${origin}${path}`, { dispatcher, method })
      await body.dump()
      return statusCode
    }
    t.equal(await send('/bad'), 401)
    t.same(tried.sort(), names, 'each tries it once')
    t.equal(await send('/bad', 'POST'), 401, 'one that may not be repeated')
    t.equal(tried.length, names.length + 1)
    t.same(await Promise.all(['/', '/bad', '/', '/bad', '/'].map(path => send(path))), [200, 401, 200, 401, 200])
    t.ok(names.every(name => interceptor.shaper.status(name).pausedForMs === 0))
    t.match(interceptor.shaper.status(), { queued: 0, inFlight: 0 })
  }
})

t.test('shape: a redirect to a login page is no success, so it takes no other credential out', async t => {
  const { origin } = await serve(t, (req, res) => {
    if (req.headers.authorization === 'a') res.writeHead(401).end()
    else res.writeHead(302, { location: '/login' }).end()
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const credentials = ['a', 'b'].map(name => ({ name, origins: [origin], header: { authorization: name } }))
  const interceptor = shape({ rate: '500/s', credentials })
  const { statusCode, body } = await request(origin, { dispatcher: agent.compose(interceptor) })
  await body.dump()
  t.equal(statusCode, 302)
  t.equal(interceptor.shaper.status('a').pausedForMs, 0)
})

t.test('shape: revokedFor, and two credentials that refuse each for another request are not both out', async t => {
  const barrier: (() => void)[] = []
  const { origin } = await serve(t, (req, res) => {
    const refused = `/${req.headers.authorization}` === req.url
    const answer = () => res.writeHead(refused ? 401 : 200).end()
    // The answers that take a credential out come together.
    if (refused || req.url === '/fine') return answer()
    barrier.push(answer)
    if (barrier.length === 2) for (const each of barrier) each()
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const credentials = ['a', 'b'].map(name => ({ name, origins: [origin], header: { authorization: name } }))
  const interceptor = shape({ rate: '500/s', revokedFor: '20s', credentials })
  const out = () => ['a', 'b'].filter(name => interceptor.shaper.status(name).pausedForMs > 0)
  const dispatcher = agent.compose(interceptor)
  const send = async (path: string) => {
    const { statusCode, body } = await request(`${origin}${path}`, { dispatcher })
    await body.dump()
    return statusCode
  }
  t.same(await Promise.all(['/a', '/b'].map(send)), [200, 200])
  t.equal(out().length, 1, 'the last one is not taken out')
  const { pausedForMs } = interceptor.shaper.status(out()[0]!)
  t.ok(pausedForMs > 10_000 && pausedForMs <= 20_000, `${pausedForMs}`)
  t.equal(await send('/fine'), 200)
})

t.test('shape: a request that waits for another credential does not keep the others from this one', async t => {
  const done: string[] = []
  const { origin } = await serve(t, (req, res) => {
    const isRefused = req.url === '/bad' && req.headers.authorization === 'a'
    done.push(`${req.url} ${req.headers.authorization}`)
    res.writeHead(isRefused ? 401 : 200).end()
  })
  const agent = new Agent()
  t.teardown(() => agent.destroy())
  const interceptor = shape({
    rate: '500/s',
    credentials: [
      { name: 'a', origins: [origin], header: { authorization: 'a' } },
      { name: 'b', origins: [origin], header: { authorization: 'b' }, rate: '2/s' },
    ],
  })
  const dispatcher = agent.compose(interceptor)
  const send = async (path: string) => {
    const { statusCode, body } = await request(`${origin}${path}`, { dispatcher })
    await body.dump()
    return statusCode
  }
  // The second slot of b is half a second away, and then somebody waits for it.
  const all = await Promise.all(['/bad', '/1', '/2', '/3', '/4', '/5', '/6', '/7', '/8', '/9'].map(send))
  t.ok(all.every(status => status === 200))
  t.equal(done.filter(each => each.startsWith('/bad')).at(-1), '/bad b')
  t.ok(done.indexOf('/bad b') > 6, `${done}`)
})
