/** A store decides as the memory store does: any verbs in any order, with rates that change and clocks that go back. */
import fc from 'fast-check'
import t from 'tap'
import type { Admission, BucketRef, ClaimAnswer, Slot, Store } from '../../src/core/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { clock } from './conformance.js'

/**
 * ms, some three days. All times are multiples of it, or of its small binary fractions where a rate has changed. Stores differ
 * in what follows from the measured way to them: how far ahead and how far back a slot may lie. That is some ms, so nothing
 * against this. As a power of two it makes all sums exact.
 */
const GRID = 2 ** 28

/** Slots of two stores are the same when they are this close, in ms. */
const SAME = GRID / 2 ** 8

const cost = fc.constantFrom(0.5, 1, 1, 1, 2, 3)
const stack = fc.constantFrom([0], [1], [2], [0, 1], [1, 2], [2, 0], [0, 1, 2])
/** Cost units per ms. */
const rate = fc.constantFrom(2, 4, 8, 16).map(grids => 1 / (grids * GRID))
const step = fc.record({
  gap: fc.constantFrom(0, 0, 0, 1, 2, 4, 10, 40, 1_000, -40),
  verb: fc.constantFrom('admit', 'admit', 'admit', 'claim', 'claim', 'claim', 'giveBack', 'rate', 'reset'),
  stack,
  cost,
  rate,
  maxWait: fc.constantFrom(Infinity, Infinity, 0, 4 * GRID, 10 * GRID),
  claim: fc.boolean(),
  since: fc.constantFrom(0, 0, 1, 100, 3 * GRID),
  ahead: fc.constantFrom(undefined, 0, GRID + 1, 3 * GRID + 1, 9 * GRID + 1),
})
const limits = fc.record({
  rate,
  capacity: fc.constantFrom(1, 2, 5, 10),
  burst: fc.constantFrom(undefined, undefined, 0.5, 2, 3, 8),
  overflow: fc.constantFrom('reject' as const, 'fill' as const, 'fair' as const),
  blockFor: fc.constantFrom(undefined, undefined, 'drain' as const, 16 * GRID),
})

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never
type Limits = typeof limits extends fc.Arbitrary<infer L> ? L : never

/** Undefined: the answers are the same. */
function difference(got: Admission | ClaimAnswer, wanted: Admission | ClaimAnswer): string | undefined {
  const differ = (what: string, one: unknown, other: unknown): string | undefined =>
    one === other || (typeof one === 'number' && typeof other === 'number' && Math.abs(one - other) <= 1e-6)
      ? undefined
      : `${what} ${one}, wanted ${other}`
  if ('granted' in got) {
    const claim = wanted as ClaimAnswer
    if (!got.granted || !claim.granted) return differ('granted', got.granted, claim.granted)
    const [one, other] = [got.slot.token as number, claim.slot.token as number]
    return Math.abs(one - other) <= SAME ? undefined : `slot ${one}, wanted ${other}`
  }
  const admission = wanted as Admission
  const common = [
    differ('admitted', got.admitted, admission.admitted),
    ...got.levels.map((level, place) => differ('level', level, admission.levels[place])),
  ]
  if (got.admitted && admission.admitted) {
    if (got.claim !== undefined && admission.claim !== undefined) common.push(difference(got.claim, admission.claim))
    else common.push(differ('claim', got.claim, admission.claim))
  }
  if (!got.admitted && !admission.admitted) {
    common.push(
      differ('reason', got.reason, admission.reason),
      differ('refusing', `${got.refusing}`, `${admission.refusing}`),
      differ('retryAfterMs', got.retryAfterMs, admission.retryAfterMs),
    )
  }
  return common.find(text => text !== undefined)
}

function slotsOf(answers: readonly (Admission | ClaimAnswer)[]): Slot[] {
  return answers.flatMap(answer => {
    const claim = 'granted' in answer ? answer : answer.admitted ? answer.claim : undefined
    return claim?.granted ? [claim.slot] : []
  })
}

