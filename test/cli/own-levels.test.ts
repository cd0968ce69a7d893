/** Levels of a proxy that a next one goes on with, on the virtual clock. */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ownLevels } from '../../src/cli/serving/own-levels.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { LevelsFile } from '../../src/stores/memory/levels-file.js'
import { httpUpstream, type Rig, startRig } from '../proxy/harness.js'
import { runs } from '../runs.js'

const log = { info: () => undefined, warn: () => undefined }
/** Of no importance: moments are as far apart by all clocks. */
const timer = createVirtualClock()

type Use = (rig: Rig) => Promise<unknown>

/** One after the other, with `ms` in between, of which the second one's clock knows nothing. */
async function restarted(t: Test, [config, next = config]: readonly [object, object?], use: Use, ms: number) {
  const file = join(t.testdir(), 'levels.json')
  let wall = 1_795_942_800_000
  const upstream = await httpUpstream(t)
  const before = await startRig(t, { upstream: upstream.url, ...config })
  await use(before)
  const kept = new LevelsFile({ file, clock: timer, log, wallNow: () => wall + before.pacer.now() })
  kept.begin(ownLevels(before.proxy.context))
  await kept.close()
  wall += before.pacer.now() + ms
  return startRig(
    t,
    { upstream: upstream.url, ...next },
    {
      async prepared(context) {
        const kept = new LevelsFile({ file, clock: timer, log, wallNow: () => wall })
        await kept.restore(ownLevels(context))
      },
    },
  )
}

async function ask(rig: Rig, user: string, headers: Record<string, string> = {}): Promise<number> {
  return (await fetch(rig.proxy.url, { headers: { 'x-user': user, ...headers } })).status
}

async function several(count: number, ask: () => Promise<number>): Promise<number[]> {
  const statuses: number[] = []
  for (let asked = 0; asked < count; asked += 1) statuses.push(await ask())
  return statuses
}

function levelOf({ proxy, pacer }: Rig, bucket: string, key: string): number | undefined {
  const level = proxy.context.bucketTable.look(bucket, key)?.level(pacer.now())
  // In the file they are rounded to a millionth.
  return level === undefined ? undefined : Math.round(level * 1e5) / 1e5
}

const METER = {
  buckets: { client: { key: 'header:x-user', rate: '2/s', capacity: 5 } },
  routes: [{ name: 'api', mode: 'meter' }],
}

t.test('a level goes on where it was, less what has drained', async t => {
  const use = async (rig: Rig) => {
    t.same(await several(6, () => ask(rig, 'a')), [200, 200, 200, 200, 200, 429])
    t.equal(await ask(rig, 'b'), 200)
    rig.pacer.runUntil(500)
  }
  const rig = await restarted(t, [METER], use, 1_000)
  t.equal(levelOf(rig, 'client', 'a'), 2)
  t.equal(levelOf(rig, 'client', 'b'), undefined, 'nothing is left of it')
  t.same(await several(4, () => ask(rig, 'a')), [200, 200, 200, 429])
  rig.pacer.runUntil(500)
  t.equal(await ask(rig, 'a'), 200)
})

t.test('the slot after the last one keeps its distance', async t => {
  const config = {
    buckets: { client: { key: 'header:x-user', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'api' }],
  }
  const rig = await restarted(t, [config], rig => ask(rig, 'a'), 400)
  const answer = ask(rig, 'a')
  await rig.until(({ queued }) => queued.length === 1)
  rig.pacer.runUntil(599)
  t.same(rig.released, [])
  rig.pacer.runUntil(600.01)
  t.equal(await answer, 200)
  t.equal(Math.round(rig.waits[0]!), 600)
})

t.test('what waited is not kept', async t => {
  const config = {
    buckets: { client: { key: 'header:x-user', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'api' }],
  }
  const waiting: Promise<unknown>[] = []
  const use = async (rig: Rig) => {
    for (let count = 0; count < 5; count += 1) waiting.push(ask(rig, 'a').catch(() => undefined))
    await rig.until(({ queued }) => queued.length === 4)
  }
  const rig = await restarted(t, [config], use, 0)
  t.equal(levelOf(rig, 'client', 'a'), 1, 'what has passed')
})

t.test('a block lasts', async t => {
  const config = {
    buckets: { client: { key: 'header:x-user', rate: '1/s', capacity: 1, blockFor: '1m' } },
    routes: [{ name: 'api', mode: 'meter' }],
  }
  const rig = await restarted(
    t,
    [config],
    async rig => t.same(await several(2, () => ask(rig, 'a')), [200, 429]),
    30_000,
  )
  t.equal(await ask(rig, 'a'), 429)
  rig.pacer.runUntil(30_001)
  t.equal(await ask(rig, 'a'), 200)
})

t.test('tiers, other limits and other buckets', async t => {
  const bucket = {
    ...{ key: 'header:x-user', rate: '1/s', capacity: 10 },
    tiers: [{ name: 'gold', header: { 'x-plan': 'gold' }, rate: '2/s', capacity: 20 }],
  }
  const config = {
    buckets: { client: bucket, gone: { key: 'all', rate: '1/m', capacity: 10 } },
    routes: [{ name: 'api', mode: 'meter' }],
  }
  const next = { buckets: { client: { ...bucket, rate: '4/s' } }, routes: [{ name: 'api', mode: 'meter' }] }
  const use = async (rig: Rig) => {
    for (let count = 0; count < 4; count += 1) await ask(rig, 'gold', { 'x-plan': 'gold' })
    for (let count = 0; count < 4; count += 1) await ask(rig, 'plain')
  }
  const rig = await restarted(t, [config, next], use, 1_000)
  t.equal(levelOf(rig, 'client', 'gold'), 2, 'it drained at the rate of its tier')
  t.equal(levelOf(rig, 'client', 'plain'), 3, 'it drained at the rate of then')
  rig.pacer.runUntil(500)
  t.equal(levelOf(rig, 'client', 'gold'), 1)
  t.equal(levelOf(rig, 'client', 'plain'), 1, 'it drains at the rate of now')
  t.equal(rig.proxy.context.bucketTable.size(), 2)
})

t.test('no more than maxKeys come back', async t => {
  const use = async (rig: Rig) => {
    for (let user = 0; user < 10; user += 1) await ask(rig, `user ${user}`)
  }
  const rig = await restarted(t, [METER, { ...METER, limits: { maxKeys: 4 } }], use, 0)
  t.equal(rig.proxy.context.bucketTable.size(), 4)
  t.same(await several(5, () => ask(rig, 'user 0')), [200, 200, 200, 200, 429])
})

t.test('property: a million of them sleep again once they are back', async t => {
  const config = { ...METER, limits: { maxKeys: 1_000_000 } }
  const count = runs(1_000_000)
  const use = async ({ proxy, pacer }: Rig) => {
    const { bucketTable, routes } = proxy.context
    const { limits } = routes[0]!.settings.buckets[0]!
    for (let key = 0; key < count; key += 1) {
      const instance = bucketTable.find(limits, `${key}`, pacer.now())!
      bucketTable.hold(instance)
      instance.set(3, pacer.now())
      bucketTable.rest(instance)
    }
  }
  const rig = await restarted(t, [config], use, 250)
  t.equal(rig.proxy.context.bucketTable.size(), count)
  t.equal(levelOf(rig, 'client', '777'), 2.5)
  const heap = process.memoryUsage().heapUsed
  t.ok(heap < 600e6, `${Math.round(heap / 1e6)} MB`)
})
