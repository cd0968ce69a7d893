/** The stores that wrap another one have all of its verbs. */
import t from 'tap'
import { timedStore } from '../../src/admin/counters/timed-store.js'
import type { Store } from '../../src/core/store.js'
import { DeferredStore } from '../../src/outbound/deferred-store.js'
import { clock } from './conformance.js'

/** Whether a store may lack it. A new member of the interface does not compile until it is named here. */
const MEMBERS: Required<{ [name in keyof Store]: 'optional' | 'always' }> = {
  horizon: 'always',
  horizonOf: 'optional',
  latenessOf: 'optional',
  admit: 'always',
  claim: 'always',
  giveBack: 'always',
  settle: 'optional',
  lease: 'optional',
  promise: 'optional',
  keepsOrder: 'optional',
  reset: 'always',
  shards: 'optional',
  shardOf: 'optional',
  beat: 'always',
  leave: 'optional',
  exchange: 'always',
  listen: 'optional',
  board: 'optional',
  close: 'always',
}
const NAMES = Object.keys(MEMBERS) as (keyof Store)[]
const VALUES: Partial<Record<keyof Store, unknown>> = { horizon: 7, keepsOrder: true, shards: ['a', 'b'], board: {} }

const metrics = { storeAnswered: () => undefined, storeFailed: () => undefined }

/** A store that notes what is asked, with these members. */
function recording(names: readonly (keyof Store)[]): { store: Store; asked: string[] } {
  const asked: string[] = []
  const verbOf = (name: string) => (): unknown => {
    asked.push(name)
    return name === 'listen' ? () => undefined : `of ${name}`
  }
  const members = names.map(name => [name, name in VALUES ? VALUES[name] : verbOf(name)])
  return { store: Object.fromEntries(members) as Store, asked }
}

const WRAPPERS: Record<string, (store: Store) => Promise<Store>> = {
  'a timed store': async store => timedStore(store, clock, metrics),
  'a store that was opened': async store => {
    const deferred = new DeferredStore()
    await deferred.opened(store)
    return deferred
  },
  'a store that the user owns': async store => new DeferredStore(store),
}

for (const [title, wrap] of Object.entries(WRAPPERS)) {
  t.test(`${title} has each member of its store`, async t => {
    const { store, asked } = recording(NAMES)
    const wrapper = (await wrap(store)) as unknown as Record<string, unknown>
    for (const name of NAMES) {
      if (name in VALUES) t.equal(wrapper[name], VALUES[name], name)
      else if (name !== 'close') {
        const answer = (wrapper[name] as (of: unknown) => unknown)(() => undefined)
        t.same(asked.splice(0), [name], name)
        if (name !== 'listen') t.equal(answer, `of ${name}`, name)
      }
    }
    await (wrapper as unknown as Store).close()
    t.same(asked, title === 'a store that the user owns' ? [] : ['close'])
  })
}

t.test('a wrapper does not lease where its store does not', async t => {
  const { store } = recording(NAMES.filter(name => MEMBERS[name] === 'always'))
  t.equal(timedStore(store, clock, metrics).lease, undefined)
  t.equal(new DeferredStore(store).lease, undefined)
})

t.test('while no store is open a question for a lease fails', async t => {
  await t.rejects(async () => new DeferredStore().lease!({} as never), { code: 'SHAPER_STORE_UNAVAILABLE' })
})
