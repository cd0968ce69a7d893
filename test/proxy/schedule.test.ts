/** Rates that change with the time of day, by themselves, on a virtual clock. */
import t from 'tap'
import { parseConfig } from '../../src/config/load.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, get, httpUpstream, type Rig, type RigOptions, startRig, turns } from './harness.js'

type Teardown = Parameters<typeof startRig>[0]

const MINUTE = 60_000

/** A rig whose wall clock says `time` at first, and moves with its clocks. */
async function timedRig(t: Teardown, time: string, config: object, options: RigOptions = {}): Promise<Rig> {
  let rig: Rig | undefined
  const start = Date.parse(time)
  const wallNow = () => start + (rig?.clock.now() ?? 0)
  rig = await startRig(t, config, { ...options, virtualClock: true, wallNow })
  return rig
}

/** Lets both clocks pass together. */
async function passAll({ pacer, clock }: Rig, until: number, step: number): Promise<void> {
  while (clock.now() < until) {
    const next = Math.min(until, clock.now() + step)
    pacer.runUntil(next)
    clock.runUntil(next)
    await turns()
  }
}

/** Sends requests that wait, all at once. Their answers come as they are released. */
async function send(t: Teardown, rig: Rig, count: number): Promise<Promise<number>[]> {
  const answers: Promise<number>[] = []
  const before = rig.queued.length + rig.released.length
  for (let sent = 0; sent < count; sent += 1) {
    const client = await connect(t, rig)
    client.send(get())
    answers.push(client.answer().then(({ status }) => status))
    await rig.until(({ queued, released }) => queued.length + released.length > before + sent)
  }
  return answers
}

const config = (url: string, rate: unknown, more: object = {}, route: object = {}) => ({
  upstream: url,
  buckets: { all: { key: 'all', rate, capacity: 20, ...more } },
  routes: [{ name: 'api', ...route }],
})

const waitsOf = (rig: Rig) => rig.released.map(({ wait }) => Math.round(wait))

