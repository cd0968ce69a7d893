/** What `run` offers beside its turn: several buckets, true costs, retries, timeout, priorities, bounds. On the virtual clock. */
import { setImmediate as turn } from 'node:timers/promises'
import t from 'tap'
import { type Clock, createVirtualClock } from '../../src/core/clock.js'
import {
  ClearedError,
  ClosedError,
  createShaper,
  OverflowError,
  type RunContext,
  type ShaperOptions,
  TimeoutError,
} from '../../src/index.js'

const MODEL = { buckets: { requests: { rate: '10/s', burst: 3 }, tokens: { rate: '100/s', capacity: 200 } } }

function world(options: Partial<ShaperOptions> = {}) {
  const clock = createVirtualClock()
  const shaper = createShaper({ rate: '10/s', capacity: 100, ...options, clock } as ShaperOptions)
  const record: string[] = []
  const note = (name: string) => (): void => void record.push(`${name} at ${Math.round(clock.now())}`)
  /** Lets promises settle at each moment at which something is due. */
  async function pass(until: number, step = 10): Promise<void> {
    for (let at = clock.now() + step; at <= until; at += step) {
      clock.runUntil(at)
      await turn()
    }
  }
  return { clock, shaper, record, note, pass }
}

/** A world with several buckets. */
function several(options: Partial<ShaperOptions> = {}) {
  const { buckets } = MODEL
  const clock = createVirtualClock()
  const shaper = createShaper({ buckets, ...options, clock } as ShaperOptions)
  const record: string[] = []
  const note = (name: string) => (): void => void record.push(`${name} at ${Math.round(clock.now())}`)
  return { clock, shaper, record, note }
}

t.test('a call waits until all buckets let it pass, and takes from all or none', async t => {
  const { clock, shaper, record, note } = several()
  const cost = { requests: 1, tokens: 50 }
  for (const name of ['a', 'b', 'c']) void shaper.run('k', note(name), { cost })
  const error = await shaper.run('k', note('d'), { cost: { tokens: 60 } }).catch(error => error)
  t.match(error, { name: 'OverflowError', reason: 'overflow' })
  t.equal(error.retryAfterMs, 101)
  clock.runAll()
  t.same(record, ['a at 0', 'b at 500', 'c at 1000'])
})

t.test('status tells of all buckets', async t => {
  const { shaper } = several()
  void shaper.run('k', () => 1, { cost: { tokens: 50 } })
  t.match(shaper.status('k'), { level: 50, levels: { requests: 1, tokens: 50 }, nextReleaseMs: 500 })
  t.match(shaper.status().fullest, [{ key: 'k', level: 50 }])
  const { shaper: plain } = world()
  void plain.run('k', () => 1)
  t.equal(plain.status('k').levels, undefined)
})

t.test('a number as cost counts in every bucket, and so does 1 where a bucket is not named', async t => {
  const { clock, shaper, record, note } = several()
  void shaper.run(note('a'), { cost: 20 })
  void shaper.run(note('b'), { cost: { tokens: 10 } })
  void shaper.run(note('c'), { cost: { requests: 2 } })
  void shaper.run(note('d'))
  clock.runAll()
  // 20 requests may leave as a burst of 3, so the next one leaves when all but 2 have drained.
  t.same(record, ['a at 0', 'b at 1800', 'c at 2000', 'd at 2100'])
})

t.test('a bucket for all keys', async t => {
  const { clock, shaper, record, note } = several({
    buckets: { all: { rate: '10/s', key: 'all' }, tenant: { rate: '5/s' } },
  })
  for (const key of ['x', 'x', 'y', 'z']) void shaper.run(key, note(key))
  clock.runAll()
  t.same(record, ['x at 0', 'y at 100', 'x at 200', 'z at 300'])
})

t.test('charge: those who wait move to where the true cost lets them', async t => {
  const { clock, shaper, record } = several()
  const call =
    (name: string, actual: number) =>
    ({ charge }: RunContext) => {
      record.push(`${name} at ${Math.round(clock.now())}`)
      charge({ tokens: actual })
    }
  const cost = { tokens: 50 }
  // 10 in place of 50 tokens: 100 ms. Then 150: 1,500 ms.
  void shaper.run('k', call('a', 10), { cost })
  void shaper.run('k', call('b', 150), { cost })
  void shaper.run('k', call('c', 50), { cost })
  clock.runAll()
  t.same(record, ['a at 0', 'b at 100', 'c at 1600'])
})

