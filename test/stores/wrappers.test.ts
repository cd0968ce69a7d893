/** The stores that wrap another one have all of its verbs. */
import t from 'tap'
import { timedStore } from '../../src/admin/counters/metrics.js'
import type { Store, StoreVerb } from '../../src/sharing/store.js'
import { deferredStore } from '../../src/stores/deferred.js'
import { STORE_VERBS, VERBS } from '../../src/stores/verbs.js'
import { clock } from './conformance.js'

/** What a store says besides its verbs. A new member of the interface does not compile until it is named here. */
const OTHERS: Required<{ [name in Exclude<keyof Store, StoreVerb>]: unknown }> = {
  ...{ horizon: 7, keepsOrder: true, shards: ['a', 'b'], board: {} },
  ...{ horizonOf: undefined, latenessOf: undefined, shardOf: undefined, listen: undefined, close: undefined },
}
const NAMES = [...STORE_VERBS, ...Object.keys(OTHERS)] as (keyof Store)[]
const VALUES: Partial<Record<keyof Store, unknown>> = Object.fromEntries(
  Object.entries(OTHERS).filter(([, value]) => value),
)

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
    const deferred = deferredStore()
    await deferred.opened(store)
    return deferred
  },
  'a store that the user owns': async store => deferredStore(store),
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

t.test('a wrapper lacks the verbs that its store lacks', async t => {
  const { store } = recording(['admit', 'claim'])
  for (const wrapper of [timedStore(store, clock, metrics), deferredStore(store)])
    t.same(
      STORE_VERBS.filter(verb => wrapper[verb] !== undefined),
      ['admit', 'claim'],
    )
})

t.test('while no store is open each question fails, but for what may be missing', async t => {
  const store = deferredStore()
  for (const verb of STORE_VERBS) {
    const ask = async () => (store[verb] as (input: unknown) => unknown)({ stack: [1, 2] })
    const { missing } = VERBS[verb]
    if (missing === undefined) await t.rejects(ask, { code: 'SHAPER_STORE_UNAVAILABLE' }, verb)
    else t.same(await ask(), verb === 'settle' ? [0, 0] : undefined, verb)
  }
})
