/** What the types of the library accept and refuse. `types.test.ts` compiles it over several libs. */
import { Agent } from 'undici'
import { type CallOptions, createShaper, type OutboundShaper, type ShaperOptions, shape } from '../../src/index.js'

const one = createShaper({ rate: '5/s', capacity: 10 })
const two = createShaper({ buckets: { requests: { rate: '5/s' }, tokens: { rate: 100, capacity: 1_000 } } })

export function options(): unknown[] {
  return [
    // @ts-expect-error: no limit
    createShaper({}),
    // @ts-expect-error: both kinds of limits
    createShaper({ rate: '5/s', buckets: { requests: { rate: '5/s' } } }),
    // @ts-expect-error: a burst beside buckets
    createShaper({ burst: 5, buckets: { requests: { rate: '5/s' } } }),
    // @ts-expect-error: a bucket without a rate
    createShaper({ buckets: { requests: { capacity: 5 } } }),
    // @ts-expect-error: no limit
    shape({ key: 'origin' }),
    // @ts-expect-error: both kinds of limits
    shape({ rate: 5, buckets: { requests: { rate: '5/s' } } }),
    createShaper({ rate: 5, limits: key => (key === 'gold' ? { rate: 50, capacity: 9 } : undefined) }),
    createShaper({ buckets: { own: { rate: 5 } }, limits: () => ({ buckets: { own: { rate: 50 } } }) }),
    // @ts-expect-error: an unknown bucket
    createShaper({ buckets: { own: { rate: 5 } }, limits: () => ({ buckets: { other: { rate: 50 } } }) }),
  ]
}

export function costs(): unknown[] {
  return [
    one.run(() => 1, { cost: 2 }),
    two.run(() => 1, { cost: 2 }),
    two.run(() => 1, { cost: { tokens: 900 } }),
    // @ts-expect-error: there is one bucket
    one.run(() => 1, { cost: { tokens: 900 } }),
    // @ts-expect-error: an unknown bucket
    two.run(() => 1, { cost: { token: 900 } }),
    // @ts-expect-error: an unknown bucket
    two.admit('key', { cost: { token: 900 } }),
    two.run(({ charge }) => charge({ requests: 1, tokens: 5 })),
    // @ts-expect-error: an unknown bucket
    two.run(({ charge }) => charge({ token: 5 })),
    two.map([1, 2], async item => item, { cost: { tokens: 5 } }),
    // @ts-expect-error: an unknown bucket
    two.room('', { cost: { token: 5 } }),
    two.update({ buckets: { tokens: { rate: 5 } } }),
    // @ts-expect-error: an unknown bucket
    two.update({ buckets: { token: { rate: 5 } } }),
    shape({ buckets: { tokens: { rate: 5 } }, cost: { tokens: 5 }, costAfter: () => ({ tokens: 4 }) }),
    // @ts-expect-error: an unknown bucket
    shape({ buckets: { tokens: { rate: 5 } }, cost: { token: 5 } }),
    // @ts-expect-error: its name until now
    one.run(() => 1, { expiration: '5s' }),
  ]
}

/** The function alone says what arguments there are. */
export async function wrapped(): Promise<unknown[]> {
  const fn = async (user: string, pages: number) => `${user} ${pages}`
  const byKey = one.wrap(fn, { key: user => user })
  const byBoth = one.wrap(fn, { key: user => user.toLowerCase(), cost: (_user, pages) => pages })
  const byNone = one.wrap(fn)
  // @ts-expect-error: the second argument is missing
  const missing = byKey('ann')
  // @ts-expect-error: the key is a string
  const wrong = one.wrap(fn, { key: (_user, pages) => pages })
  const texts: string[] = [await byKey('ann', 3), await byBoth('ann', 3), await byNone('ann', 3)]
  return [texts, missing, wrong]
}

/** Shapers and options with names are shapers and options. */
export function general(given: ShaperOptions, call: CallOptions): OutboundShaper[] {
  const shaper = createShaper(given)
  void shaper.run(() => 1, call)
  return [one, two, shaper]
}

/** The fetch of docs/outbound.md is a fetch. */
export const paced: typeof fetch = (input, init) =>
  fetch(input, { ...init, dispatcher: new Agent().compose(shape({ rate: 5 })) } as object)
