/** The level of a key where another instance has leased room of it. */
import t from 'tap'
import { presentInstance } from '../../src/admin/keys/instance.js'
import { instanceState } from '../../src/admin/keys/key-state.js'
import { mergeLevels } from '../../src/admin/snapshot/merge-snapshots.js'
import type { InstanceSnapshot } from '../../src/admin/snapshot/snapshot.js'
import type { Store } from '../../src/sharing/store.js'
import type { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { connect, get, httpUpstream, type Rig, type RigOptions, startRig, turns } from '../proxy/harness.js'

async function told({ proxy: { context }, pacer }: Rig): Promise<Omit<InstanceSnapshot, 'predictedWaitMs'>> {
  const [settings] = context.routes[0]!.settings.buckets
  return instanceState('all', await presentInstance(context, settings!, 'all'), pacer.now())
}

t.test('room that another instance has leased and not used is no level', async t => {
  const upstream = await httpUpstream(t)
  let store: Store | undefined
  const shared: RigOptions['shared'] = clock => {
    store ??= createMemoryStore({ clock })
    return { store, onOutage: 'local' }
  }
  const config = { upstream: upstream.url, buckets: { all: { key: 'all', rate: '20/s', capacity: 80 } }, routes: [{}] }
  const [one, other] = [await startRig(t, config, { shared }), await startRig(t, config, { shared })]
  for (let number = 0; number < 100; number += 1) (await connect(t, one)).send(get())
  await one.until(({ outcomes, queued }) => outcomes.length + queued.length >= 100)
  let leased = 0
  for (let at = 100; at < 3_900; at += 130) {
    while (one.pacer.now() < at) {
      for (const { pacer } of [one, other]) pacer.runUntil(pacer.now() + 5)
      await turns(2)
    }
    const bucket = one.proxy.context.bucketTable.peek('all', 'all') as StoredBucket
    if (bucket.hasRoom) leased += 1
    const level = 80 - (20 * one.pacer.now()) / 1_000
    const [own, others] = [await told(one), await told(other)]
    const about = `at ${at} ms`
    t.ok(others.level > level - 1e-6 && others.level < level + 1 + 1e-6, `${about} alone: ${others.level} for ${level}`)
    t.ok(Math.abs(mergeLevels([own, others], own.queued).level - level) < 1e-6, `${about} together`)
    t.equal((await told(other)).level, others.level, 'to ask changes nothing')
  }
  t.ok(leased > 20, `${leased} times room was leased`)
})