/** @param create makes a client of a server whose clock stands still at the time of `setTime`, in ms; called once */
export function modelled(
  name: string,
  create: () => Promise<{ store: Store; setTime(ms: number): Promise<unknown>; close(): Promise<void> }>,
): void {
  t.test(`${name} decides as memory does`, async t => {
    const { store, setTime, close } = await create()
    t.teardown(close)
    let runs = 0
    /** Answers that show what a step was for. */
    const seen = { ahead: 0, since: 0, refused: 0, granted: 0, together: 0, rates: 0, resets: 0 }

    async function play(allLimits: Limits[], steps: Step[]) {
      // Later than any step may go back to: clocks of servers are not negative.
      let now = 2 ** 12 * GRID
      runs += 1
      const model: Store = createMemoryStore({ clock: { ...clock, now: () => now } })
      const refs = allLimits.map(({ blockFor, burst, ...rest }, index): BucketRef => {
        const block = blockFor === undefined ? {} : { blockFor }
        const bursts = burst === undefined ? {} : { burst }
        return { limits: { name: `b${index}`, ...rest, ...block, ...bursts }, key: `run ${runs}`, group: '' }
      })
      let granted = -1
      let last: { slots: Slot[]; stack: BucketRef[]; cost: number } | undefined
      for (const [index, { gap, verb, stack: places, cost, rate, maxWait, claim, since, ahead }] of steps.entries()) {
        now += gap * GRID
        await setTime(now)
        const stack = places.map(place => refs[place]!)
        if (verb === 'rate') {
          const changed = places[0]!
          refs[changed] = { ...refs[changed]!, limits: { ...refs[changed]!.limits, rate } }
          seen.rates += 1
          // As a reload tells it where requests wait, or not.
          if (claim) for (const one of [store, model]) await one.giveBack({ stack: [refs[changed]!], cost: 0 })
          continue
        }
        if (verb === 'reset') {
          seen.resets += 1
          for (const one of [store, model]) await one.reset(stack[0]!)
          continue
        }
        if (verb === 'giveBack') {
          for (const [which, one] of [store, model].entries()) {
            const slot = last === undefined ? {} : { slot: last.slots[which]!, slotCost: last.cost }
            // With the rates of now: that is how it is asked.
            const given = last?.stack.map(({ limits }) => refs.find(ref => ref.limits.name === limits.name)!) ?? stack
            await one.giveBack({ stack: given, cost: claim ? cost : 0, ...slot })
          }
          last = undefined
          continue
        }
        const ask = async (one: Store) =>
          verb === 'claim'
            ? one.claim({ stack, cost, since, ...(ahead !== undefined && { ahead }) })
            : one.admit({ stack, cost, maxWait, claim })
        const answers = [await ask(store), await ask(model)] as const
        const problem = difference(...answers)
        if (problem !== undefined) throw new Error(`step ${index}: ${problem}`)
        const slots = slotsOf(answers)
        if (verb === 'claim' && slots.length === 0) seen.refused += 1
        if (slots.length < 2) continue
        seen.granted += 1
        if (granted === now && stack.every(({ limits }) => limits.burst !== undefined)) seen.together += 1
        granted = now
        if ((slots[1]!.token as number) > now + SAME) seen.ahead += 1
        if (verb === 'claim' && since > 0) seen.since += 1
        last = { slots, stack, cost }
      }
    }

    const property = fc.asyncProperty(
      fc.array(limits, { minLength: 3, maxLength: 3 }),
      fc.array(step, { maxLength: 40, size: 'max' }),
      play,
    )
    await fc.assert(property, { numRuns: 150 })
    t.ok(
      Object.values(seen).every(count => count >= 5),
      `each kind of answer was seen: ${JSON.stringify(seen)}`,
    )
  })
}
