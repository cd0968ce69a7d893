/** For any sequence of calls a store decides as the memory store does. */
import fc from 'fast-check'
import t from 'tap'
import type { Admission, BucketRef, Claim, Slot, Store } from '../../src/core/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { clock } from './conformance.js'

/** The distance of slots in ms: each slot is either due or beyond every horizon. */
const GRID = 25

const cost = fc.constantFrom(0.5, 1, 1, 1, 2, 3)
const stack = fc.constantFrom([0], [1], [2], [0, 1], [1, 2], [2, 0], [0, 1, 2])
const step = fc.record({
  gap: fc.constantFrom(0, 0, 0, 1, 2, 4, 10, 40, 1_000, -40),
  verb: fc.constantFrom('admit', 'admit', 'admit', 'claim', 'claim', 'giveBack', 'reset'),
  stack,
  cost,
  maxWait: fc.constantFrom(Infinity, Infinity, 0, 100, 250),
  claim: fc.boolean(),
})
const limits = fc.record({
  rate: fc.constantFrom(1 / 50, 1 / 100, 1 / 200, 1 / 1_000),
  capacity: fc.constantFrom(1, 2, 5, 10),
  overflow: fc.constantFrom('reject' as const, 'fill' as const, 'fair' as const),
  blockFor: fc.constantFrom(undefined, undefined, 'drain' as const, 400),
})

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never

/** The comparable parts of an answer. A slot may be later by the round trip above the grace, which is below the grid. */
function comparable(answer: Admission | Claim | undefined): unknown {
  if (answer === undefined) return undefined
  if ('granted' in answer) return answer.granted ? Math.round((answer.slot.token as number) / GRID) : 'busy'
  const { levels } = answer
  const common = { admitted: answer.admitted, levels: levels.map(round) }
  if (answer.admitted) return { ...common, claim: comparable(answer.claim) }
  const { reason, refusing, retryAfterMs } = answer
  return { ...common, reason, refusing, retryAfterMs: retryAfterMs === undefined ? undefined : round(retryAfterMs) }
}

const round = (number: number): number => Math.round(number * 1e6) / 1e6 + 0

/** @param create makes a client of a server whose clock stands still at the time of `setTime`, in ms; called once */
export function modelled(
  name: string,
  create: () => Promise<{ store: Store; setTime(ms: number): Promise<unknown>; close(): Promise<void> }>,
): void {
  t.test(`${name} decides as memory does`, async t => {
    const { store, setTime, close } = await create()
    t.teardown(close)
    let runs = 0

    async function play(allLimits: (typeof limits extends fc.Arbitrary<infer L> ? L : never)[], steps: Step[]) {
      let now = 1_000_000
      runs += 1
      const model: Store = createMemoryStore({ clock: { ...clock, now: () => now } })
      const refs = allLimits.map(({ blockFor, ...rest }, index): BucketRef => {
        const block = blockFor === undefined ? {} : { blockFor }
        return { limits: { name: `b${index}`, ...rest, ...block }, key: `run ${runs}`, group: '' }
      })
      let last: { slots: Slot[]; stack: BucketRef[]; cost: number } | undefined
      for (const [index, { gap, verb, stack: places, cost, maxWait, claim }] of steps.entries()) {
        now += gap * GRID
        await setTime(now)
        const stack = places.map(place => refs[place]!)
        if (verb === 'reset') {
          for (const one of [store, model]) await one.reset(stack[0]!)
          continue
        }
        if (verb === 'giveBack') {
          for (const [which, one] of [store, model].entries()) {
            const slot = last === undefined ? {} : { slot: last.slots[which]!, slotCost: last.cost }
            await one.giveBack({ stack: last?.stack ?? stack, cost: claim ? cost : 0, ...slot })
          }
          last = undefined
          continue
        }
        const ask = async (one: Store) =>
          verb === 'claim' ? one.claim({ stack, cost, since: 0 }) : one.admit({ stack, cost, maxWait, claim })
        const answers = [await ask(store), await ask(model)] as const
        const [got, wanted] = answers.map(answer => JSON.stringify(comparable(answer)))
        if (got !== wanted) throw new Error(`step ${index}: ${got}, wanted ${wanted}`)
        const slots = answers.flatMap(answer => {
          const claimed = 'granted' in answer ? answer : answer.admitted ? answer.claim : undefined
          return claimed?.granted ? [claimed.slot] : []
        })
        if (slots.length === 2) last = { slots, stack, cost }
      }
    }

    const property = fc.asyncProperty(
      fc.array(limits, { minLength: 3, maxLength: 3 }),
      fc.array(step, { maxLength: 40, size: 'max' }),
      play,
    )
    await fc.assert(property, { numRuns: 60 })
  })
}