t.test('charge: the last one counts, also after the end; a number counts in each bucket', async t => {
  const { clock, shaper, record, note } = several()
  let context: RunContext | undefined
  void shaper.run(
    'k',
    given => {
      context = given
      given.charge({ tokens: 100 })
      given.charge({ tokens: 20 })
    },
    { cost: { tokens: 50 } },
  )
  void shaper.run('k', note('b'), { cost: { tokens: 50 } })
  clock.runUntil(100)
  context!.charge(30)
  clock.runAll()
  // 30 in each: the requests drain for longest, to the burst of 3.
  t.same(record, ['b at 2800'])
  for (const cost of [-1, Number.NaN, '5', { token: 5 }, { tokens: -1 }]) {
    t.throws(() => context!.charge(cost as never), RangeError)
  }
  t.throws(() => context!.charge({ token: 5 }), {
    message: 'charge.token: there is no such bucket; use "requests" or "tokens"',
  })
})

t.test(
  'charge: a debt fills the bucket at most; new calls are refused, and those who wait leave after capacity / rate',
  async t => {
    const { clock, shaper, record, note } = several()
    void shaper.run('k', ({ charge }) => charge({ tokens: 10_000 }), { cost: { tokens: 50 } })
    await t.rejects(shaper.run('k', note('too early')), { name: 'OverflowError', reason: 'overflow' })
    clock.runUntil(20)
    void shaper.run('k', note('b'))
    clock.runAll()
    // 200 tokens drain in 2 s. What the call cost beyond them is forgotten.
    t.same(record, ['b at 2000'])
  },
)

t.test('charge: without a capacity a debt has no bound', async t => {
  const { clock, shaper, record, note } = world({ capacity: Infinity })
  void shaper.run(({ charge }) => charge(10_000))
  void shaper.run(note('b'))
  clock.runAll()
  t.same(record, ['b at 1000000'])
})

t.test('charge: what has drained is not given back; with a burst less of it has', async t => {
  for (const [burst, expected] of [
    // 90 of 100 were reserved in vain. At 1,900 ms the bucket holds 10, so the other 80 are lost.
    [undefined, ['b at 1000', 'c at 1900', 'd at 2900']],
    // It holds 110 then, and 20 without the 90. So d leaves at once and the bucket holds 120: e leaves when that is 100.
    [200, ['b at 0', 'c at 1000', 'd at 1900', 'e at 2100']],
  ] as const) {
    const { clock, shaper, record, note } = several({
      buckets: { tokens: { rate: '100/s', ...(burst && { burst }) } },
    })
    let first: RunContext | undefined
    const cost = 100
    const keep = (context: RunContext): void => {
      first = context
    }
    void shaper.run('k', keep, { cost })
    for (const name of ['b', 'c', 'd', 'e']) void shaper.run('k', note(name), { cost })
    clock.runUntil(1_900 - 1e-6)
    first!.charge(10)
    clock.runAll()
    t.same(record.slice(0, expected.length), expected)
  }
})

t.test('charge: too much and then less leaves what it costs, so the rate holds', async t => {
  const { shaper, record, pass, clock } = world({ rate: '1/s', capacity: 10 })
  const wait = (ms: number) => new Promise<void>(resolve => clock.at(clock.now() + ms, resolve))
  async function loop(): Promise<void> {
    const call = shaper.run(async ({ charge }) => {
      record.push('run')
      charge(50)
      await wait(20)
      charge(1)
    })
    await call.catch(() => wait(10))
    if (clock.now() < 10_000) await loop()
  }
  const loops = [loop(), loop()]
  await pass(12_000)
  await Promise.all(loops)
  t.ok(record.length >= 11 && record.length <= 12, `${record.length}`)
})