t.test('the rate changes at its minute, and those who wait follow it', async t => {
  for (const shared of [undefined, 'store'] as const) {
    const upstream = await httpUpstream(t)
    const rig = await timedRig(
      t,
      '2026-11-23T23:59:58Z',
      config(upstream.url, [{ from: '00:00', to: '00:01', rate: '10/s' }, { rate: '1/s' }]),
      shared && { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' as const }) },
    )
    const policy = async () => (await askOnce(t, rig, get('/', 'Prefer: wait=0'))).header('ratelimit-policy')
    t.equal(await policy(), '"all";q=20;w=20')
    await send(t, rig, 8)
    await passAll(rig, 4_000, 20)
    // At 1/s until midnight, which is two seconds later, and at 10/s from then on.
    const wanted = [0, 1_000, 2_000, 2_100, 2_200, 2_300, 2_400, 2_500, 2_600]
    const waits = waitsOf(rig)
    t.equal(waits.length, wanted.length)
    if (shared === undefined) t.same(waits, wanted)
    else for (const [at, wait] of waits.entries()) t.ok(Math.abs(wait - wanted[at]!) <= 20, `${waits}`)
    t.equal(rig.proxy.context.routes[0]!.settings.buckets[0]!.limits.rate, 0.01)
    t.equal(await policy(), '"all";q=20;w=2', 'and the headers say the present rate')
    await passAll(rig, 2_000 + MINUTE + 100, 1_000)
    t.equal(await policy(), '"all";q=20;w=20', 'a minute later it is the old one')
  }
})

t.test('levels stay', async t => {
  const upstream = await httpUpstream(t)
  const rig = await timedRig(
    t,
    '2026-11-23T21:59:30Z',
    config(upstream.url, [{ from: '22:00', to: '06:00', rate: '20/h' }, { rate: '10/h' }], {}, { mode: 'meter' }),
  )
  for (let count = 0; count < 12; count += 1) await askOnce(t, rig, get())
  const level = () => {
    const [[, bucket] = []] = rig.proxy.context.bucketTable.entries('all')
    return bucket!.level(rig.pacer.now())
  }
  await passAll(rig, 30_000, 10_000)
  t.ok(Math.abs(level() - (12 - 10 / 120)) < 1e-6, `${level()} after half a minute at 10/h`)
  await passAll(rig, 30_000 + 6 * MINUTE, MINUTE)
  t.ok(Math.abs(level() - (12 - 10 / 120 - 2)) < 1e-6, `${level()} after six minutes at 20/h`)
})

t.test('a day with a change to summer time', async t => {
  const upstream = await httpUpstream(t)
  const rate = [{ from: '02:30', to: '03:30', rate: '9/s' }, { rate: '1/s' }]
  // The clock of Berlin goes from 02:00 to 03:00 at 01:00 UTC.
  const rig = await timedRig(t, '2026-03-29T00:00:00Z', config(upstream.url, rate, { timeZone: 'Europe/Berlin' }))
  const perSecond = () => Math.round(rig.proxy.context.routes[0]!.settings.buckets[0]!.limits.rate * 1_000)
  const seen: [minute: number, rate: number][] = []
  for (let minute = 0; minute < 120; minute += 1) {
    await passAll(rig, minute * MINUTE + 1, MINUTE)
    if (seen.at(-1)?.[1] !== perSecond()) seen.push([minute, perSecond()])
  }
  t.same(seen, [
    [0, 1],
    [60, 9],
    [90, 1],
  ])
})

t.test('a reload brings another schedule, or none', async t => {
  const upstream = await httpUpstream(t)
  const first = config(upstream.url, [{ from: '12:00', to: '13:00', rate: '10/s' }, { rate: '1/s' }])
  const rig = await timedRig(t, '2026-11-23T11:59:00Z', first)
  const reload = (next: object) => rig.proxy.reload(parseConfig(JSON.stringify({ listen: '127.0.0.1:0', ...next })))
  const perSecond = () => Math.round(rig.proxy.context.routes[0]!.settings.buckets[0]!.limits.rate * 1_000)
  await send(t, rig, 6)
  await passAll(rig, 2_000, 20)
  t.equal(perSecond(), 1)
  await reload(config(upstream.url, [{ from: '11:00', to: '12:00', rate: '4/s' }, { rate: '2/s' }]))
  t.equal(perSecond(), 4, 'at once')
  await passAll(rig, 3_000, 10)
  t.same(waitsOf(rig), [0, 1_000, 2_000, 2_250, 2_500, 2_750])
  await passAll(rig, MINUTE + 1, 10_000)
  t.equal(perSecond(), 2)
  await reload(config(upstream.url, '3/s'))
  await passAll(rig, 62 * MINUTE, MINUTE)
  t.equal(perSecond(), 3, 'nothing changes it any more')
  await reload(first)
  t.equal(perSecond(), 1)
})

t.test('a tier has a schedule of its own, and inherits that of its bucket', async t => {
  const upstream = await httpUpstream(t)
  const tiers = [
    { name: 'gold', keys: ['gold'], rate: [{ from: '12:00', to: '13:00', rate: '8/s' }, { rate: '4/s' }] },
    { name: 'iron', keys: ['iron'], weight: 2 },
  ]
  const rate = [{ from: '12:00', to: '12:01', rate: '2/s' }, { rate: '1/s' }]
  const rig = await timedRig(
    t,
    '2026-11-23T11:59:30Z',
    config(upstream.url, rate, { key: 'header:k', capacity: 8, tiers }),
  )
  const windows = async () => {
    const found: string[] = []
    for (const key of ['gold', 'iron', 'other']) {
      const policy = (await askOnce(t, rig, get('/', `k: ${key}`))).header('ratelimit-policy')
      found.push(policy!.replace(/.*w=/, ''))
    }
    return found
  }
  t.same(await windows(), ['2', '8', '8'])
  await passAll(rig, 30_001, 10_000)
  t.same(await windows(), ['1', '4', '4'], 'instances that are known have the new rates')
  await passAll(rig, 30_001 + MINUTE, 10_000)
  t.same(await windows(), ['1', '8', '8'])
})

const NOON_SLOW = [{ from: '12:00', to: '13:00', rate: '1/s' }, { rate: '10/s' }]

for (const [kind, options] of [
  ['without a store', {}],
  ['with a store', { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) }],
] as [string, RigOptions][]) {
  t.test(`${kind}: who could not leave within maxWait after the change is rejected on arrival`, async t => {
    const upstream = await httpUpstream(t)
    const settings = config(upstream.url, NOON_SLOW, {}, { maxWait: '2s' })
    const rig = await timedRig(t, '2026-11-23T11:59:59.900Z', settings, options)
    const answers: Promise<number>[] = []
    for (let sent = 1; sent <= 10; sent += 1) {
      const client = await connect(t, rig)
      client.send(get())
      answers.push(client.answer().then(({ status }) => status))
      // With a store a rejection is told with the next call.
      await rig.until(({ began }) => began === sent)
      await turns()
    }
    await passAll(rig, 4_000, 20)
    // One leaves at once, one at 100 ms, and one a second later. The next would wait for 2.1 s.
    const statuses = (await Promise.all(answers)).sort()
    t.same(statuses.slice(0, 2), [200, 200])
    t.equal(statuses.filter(status => status === 429).length, 7, `${statuses}`)
  })
}

t.test('who cannot leave within maxWait after an unforeseen change is answered 503', async t => {
  const upstream = await httpUpstream(t)
  let offset = Date.parse('2026-11-23T09:00:59.900Z')
  let rig: Rig | undefined
  const wallNow = () => offset + (rig?.clock.now() ?? 0)
  rig = await startRig(t, config(upstream.url, NOON_SLOW, {}, { maxWait: '2s' }), { virtualClock: true, wallNow })
  const answers = await send(t, rig, 10)
  offset += 3 * 60 * MINUTE
  await passAll(rig, 4_000, 20)
  const statuses = await Promise.all(answers)
  t.same([...new Set(statuses)].sort(), [200, 503])
  t.ok(statuses.filter(status => status === 503).length >= 6, `${statuses}`)
})

t.test('a clock that is set is noticed within a minute', async t => {
  const upstream = await httpUpstream(t)
  let offset = Date.parse('2026-11-23T09:00:10Z')
  let rig: Rig | undefined
  const wallNow = () => offset + (rig?.clock.now() ?? 0)
  const rate = [{ from: '12:00', to: '13:00', rate: '5/s' }, { rate: '1/s' }]
  rig = await startRig(t, config(upstream.url, rate), { virtualClock: true, wallNow })
  const perSecond = () => Math.round(rig.proxy.context.routes[0]!.settings.buckets[0]!.limits.rate * 1_000)
  offset += 3 * 60 * MINUTE
  await passAll(rig, 49_999, 10_000)
  t.equal(perSecond(), 1)
  await passAll(rig, 50_000, 10_000)
  t.equal(perSecond(), 5)
})
