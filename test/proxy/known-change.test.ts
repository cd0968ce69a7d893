/** Overrides and schedules that change a rate soon: what newcomers are told is what they wait, without a store and with one. */
import t from 'tap'
import { newcomersOf, waitsOf } from '../../src/admin/keys/newcomer.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { askOnce, connect, get, httpUpstream, type Rig, type RigOptions, startRig, turns } from './harness.js'

type Test = Parameters<typeof httpUpstream>[0]

const KINDS: [name: string, options: RigOptions, within: number][] = [
  ['without a store', {}, 1e-3],
  ['with a store', { shared: clock => ({ store: createMemoryStore({ clock }), onOutage: 'local' }) }, 1],
]

/** Lets both clocks pass together. */
async function pass({ pacer, clock }: Rig, until: number): Promise<void> {
  while (pacer.now() < until) {
    const next = Math.min(until, pacer.now() + 5)
    pacer.runUntil(next)
    clock.runUntil(next)
    await turns(2)
  }
}

/** What a newcomer of the bucket `all` is told, in ms. */
async function told({ proxy: { context } }: Rig): Promise<number> {
  const [settings] = context.routes[0]!.settings.buckets
  const newcomers = newcomersOf(context, settings!, 'all', context.bucketTable.peek('all', 'all'))
  return (await waitsOf(context, newcomers))[0]!
}

async function queue(t: Test, rig: Rig, count: number): Promise<void> {
  const before = rig.queued.length + rig.released.length
  for (let sent = 0; sent < count; sent += 1) (await connect(t, rig)).send(get())
  await rig.until(({ queued, released }) => queued.length + released.length >= before + count)
  await turns(20)
}

const config = (url: string, rate: unknown, capacity: number) => ({
  upstream: url,
  buckets: { all: { key: 'all', rate, capacity } },
  routes: [{ name: 'api' }],
})

/** A rig whose wall clock says `time` at first, and moves with its clocks. */
async function timedRig(t: Test, time: string, settings: object, options: RigOptions): Promise<Rig> {
  let rig: Rig | undefined
  const start = Date.parse(time)
  const wallNow = () => start + (rig?.clock.now() ?? 0)
  rig = await startRig(t, settings, { ...options, virtualClock: true, wallNow })
  return rig
}

for (const [kind, options, within] of KINDS) {
  t.test(`${kind}: the end of an override counts in what a newcomer is told`, async t => {
    for (const [during, usual] of [
      [50, 5],
      [5, 50],
    ] as const) {
      const upstream = await httpUpstream(t)
      const rig = await timedRig(t, '2026-11-23T12:00:00Z', config(upstream.url, `${usual}/s`, 500), options)
      await rig.proxy.context.overrides.set({ bucket: 'all', key: 'all', rate: during / 1_000, endsIn: 1_500 })
      await queue(t, rig, 100)
      // 100 leave from 0 on. The newcomer is the next.
      const ends = during * 1.5 >= 100 ? 100_000 / during : 1_500 + ((100 - during * 1.5) * 1_000) / usual
      for (const at of [200, 1_000, 1_400, 1_600, 2_000]) {
        await pass(rig, at)
        const wait = await told(rig)
        t.ok(Math.abs(rig.pacer.now() + wait - ends) <= within, `${during}/s, at ${at}: ${wait}, leaves at ${ends}`)
      }
      await queue(t, rig, 1)
      await pass(rig, ends + 300)
      const last = rig.released.at(-1)!
      t.equal(rig.released.length, 101)
      t.ok(Math.abs(last.wait - (ends - 2_000)) <= within, `it leaves after ${last.wait}`)
    }
  })

  t.test(`${kind}: the next change of a schedule counts in what a newcomer is told`, async t => {
    for (const [before, after] of [
      [50, 5],
      [5, 50],
    ] as const) {
      const upstream = await httpUpstream(t)
      const rates = [{ from: '12:00', to: '13:00', rate: `${after}/s` }, { rate: `${before}/s` }]
      const rig = await timedRig(t, '2026-11-23T11:59:58.500Z', config(upstream.url, rates, 500), options)
      await queue(t, rig, 100)
      const ends = 1_500 + ((100 - before * 1.5) * 1_000) / after
      for (const at of [200, 1_000, 1_400, 1_600, 2_000]) {
        await pass(rig, at)
        const wait = await told(rig)
        t.ok(Math.abs(rig.pacer.now() + wait - ends) <= within, `${before}/s, at ${at}: ${wait}, leaves at ${ends}`)
      }
      await queue(t, rig, 1)
      await pass(rig, ends + 300)
      const last = rig.released.at(-1)!
      t.equal(rig.released.length, 101)
      t.ok(Math.abs(last.wait - (ends - 2_000)) <= within, `it leaves after ${last.wait}`)
    }
  })

  t.test(`${kind}: Retry-After counts with the end of an override, and is enough`, async t => {
    for (const [mode, least] of [
      // A unit passes: half of it in 100 ms, the rest at a fifth of the rate.
      ['shape', 600],
      ['meter', 600],
    ] as const) {
      const upstream = await httpUpstream(t)
      const settings = { ...config(upstream.url, '1/s', 10), routes: [{ name: 'api', mode }] }
      const rig = await timedRig(t, '2026-11-23T12:00:00Z', settings, options)
      await rig.proxy.context.overrides.set({ bucket: 'all', key: 'all', rate: 0.005, endsIn: 100 })
      if (mode === 'shape') await queue(t, rig, 10)
      else for (let sent = 0; sent < 10; sent += 1) t.equal((await askOnce(t, rig, get())).status, 200)
      const rejected = await askOnce(t, rig, get())
      t.equal(rejected.status, 429)
      const told = rejected.json().retryAfterMs!
      // A store counts the time before the end at the new rate, where nobody waits.
      const wanted = options.shared !== undefined && mode === 'meter' ? 1_000 : least
      t.ok(Math.abs(told - wanted) <= 1, `${mode}: told ${told}`)
      // The store is asked about it with the next report of the lease.
      await pass(rig, told - (options.shared !== undefined && mode === 'shape' ? 250 : 10))
      const early = askOnce(t, rig, get())
      await pass(rig, told)
      t.equal((await early).status, 429, 'it is not too long')
      const client = await connect(t, rig)
      const before = rig.outcomes.length
      const queued = rig.queued.length
      client.send(get())
      await rig.until(({ outcomes, queued: waiting }) => outcomes.length > before || waiting.length > queued)
      t.notMatch(rig.outcomes.slice(before), ['api rejected 429'], `${mode}: it is enough`)
    }
  })
}
