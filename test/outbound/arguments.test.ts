/** Bad arguments are named in an error, and nothing is queued. */
import t from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import { createShaper, LeakyBucket, shape } from '../../src/index.js'
import { readShapeOptions } from '../../src/outbound/options.js'

function world() {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 100, maxInFlight: 1, clock })
  return { clock, shaper }
}

t.test('an invalid signal is refused before anything is queued, even if its call could run at once', async t => {
  const { clock, shaper } = world()
  let ran = 0
  for (const signal of [new AbortController(), {}, 5, null, { aborted: false }]) {
    const options = { signal } as never
    await t.rejects(shaper.admit('k', options), {
      name: 'TypeError',
      message: /^signal: .* is no AbortSignal; use e\.g\. /,
    })
    await t.rejects(
      shaper.run('k', () => (ran += 1), options),
      TypeError,
    )
    t.throws(() => shaper.wrap(() => 1, options), TypeError)
  }
  t.match(shaper.status(), { queued: 0, inFlight: 0, keys: 0 })
  const first = shaper.admit('k')
  const second = shaper.admit('k', { signal: {} } as never)
  await t.rejects(second, TypeError, 'also where it would wait')
  clock.runAll()
  await first
  t.match(shaper.status('k'), { queued: 0, inFlight: 0 })
  t.equal(ran, 0)
  await shaper.drain()
})