t.test('charge: what was lost is not added, what was forgotten is not taken out, and twice is once', async t => {
  const { shaper, clock } = world({ rate: '100/s', capacity: 200 })
  const level = () => Math.round(shaper.status('').level)
  const begin = async (cost: number) => {
    const charges: RunContext['charge'][] = []
    await shaper.run(({ charge }) => void charges.push(charge), { cost })
    return charges[0]!
  }
  const lost = await begin(100)
  clock.runUntil(1_100)
  const levels = [1, 100, 1, 1, 130].map(cost => {
    lost(cost)
    return level()
  })
  t.same(levels, [0, 0, 0, 0, 30])
  clock.runUntil(2_000)
  const forgotten = await begin(100)
  const filled = [500, 400, 350, 520, 510].map(cost => {
    forgotten(cost)
    return level()
  })
  t.same(filled, [200, 200, 200, 200, 200])
  clock.runUntil(3_000)
  const later = [510, 520, 520, 1].map(cost => {
    forgotten(cost)
    return level()
  })
  // 200 of 510 have been added. So 309 of the 509 that are too much are forgotten.
  t.same(later, [100, 110, 110, 0])
})

t.test(
  'calls made in one loop that blocks the process: the first leaves when it ends, and the next slot counts from then',
  async t => {
    const clock = createVirtualClock()
    // What is due by the end of the tick has to wait for it. So does what calls send.
    let blocked = 0
    const blocking = { ...clock, now: () => clock.now() + blocked }
    const shaper = createShaper({ rate: '10/s', capacity: 600, clock: blocking })
    const sent: number[] = []
    for (let call = 0; call < 600; call += 1) {
      void shaper.run(() => {
        sent.push(blocking.now())
      })
      blocked += 20 / 600
    }
    clock.runUntil(0)
    blocked = 0
    clock.runUntil(500)
    t.same(sent.slice(0, 4).map(Math.round), [0, 120, 220, 320])
    clock.runAll()
  },
)

t.test('a call that may go at once goes before run returns, and an error in it rejects', async t => {
  const { shaper, record, note } = world({ capacity: 2 })
  const first = shaper.run(note('first'))
  t.same(record, ['first at 0'])
  await first
  const failing = shaper.run('other', () => {
    throw new Error('at once')
  })
  await t.rejects(failing, { message: 'at once' })
})

t.test('a run that fails keeps its reservation', async t => {
  const { clock, shaper, record, note } = several()
  await t.rejects(
    shaper.run('k', () => Promise.reject(new Error('no')), { cost: { tokens: 50 } }),
    { message: 'no' },
  )
  void shaper.run('k', note('b'))
  clock.runAll()
  t.same(record, ['b at 500'])
})

t.test('retry: again at the head of its queue, in its turn', async t => {
  const errors: unknown[] = []
  const { shaper, record, pass, clock } = world({
    retry: (error, attempt) => {
      errors.push([(error as Error).message, attempt])
      return attempt < 3 ? 250 : undefined
    },
  })
  const failed: unknown[] = []
  shaper.on('failed', ({ attempt, retryMs, id }) => failed.push([id, attempt, retryMs]))
  const done: unknown[][] = []
  shaper.on('done', ({ attempt, id }) => done.push([id, attempt]))
  const flaky = shaper.run(
    'k',
    ({ attempt }) => {
      record.push(`flaky ${attempt} at ${Math.round(clock.now())}`)
      if (attempt < 3) throw new Error(`attempt ${attempt}`)
      return 'ok'
    },
    { id: 'job-1' },
  )
  for (let count = 0; count < 8; count += 1) {
    void shaper.run('k', () => void record.push(`other at ${Math.round(clock.now())}`))
  }
  await pass(1_000)
  t.equal(await flaky, 'ok')
  t.same(errors, [
    ['attempt 1', 1],
    ['attempt 2', 2],
  ])
  t.same(failed, [
    ['job-1', 1, 250],
    ['job-1', 2, 250],
  ])
  t.same(
    done.filter(([id]) => id !== undefined),
    [['job-1', 3]],
  )
  t.same(record.slice(0, 7), [
    'flaky 1 at 0',
    'other at 100',
    'other at 200',
    'flaky 2 at 300',
    'other at 400',
    'other at 500',
    'flaky 3 at 600',
  ])
})

t.test('retry: gives up with the last error, a wrong answer of the rule is an error', async t => {
  const { shaper, pass } = world({ retry: (_, attempt) => (attempt === 1 ? 10 : undefined) })
  const failing = shaper.run(() => Promise.reject(new Error('down')))
  failing.catch(() => {})
  await pass(500)
  await t.rejects(failing, { message: 'down' })
  const wrong = world({ retry: () => 'soon' as never })
  await t.rejects(
    wrong.shaper.run(() => Promise.reject(new Error('down'))),
    { name: 'TypeError', message: /^retry: "soon" is not a time; /, cause: { message: 'down' } },
  )
  const thrown = world({
    retry: () => {
      throw new Error('in the rule')
    },
  })
  await t.rejects(
    thrown.shaper.run(() => Promise.reject(new Error('down'))),
    { message: 'retry has thrown: in the rule', errors: [{ message: 'in the rule' }, { message: 'down' }] },
  )
  for (const promise of [async () => 5, async () => Promise.reject(new Error('in vain'))]) {
    const { shaper } = world({ retry: promise as never })
    const failed = shaper.run(() => Promise.reject(new Error('down')))
    await t.rejects(failed, { name: 'TypeError', message: /may not be async/, cause: { message: 'down' } })
  }
})

t.test('retry: false and null give up, and a time may be a text', async t => {
  for (const answer of [false, null, undefined] as const) {
    const { shaper } = world({ retry: () => answer })
    const down = new Error('down')
    t.equal(await shaper.run(() => Promise.reject(down)).catch((error: unknown) => error), down)
  }
  const { shaper, pass, clock } = world({ retry: error => (error as Error).message === 'down' && '2s' })
  const times: number[] = []
  const call = shaper.run(async ({ attempt }) => {
    times.push(clock.now())
    if (attempt === 1) throw new Error('down')
  })
  await pass(2_500)
  await call
  t.same(times, [0, 2_010], 'it fails a step after its begin')
})

t.test('retry: a signal, clear and drain end the wait for the next try; its place in flight is free', async t => {
  for (const end of ['signal', 'clear', 'drain'] as const) {
    const { shaper, pass } = world({ retry: () => 5_000, maxInFlight: 1 })
    const controller = new AbortController()
    const failing = shaper.run(() => Promise.reject(new Error('down')), { signal: controller.signal })
    failing.catch(() => {})
    await pass(200)
    t.equal(shaper.status().inFlight, 0)
    t.equal(shaper.status().queued, 1)
    t.equal(await shaper.run(() => 'other'), 'other', 'its place is free')
    if (end === 'signal') controller.abort(new Error('gone'))
    if (end === 'clear') t.equal(await shaper.clear(), 1)
    if (end === 'drain') void shaper.drain({ timeout: 0 })
    await pass(400)
    const expected = { signal: { message: 'gone' }, clear: ClearedError, drain: ClosedError }[end]
    await t.rejects(failing, expected as never)
    t.equal(shaper.status().queued, 0)
  }
})

t.test('timeout: the run fails, its signal is aborted and its place is free', async t => {
  const { shaper, pass, record, note } = world({ maxInFlight: 1 })
  let aborted: unknown
  const slow = shaper.run(
    'k',
    ({ signal }) =>
      new Promise(resolve => {
        signal.addEventListener('abort', () => {
          aborted = signal.reason
          resolve('too late')
        })
      }),
    { timeout: '300ms' },
  )
  slow.catch(() => {})
  void shaper.run('k', note('next'))
  await pass(1_000)
  await t.rejects(slow, { name: 'TimeoutError', code: 'SHAPER_TIMEOUT', key: 'k' })
  t.ok(aborted instanceof TimeoutError)
  t.same(record, ['next at 300'])
  t.match(shaper.status('k'), { queued: 0, inFlight: 0 })
  // What ends in time is not touched.
  t.equal(await shaper.run('k', ({ signal }) => signal.aborted, { timeout: 100 }), false)
})

t.test('the signal of the call is forwarded to its function', async t => {
  const { shaper } = world()
  const controller = new AbortController()
  const seen: unknown[] = []
  const running = shaper.run(
    ({ signal }) =>
      new Promise<void>(resolve =>
        signal.addEventListener('abort', () => {
          seen.push(signal.reason)
          resolve()
        }),
      ),
    { signal: controller.signal },
  )
  controller.abort('enough')
  await running
  t.same(seen, ['enough'])
})