t.test('invalid options', async t => {
  const { shaper } = world()
  const message = /^null is not a set of options; use e\.g\. \{ /
  await t.rejects(shaper.admit('k', null as never), { name: 'TypeError', message })
  await t.rejects(
    shaper.run('k', () => 1, null as never),
    { name: 'TypeError', message },
  )
  await t.rejects(
    shaper.run(() => 1, 5 as never),
    { name: 'TypeError', message: /^5 is not a set of options/ },
  )
  t.throws(() => shaper.wrap(() => 1, null as never), { name: 'TypeError', message })
  t.throws(() => shaper.drain(null as never), { name: 'TypeError', message })
  t.throws(() => shaper.wrap(5 as never), TypeError)
  for (const options of [{ key: 5 }, { cost: -1 }, { cost: '1' }, { maxWait: 'soon' }]) {
    t.throws(() => shaper.wrap(() => 1, options as never), /is not a/)
  }
  await t.rejects(shaper.admit('k', { cost: '1' } as never), { message: /^cost: "1" is not a finite number/ })
  await t.rejects(shaper.admit(null as never), { message: 'key: null is not a string; use e.g. "user_42"' })
  t.throws(() => shaper.pause(5, 5 as never), TypeError)
  for (const timeout of [Number.NaN, -1, '100', null]) {
    t.throws(() => shaper.drain({ timeout } as never), {
      name: 'RangeError',
      message: /^timeout: .* is not a duration/,
    })
  }
  t.match(shaper.status(), { keys: 0, closed: false })
})

t.test('unknown options are errors everywhere; the message names the nearest known one', async t => {
  const { shaper } = world()
  const base = { rate: '5/s', capacity: 5 }
  let ran = 0
  const run = () => (ran += 1)
  const given = { colour: 5, strategy: 1 } as never
  const message = (known: string): string =>
    ['colour', 'strategy'].map(name => `${name}: unknown key; known keys: ${known}`).join('\n')
  const ofRun = message('cost, signal, maxWait, priority, id, timeout')
  await t.rejects(shaper.run('k', run, given), { name: 'RangeError', message: ofRun })
  await t.rejects(shaper.run(run, given), { name: 'RangeError', message: ofRun })
  await t.rejects(shaper.admit('other', given), {
    name: 'RangeError',
    message: message('cost, signal, maxWait, priority, id'),
  })
  const near: [name: string, call: (options: never) => unknown, hint: string][] = [
    ['maxwait', options => shaper.wrap(run, options), 'did you mean "maxWait"?'],
    ['keys', options => shaper.wrap(run, options), 'did you mean "key"?'],
    ['timeOut', options => shaper.drain(options), 'did you mean "timeout"?'],
    ['maxInflight', options => shaper.update(options), 'did you mean "maxInFlight"?'],
    ['maxinflight', options => createShaper({ ...base, ...(options as object) }), 'did you mean "maxInFlight"?'],
    ['expiration', options => shaper.wrap(run, options), 'use timeout, of a run: run(fn, { timeout: "30s" })'],
    ['retrys', options => shape({ ...base, ...(options as object) }), 'did you mean "retry"?'],
    ['capasity', options => new LeakyBucket({ ...base, ...(options as object) }), 'did you mean "capacity"?'],
    [
      'weight',
      options => new LeakyBucket({ ...base, ...(options as object) }),
      'a call has cost: run(fn, { cost: 2 })',
    ],
  ]
  for (const [name, call, hint] of near) {
    t.throws(() => call({ [name]: 5 } as never), { name: 'RangeError', message: `${name}: unknown key; ${hint}` }, name)
    if (name !== 'timeOut') t.doesNotThrow(() => call({ [name]: undefined } as never), `${name} that is undefined`)
  }
  t.throws(() => new LeakyBucket(undefined as never), {
    name: 'TypeError',
    message: /^undefined is not a set of options; use e\.g\. \{ rate: /,
  })
  t.equal(ran, 0)
  t.match(shaper.status(), { keys: 0, closed: false })
})

t.test('an undefined option of a store counts as absent', async t => {
  const store = { type: 'redis', url: 'redis://127.0.0.1:1', timeout: undefined, instances: undefined }
  const shaper = createShaper({ rate: '5/s', capacity: 5, store: store as never })
  await shaper.drain()
  const unknown = { ...store, instancs: 3 }
  t.throws(() => createShaper({ rate: '5/s', capacity: 5, store: unknown as never }), {
    message: 'store.instancs: unknown key; did you mean "instances"?',
  })
})

t.test('an undefined member of pauseOn or retry means unset', async t => {
  const given = { rate: '5/s', capacity: 5, pauseOn: { status: undefined, max: '5s' } } as never
  t.same(readShapeOptions(given).request.pauseOn, { status: [429, 503, 529], default: 1_000, max: 5_000 })
  t.throws(() => shape({ ...(given as object), retry: { status: undefined, max: 3 } } as never), {
    message: 'retry.status: not a list of statuses; use e.g. [429, 503]',
  })
  t.throws(() => shape({ ...(given as object), pauseOn: [] } as never), {
    message: /^pauseOn: a list is not a rule; use false, or e\.g\. \{ status: /,
  })
})

t.test('run: an invalid key and an invalid function are named', async t => {
  const { shaper } = world()
  for (const key of [42, null, undefined]) {
    await t.rejects(
      shaper.run(key as never, () => 1),
      { name: 'TypeError', message: `key: ${String(key)} is not a string; use e.g. "user_42"` },
    )
  }
  await t.rejects(
    shaper.run({ priority: 3 } as never, () => 1),
    { name: 'TypeError', message: 'run: options come last: use run(fn, options) or run(key, fn, options)' },
  )
  await t.rejects(shaper.admit({ cost: 2 } as never), { name: 'TypeError', message: /options come last: e\.g\. admit/ })
  await t.rejects(
    shaper.run(() => 1, { timeout: 0 }),
    { name: 'RangeError', message: /^timeout: 0 lets/ },
  )
  t.throws(() => shaper.map(5 as never, () => 1), { name: 'TypeError', message: /^map needs items, not 5/ })
  for (const given of [['k'], ['k', 5], [5], []]) {
    await t.rejects(shaper.run(...(given as [never])), { name: 'TypeError', message: /^run needs a function: / })
  }
})

t.test('durations are ms, or written out', async t => {
  const { clock, shaper } = world()
  shaper.pause('1s')
  t.equal(shaper.status().pausedForMs, 1_000)
  await t.rejects(shaper.admit('', { maxWait: '500ms' }), { message: /try again in 501 ms$/ })
  shaper.admit('').catch(() => undefined)
  const drained = shaper.drain({ timeout: '200ms' })
  clock.runUntil(200)
  await drained
  t.equal(shaper.status().queued, 0)
})

t.test('a function that can be awaited counts as in flight until then', async t => {
  const { shaper } = world()
  let settle = (_value: number): void => undefined
  const thenable = Object.assign(() => undefined, {
    // biome-ignore lint/suspicious/noThenProperty: that is what it is about
    then: (resolve: (value: number) => void) => {
      settle = resolve
    },
  })
  const result = shaper.run('k', () => thenable)
  t.match(shaper.status('k'), { inFlight: 1 })
  settle(5)
  t.equal(shaper.status('k').inFlight, 0)
  t.equal(await result, 5)
})

t.test('options of other libraries are told what stands for them here, and that the rate is missing', async t => {
  t.throws(() => createShaper({ minTime: 200, maxConcurrent: 2 } as never), {
    name: 'RangeError',
    message: [
      'rate: missing; use e.g. "5/s", "6/30s"',
      'minTime: unknown key; use rate: 1000 / minTime, e.g. "5/s" for 200',
      'maxConcurrent: unknown key; use maxInFlight',
    ].join('\n'),
  })
  t.throws(() => createShaper({ rate: 5, key: 'all' } as never), {
    message: 'key: unknown key; a call names its key: run("user_42", fn)',
  })
  t.throws(() => createShaper({ buckets: { a: { rate: 5, maxInFlight: 1 } } } as never), {
    message: 'buckets.a.maxInFlight: unknown key; it belongs to createShaper or shape, beside "rate" or "buckets"',
  })
  t.throws(() => createShaper([] as never), TypeError)
  t.throws(() => new LeakyBucket({} as never), {
    message: 'rate: missing; use e.g. "5/s"\ncapacity: missing; use e.g. 10',
  })
  t.throws(() => new LeakyBucket({ rate: 5, capacity: '10' as never }), { message: /^capacity: "10" is not/ })
})

t.test('what only shape() uses, and costs of buckets that there are not, are refused when constructing', async t => {
  const credentials = [{ name: 'a', header: { authorization: 'secret' } }]
  const bound = [{ name: 'a', origins: ['https://api.example.com'] }]
  const message = /^credentials\[0\]\.(header|origins): only shape\(\) sends it/
  t.throws(() => createShaper({ rate: 5, credentials }), { message })
  t.throws(() => createShaper({ rate: 5, credentials: bound }), { message })
  t.doesNotThrow(() => shape({ rate: 5, credentials: bound }))
  const missing = 'credentials[0].origins: missing; use e.g. ["https://api.example.com"]'
  t.throws(() => shape({ rate: 5, credentials }), { message: missing })
  t.throws(() => shape({ rate: 5, credentials: [{ name: 'a', origins: [] }] }), { message: /origins: empty; use/ })
  for (const create of [createShaper, shape]) {
    t.throws(() => create({ rate: 5, keys: [{ name: 'a' }] } as never), {
      message: 'keys: unknown key; use credentials: [{ name, origins, header, rate }]',
    })
    t.throws(
      () => create({ rate: 5, credentials: [{ name: 'a', origins: bound[0]!.origins, origin: 'x' }] } as never),
      {
        message: /^credentials\[0\]\.origin: unknown key; use origins/,
      },
    )
  }
  t.throws(() => shape({ buckets: { a: { rate: 5 } }, cost: { b: 1 } as never }), {
    message: 'cost.b: there is no such bucket; use "a"',
  })
})

t.test('of several buckets an error names the one that did not let the call in', async t => {
  const { clock } = world()
  const shaper = createShaper({ buckets: { requests: { rate: 10 }, tokens: { rate: 10, capacity: 50 } }, clock })
  await t.rejects(shaper.admit('k', { cost: { tokens: 51 } }), {
    message: 'the cost is above the capacity (bucket "tokens") (key "k")',
    bucket: 'tokens',
  })
  await shaper.admit('k', { cost: { tokens: 50 } })
  await t.rejects(shaper.admit('k', { cost: { tokens: 50 } }), {
    message: 'the queue is full (bucket "tokens") (key "k"); try again in 5 s',
  })
})