t.test('priority: of a key lower numbers go first', async t => {
  const { clock, shaper, record, note } = world()
  for (const [name, priority] of [
    ['a', 3],
    ['b', 7],
    ['c', 3],
    ['d', 0],
  ] as const) {
    void shaper.run('k', note(name), { priority })
  }
  clock.runAll()
  t.same(record, ['a at 0', 'd at 100', 'c at 200', 'b at 300'])
  for (const priority of [-1, 8, 0.5, 'first']) {
    await t.rejects(shaper.admit('k', { priority } as never), { message: /^priority: .* is not a priority; / })
  }
})

t.test('maxInFlightAll: all keys together, each in its turn; both bounds can change', async t => {
  const { shaper, record, pass, clock } = world({ rate: '1000/s', maxInFlightAll: 2 })
  const ends: (() => void)[] = []
  for (const key of ['x', 'x', 'x', 'y', 'z']) {
    void shaper.run(key, () => {
      record.push(key)
      return new Promise<void>(resolve => ends.push(resolve))
    })
  }
  await pass(100)
  t.same(record, ['x', 'y'])
  ends.shift()!()
  await pass(200)
  t.same(record, ['x', 'y', 'z'], 'in the order in which keys came')
  shaper.update({ maxInFlightAll: 10 })
  await pass(300)
  t.equal(record.length, 5)
  shaper.update({ maxInFlight: 1 })
  void shaper.run('x', () => void record.push('x again'))
  await pass(400)
  t.equal(record.length, 5)
  for (const end of ends) end()
  await pass(500)
  t.equal(record.at(-1), 'x again')
  clock.runAll()
})

t.test('a bound on the cost that runs: the next call waits until its cost fits; a larger one runs alone', async t => {
  const { shaper, record, pass } = world({ rate: '1000/s', maxInFlight: { cost: 10 } })
  const ends = new Map<string, () => void>()
  const call = (name: string, cost: number) =>
    void shaper.run(
      'k',
      () => {
        record.push(name)
        return new Promise<void>(resolve => ends.set(name, resolve))
      },
      { cost },
    )
  call('6', 6)
  call('5', 5)
  call('1', 1)
  call('20', 20)
  await pass(100)
  t.same(record, ['6'])
  ends.get('6')!()
  await pass(200)
  t.same(record, ['6', '5', '1'])
  ends.get('5')!()
  await pass(300)
  t.same(record, ['6', '5', '1'])
  ends.get('1')!()
  await pass(400)
  t.same(record, ['6', '5', '1', '20'])
})

for (const bound of ['maxInFlight', 'maxInFlightAll'] as const) {
  for (const [from, to, most] of [
    [{ cost: 10 }, 3, 3],
    [3, { cost: 10 }, 10],
  ] as const) {
    t.test(`${bound}: from ${JSON.stringify(from)} to ${JSON.stringify(to)} while two calls of cost 5 run`, async t => {
      const { shaper, pass } = world({ rate: '1000/s', capacity: 1_000, [bound]: from })
      const ends: (() => void)[] = []
      const keep = () => new Promise<void>(resolve => ends.push(resolve))
      for (let at = 0; at < 2; at += 1) void shaper.run('a', keep, { cost: 5 })
      await pass(100)
      shaper.update({ [bound]: to })
      for (const end of ends.splice(0)) end()
      await pass(200)
      for (let at = 0; at < 20; at += 1) shaper.run('a', keep).catch(() => {})
      await pass(300)
      t.equal(ends.length, most)
      for (const end of ends.splice(0)) end()
      await pass(400)
      t.equal(ends.length, Math.min(most, 20 - most), 'and the next ones follow')
      shaper.clear()
    })
  }
}

t.test('update: the buckets by their names', async t => {
  const { clock, shaper, record, note } = several()
  void shaper.run(note('a'), { cost: { tokens: 100 } })
  void shaper.run(note('b'), { cost: { tokens: 10 } })
  shaper.update({ buckets: { tokens: { rate: '1000/s' } } })
  clock.runAll()
  t.same(record, ['a at 0', 'b at 100'])
  const wrong: [options: object, message: string][] = [
    [{ rate: '5/s' }, 'rate: there are several buckets; use e.g. { buckets: { requests: { rate: "5/s" } } }'],
    [{ buckets: { token: {} } }, 'buckets.token: there is no such bucket; use "requests" or "tokens"'],
    [{ buckets: { tokens: { rate: 'x' } } }, 'buckets.tokens.rate: "x" is not a rate; use e.g. "5/s", "6/30s"'],
  ]
  for (const [options, message] of wrong) t.throws(() => shaper.update(options), { name: 'RangeError', message })
})

t.test('wrong buckets', async t => {
  const wrong: [options: object, message: RegExp][] = [
    [{ buckets: {} }, /^buckets: empty; use e\.g\. \{ requests: /],
    [{ buckets: { a: { rate: '5/s' } }, rate: '5/s' }, /^buckets: give either buckets or rate, capacity and burst$/],
    [{ buckets: { 'a b': { rate: '5/s' } } }, /^buckets\["a b"\]: "a b" is not a name; /],
    [{ buckets: { a: { capacity: 5 } } }, /^buckets\.a\.rate: missing; /],
    [{ buckets: { a: { rate: '5/s', key: 'x' } } }, /^buckets\.a\.key: "x" is not a key; use "all", or leave it out$/],
    [{ buckets: { a: { rate: '5/s', weight: 1 } } }, /^buckets\.a\.weight: unknown key; /],
    [{ buckets: [] }, /^buckets: a list is not a set of buckets; /],
    [{ buckets: { a: 5 } }, /^buckets\.a: 5 is not a bucket; /],
    [
      { buckets: { a: { rate: '5/s' } }, store: { type: 'redis', url: 'redis://127.0.0.1:1' } },
      /^buckets\.a\.capacity: with a store it has to be finite; /,
    ],
    [
      { rate: '5/s', capacity: 9, maxInFlight: { cost: 2 }, store: { type: 'redis', url: 'redis://127.0.0.1:1' } },
      /^maxInFlight: with a store it is a number of calls; use e\.g\. 10$/,
    ],
    [{ rate: '5/s', maxInFlightAll: { cost: 0 } }, /^maxInFlightAll\.cost: 0 is not a cost; /],
    [{ rate: '5/s', maxInFlight: [] }, /^maxInFlight: a list is not a bound; /],
    [{ rate: '5/s', retry: 5 }, /^retry: 5 is not a function; /],
  ]
  for (const [options, message] of wrong)
    t.throws(() => createShaper(options as never), { name: 'RangeError', message })
  const { shaper } = several()
  await t.rejects(
    shaper.run(() => 1, { cost: { token: 5 } }),
    {
      message: 'cost.token: there is no such bucket; use "requests" or "tokens"',
    },
  )
  await t.rejects(
    world().shaper.run(() => 1, { cost: { tokens: 5 } }),
    {
      message: 'cost: there is only one bucket; use a number, e.g. 1',
    },
  )
})

t.test('room resolves when one more call would be admitted', async t => {
  const { clock, shaper, pass } = world({ capacity: 2 })
  await shaper.room()
  void shaper.run(() => 1)
  await shaper.room('')
  void shaper.run(() => 1)
  let at = -1
  const room = shaper.room().then(() => {
    at = clock.now()
  })
  await pass(90)
  t.equal(at, -1)
  await pass(200, 1)
  await room
  t.ok(at >= 100 && at <= 102, `${at}`)
  t.equal(await shaper.run(() => 'admitted'), 'admitted')
  await t.rejects(shaper.room('', { cost: 5 }), OverflowError)
  const controller = new AbortController()
  shaper.run(() => 1).catch(() => {})
  const aborted = shaper.room('', { signal: controller.signal })
  controller.abort(new Error('not needed'))
  await t.rejects(aborted, { message: 'not needed' })
  const closing = shaper.room()
  closing.catch(() => {})
  void shaper.drain({ timeout: 0 })
  await pass(clock.now() + 10)
  await t.rejects(closing, ClosedError)
})

t.test('map: each item in its turn, results in the order of the items, taken as late as can be', async t => {
  const { clock, shaper } = world({ capacity: 3 })
  let taken = 0
  function* items() {
    for (let item = 0; item < 50; item += 1) {
      taken += 1
      yield item
    }
  }
  const results: number[] = []
  let most = 0
  const ended = (async () => {
    for await (const result of shaper.map(items(), async (item, { attempt }) => item * 10 + attempt)) {
      results.push(result)
      most = Math.max(most, taken - results.length)
    }
  })()
  for (let at = 0; at <= 5_000; at += 100) {
    clock.runUntil(at)
    for (let turns = 0; turns < 5; turns += 1) await turn()
  }
  await ended
  t.same(
    results,
    Array.from({ length: 50 }, (_, item) => item * 10 + 1),
  )
  t.ok(most <= 3, `at most ${most} were taken ahead`)
})

t.test('map: an error ends it, those that wait are given up, and its source is closed', async t => {
  const { shaper, pass } = world()
  let closed = false
  async function* items() {
    try {
      for (let item = 0; ; item += 1) yield item
    } finally {
      closed = true
    }
  }
  const results: number[] = []
  const failing = (async () => {
    for await (const result of shaper.map(items(), item => {
      if (item === 2) throw new Error('third')
      return item
    }))
      results.push(result)
  })()
  failing.catch(() => {})
  await pass(500)
  await t.rejects(failing, { message: 'third' })
  t.same(results, [0, 1])
  t.ok(closed)
  await pass(600)
  t.match(shaper.status(), { queued: 0, inFlight: 0 })
  const broken = (async () => {
    for await (const _ of shaper.map(
      (function* () {
        yield 1
        throw new Error('source')
      })(),
      item => item,
    ));
  })()
  broken.catch(() => {})
  await pass(1_000)
  await t.rejects(broken, { message: 'source' })
  t.throws(() => shaper.map([1], 5 as never), { name: 'TypeError', message: /^map needs a function/ })
})

t.test('clear: what waits is rejected, all or those of a key; what runs goes on', async t => {
  const { shaper, pass } = world()
  const running = shaper.run('x', () => turn('ran'))
  const waiting = ['x', 'x', 'y', 'y', 'y'].map(key => shaper.run(key, () => key))
  for (const call of waiting) call.catch(() => {})
  t.equal(await shaper.clear('x'), 2)
  await t.rejects(waiting[0]!, { name: 'ClearedError', code: 'SHAPER_CLEARED' })
  t.equal(await shaper.clear(), 2, 'the first of y runs')
  t.equal(await running, 'ran')
  await pass(100)
  t.match(shaper.status(), { queued: 0 })
})

t.test(
  'what a call sends leaves after its tick, a burst in some turns; the next one is a period after that',
  async t => {
    for (const { options, due } of [
      { options: { rate: '10/s' }, due: ['a at 0', 'b at 120', 'c at 220', 'd at 320'] },
      { options: { rate: '10/s', burst: 3 }, due: ['a at 0', 'b at 0', 'c at 0', 'd at 130'] },
    ]) {
      const virtual = createVirtualClock()
      // The caller goes on for 20 ms. The next turn takes 10 ms, and the others no time.
      const turns = [20, 30]
      const clock: Clock = {
        now: virtual.now,
        at: (due, run) => virtual.at(due <= virtual.now() ? Math.max(due, turns.shift() ?? 0) : due, run),
      }
      const shaper = createShaper({ ...options, clock })
      const record: string[] = []
      for (const name of ['a', 'b', 'c', 'd'])
        void shaper.run('k', () => record.push(`${name} at ${Math.round(clock.now())}`))
      virtual.runAll()
      t.same(record, due)
    }
  },
)

t.test('where a call was rejected in that tick the next ones keep their slots: what it was told is enough', async t => {
  const virtual = createVirtualClock()
  const clock: Clock = { now: virtual.now, at: (due, run) => virtual.at(Math.max(due, 20), run) }
  const shaper = createShaper({ rate: '10/s', capacity: 2, clock })
  const record: string[] = []
  for (const name of ['a', 'b']) void shaper.run('k', () => record.push(`${name} at ${Math.round(clock.now())}`))
  const error: unknown = await shaper.run('k', () => undefined).catch(error => error)
  virtual.runUntil((error as OverflowError).retryAfterMs)
  void shaper.run('k', () => record.push('c'))
  virtual.runAll()
  t.same(record, ['a at 0', 'b at 100', 'c'])
})
