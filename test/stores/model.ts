/** A store decides as the memory store does: any verbs in any order, with rates that change and clocks that go back. */

import { performance } from 'node:perf_hooks'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { QUOTA_RATE } from '../../src/config/derived/default-capacity.js'
import type { Clock } from '../../src/core/clock.js'
import { FORECAST, FRAME } from '../../src/decider/constants.js'
import type { AppointmentAnswer, BucketRef, LeaseAnswer, LeasedSlot } from '../../src/decider/record.js'
import {
  type Admission,
  type ClaimAnswer,
  HORIZON,
  longestBackDate,
  type Slot,
  type Store,
} from '../../src/sharing/store.js'
import type { Reach } from '../../src/stores/decided.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { RoundTrip } from '../../src/stores/timing.js'
import { often, runs } from '../runs.js'
import { clock } from './conformance.js'

/**
 * The clock of the store under test. No time passes, so no answer is slow: a slow one has slots granted ahead, which a model
 * cannot know.
 */
export const standing: Clock = { now: () => 0, at: (due, run) => clock.at(performance.now() + due, run) }

/** Slots of two stores are the same when they are this close, in ms. */
const SAME = 2 ** -10

/** ms. A run that takes longer proves nothing: a server may forget what it would keep for the time of the model. */
const LONGEST = 900

const cost = fc.constantFrom(0.5, 1, 1, 1, 2, 3)
const stack = fc.constantFrom([0], [1], [2], [0, 1], [1, 2], [2, 0], [0, 1, 2])
const INSTANCES = [0.25, 0.5, 0.75]

const demand = fc
  .uniqueArray(
    fc.record({
      priority: fc.constantFrom(0, 3, 3, 4, 7, FORECAST, FORECAST),
      weight: fc.constantFrom(1, 1, 2, 4),
      cost: fc.constantFrom(0, 0.5, 1, 2, 5, 40),
      /** Only of a forecast: its instance could do without. */
      isCalm: fc.boolean(),
    }),
    { maxLength: 3, selector: ({ priority }) => priority },
  )
  .map(classes =>
    classes.map(({ isCalm, weight, ...rest }) => ({
      ...rest,
      weight: isCalm && rest.priority === FORECAST ? 0 : weight,
    })),
  )

/**
 * All times are multiples of a unit, or of its small binary fractions where a rate has changed. As a power of two it makes all
 * sums exact.
 *
 * @param unit ms
 */
function scaled(unit: number) {
  /** Cost units per ms. */
  const rate = fc.constantFrom(1 / 16, 2, 4, 8, 16).map(units => 1 / (units * unit))
  const step = fc.record({
    gap: fc.constantFrom(0, 0, 0, 1, 2, 4, 10, 15, 40, 1_000, -40).map(units => units * unit),
    verb: fc.constantFrom(
      ...Array<'admit' | 'claim' | 'lease'>(4).fill('admit'),
      ...Array<'claim'>(4).fill('claim'),
      ...Array<'lease'>(6).fill('lease'),
      'giveBack' as const,
      'settle' as const,
      'settle' as const,
      'rate' as const,
      'reset' as const,
      ...Array<'appoint'>(4).fill('appoint'),
    ),
    stack,
    cost,
    /** The cost in each bucket of the stack, where it differs. */
    owns: fc.constantFrom(undefined, undefined, [1, 0, 2], [0.5, 3, 1]),
    rate,
    maxWait: fc.constantFrom(Infinity, Infinity, 0, 4 * unit, 10 * unit),
    claim: fc.boolean(),
    since: fc.constantFrom(0, 0, 1, 100, 3 * unit),
    /** ms from the time of the step. */
    notBefore: fc.constantFrom(undefined, undefined, -unit, 1, HORIZON.least, HORIZON.least + 1),
    /** Only where there is a `notBefore`. */
    within: fc.constantFrom(undefined, undefined, 0, 1, unit, 4 * unit),
    own: fc.constantFrom(undefined, undefined, 1, 2),
    ahead: fc.constantFrom(undefined, undefined, 4 * unit, 15 * unit + 1),
    instance: fc.constantFrom(0, 1, 2),
    demand,
    /** No answer takes days. */
    lead: fc.constantFrom(0, 0.5, 1, 5, 25).map(units => units * Math.min(8, unit)),
    late: fc.constantFrom(0, 0, 0.5, 2, 20).map(units => units * Math.min(8, unit)),
    known: fc.constantFrom(0, 0, 0, 1, 30).map(units => units * Math.min(8, unit)),
    pace: fc.constantFrom(0, 0, 1, 8, 32).map(units => 1 / (units * unit)),
    held: fc.constantFrom(0, 0, 1, 3, -1),
    drained: fc.constantFrom(0, 0, 1),
    kept: fc.constantFrom(0, 0, 1, 2.5),
    lacks: fc.constantFrom(0, 0, 1, 3, 9, -2),
    want: fc.constantFrom(-1, 0, 1, 4, 20),
    returns: fc.constantFrom(0, 0, 1, 3, 100),
    client: fc.constantFrom(1, 1, 1, 2, 3, 4, 2 ** 52 - 1),
    books: fc.constantFrom(true, true, false),
    fit: fc.constantFrom(0, 0, unit, 40 * unit),
    more: fc.constantFrom(0, 0, 1, 2.5, 100),
    /** An admission claims what its client has booked. */
    redeems: fc.constantFrom(true, true, false),
  })
  const limits = fc.record({
    rate,
    capacity: fc.constantFrom<number>(1, 2, 5, 10),
    burst: fc.constantFrom(undefined, undefined, 0.5, 2, 3, 8),
    minShare: fc.constantFrom(undefined, 0, 0.25),
    overflow: fc.constantFrom('reject' as const, 'fill' as const, 'fair' as const),
    blockFor: fc.constantFrom(undefined, undefined, 'drain' as const, 16 * unit),
    isQuota: fc.constantFrom(false, false, false, true),
  })
  /** Of a bucket in which clients can book. */
  const bookable = limits.map(({ blockFor: _, overflow, ...rest }) => ({
    ...{ ...rest, capacity: 2 * Math.max(5, rest.capacity), blockFor: undefined, isQuota: false },
    overflow: overflow === 'fill' ? ('reject' as const) : overflow,
  }))
  return { step, limits, bookable }
}

/** The number of a period counts its end. */
function quotaRef(name: string, key: string, capacity: number, period: number): BucketRef {
  const quota = { from: 0, until: 2 ** 45, end: Date.UTC(2026, 0, 1) + 3_600_000 * period }
  return { limits: { name, rate: QUOTA_RATE, capacity, quota }, key, group: '' }
}

type Step = ReturnType<typeof scaled>['step'] extends fc.Arbitrary<infer S> ? S : never
type Limits = ReturnType<typeof scaled>['limits'] extends fc.Arbitrary<infer L> ? L : never

function differ(what: string, one: unknown, other: unknown, by = 1e-5): string | undefined {
  return one === other || (typeof one === 'number' && typeof other === 'number' && Math.abs(one - other) <= by)
    ? undefined
    : `${what} ${one}, wanted ${other}`
}

/** Undefined: the answers are the same. */
function difference(got: Admission | ClaimAnswer, wanted: Admission | ClaimAnswer): string | undefined {
  if ('granted' in got) {
    const claim = wanted as ClaimAnswer
    if (!got.granted || !claim.granted) return differ('granted', got.granted, claim.granted)
    const [one, other] = [got.slot.token as number, claim.slot.token as number]
    if (Math.abs(one - other) > SAME) return `slot ${one}, wanted ${other}`
    const [ahead, wantedAhead] = [got, claim].map(({ slot }) => slot.at - slot.from) as [number, number]
    return Math.abs(ahead - wantedAhead) <= SAME ? undefined : `to be used ${ahead} ms ahead, wanted ${wantedAhead}`
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
      differ('retryAfterMs', got.retryAfterMs, admission.retryAfterMs, SAME),
    )
  }
  return common.find(text => text !== undefined)
}

/** The times of a lease from when it was decided: two stores have different clocks. Slots are known by their tokens. */
function leaseDifference(got: LeaseAnswer, wanted: LeaseAnswer): string | undefined {
  const times = ({ nextAt, until, roomFrom, roomUntil }: LeaseAnswer) => ({
    nextAt: nextAt - roomFrom,
    until: Math.max(0, until - roomFrom),
    roomUntil: roomUntil - roomFrom,
  })
  const [one, other] = [got, wanted].map(answer => ({ ...answer, ...times(answer) })) as [LeaseAnswer, LeaseAnswer]
  for (const name of ['nextAt', 'until', 'roomUntil'] as const) {
    if (Math.abs(one[name] - other[name]) > SAME) return differ(name, one[name], other[name])
  }
  for (const name of ['room', 'roomRate', 'spare', 'level', 'instances', 'lateBy'] as const) {
    const text = differ(name, one[name], other[name])
    if (text !== undefined) return text
  }
  if (got.slots.length !== wanted.slots.length) return differ('slots', got.slots.length, wanted.slots.length)
  for (const [place, slot] of got.slots.entries()) {
    const model = wanted.slots[place]!
    const late = (slot.token as number) - (model.token as number)
    if (Math.abs(late) > SAME) return `slot ${place} is ${late} ms late`
    if (Math.abs(slot.at - got.roomFrom - (model.at - wanted.roomFrom)) > SAME) return `slot ${place} at ${slot.at}`
    const text = differ(`cost of slot ${place}`, slot.cost, model.cost)
    if (text !== undefined) return text
  }
  const classes = ({ others }: LeaseAnswer): string => others.map(({ priority }) => priority).join()
  if (classes(got) !== classes(wanted)) return differ('classes of others', classes(got), classes(wanted))
  for (const [place, { weight, cost }] of got.others.entries()) {
    const model = wanted.others[place]!
    const text = differ('weight of others', weight, model.weight) ?? differ('cost of others', cost, model.cost)
    if (text !== undefined) return text
  }
  return undefined
}

function promiseDifference(got: AppointmentAnswer, wanted: AppointmentAnswer): string | undefined {
  for (const name of ['after', 'more', 'booking', 'window', 'made'] as const) {
    const text = differ(name, got[name], wanted[name])
    if (text !== undefined) return text
  }
  return undefined
}

function redemptionOf(answer: Admission | ClaimAnswer): ClaimAnswer | undefined {
  if ('granted' in answer) return answer
  return answer.admitted ? answer.claim : undefined
}

function slotsOf(answers: readonly (Admission | ClaimAnswer)[]): Slot[] {
  return answers.flatMap(answer => {
    const claim = redemptionOf(answer)
    return claim?.granted ? [claim.slot] : []
  })
}

const NO_BOOKING = { booking: 0, cost: 0, at: 0 }

/**
 * @param create makes a client of a server whose clock stands still at the time of `setTime`, in ms. The client has the clock
 * `standing`. Called once.
 */
export function modelled(
  name: string,
  create: () => Promise<{ store: Store; setTime(ms: number): Promise<unknown>; close(): Promise<void> }>,
): void {
  t.test(`property: ${name} decides as memory does`, async t => {
    const { store, setTime, close } = await create()
    t.teardown(close)
    let played = 0
    // In steps of three days nothing that lasts for a frame matters, and numbers are large. In steps of 8 ms frames matter.
    for (const unit of [2 ** 28, 8]) {
      await t.test(`in steps of ${unit} ms`, t =>
        compare(t, unit, { horizon: HORIZON.least, back: longestBackDate(0) }),
      )
    }
    await t.test('as if its answers took long', t => compare(t, 8, { horizon: 75, back: -26 }))

    async function compare(t: Test, unit: number, reach: Reach): Promise<void> {
      // Nor does a lease begin later, as where an answer takes two round trips.
      for (const [name, value] of Object.entries({ ...reach, usual: 0 }))
        t.intercept(RoundTrip.prototype, name as keyof Reach | 'usual', { value })
      /** Answers that show what a step was for. */
      const seen = {
        ahead: 0,
        since: 0,
        refused: 0,
        granted: 0,
        together: 0,
        mixed: 0,
        settledUp: 0,
        settledDown: 0,
        early: 0,
        rates: 0,
        resets: 0,
        leases: 0,
        leased: 0,
        returned: 0,
        spare: 0,
        shared: 0,
        rooms: 0,
        paced: 0,
        forecasts: 0,
        forecastsAlone: 0,
        within: 0,
        inTurn: 0,
        notInTurn: 0,
        promised: 0,
        booked: 0,
        toldAgain: 0,
        promisedNoMore: 0,
        promisedMore: 0,
        redeemed: 0,
        periods: 0,
        counted: 0,
      }
      let proven = 0

      async function play(allLimits: Limits[], steps: Step[]) {
        const begun = performance.now()
        try {
          await playOnce(allLimits, steps)
        } catch (error) {
          if (unit * HORIZON.least > LONGEST || performance.now() - begun < LONGEST) throw error
          return
        }
        proven += 1
      }

      async function playOnce(allLimits: Limits[], steps: Step[]) {
        // Later than any step may go back to: clocks of servers are not negative.
        let now = 2 ** 12 * unit
        played += 1
        const model: Store = createMemoryStore({ clock: { ...clock, now: () => now }, reach })
        const stores = [store, model] as const
        const refs = allLimits.map(({ blockFor, burst, minShare, isQuota, ...rest }, index): BucketRef => {
          if (isQuota) return quotaRef(`b${index}`, `run ${played}`, rest.capacity, 0)
          const block = blockFor === undefined ? {} : { blockFor }
          const bursts = burst === undefined ? {} : { burst }
          const shares = minShare === undefined ? {} : { minShare }
          return {
            limits: { name: `b${index}`, ...rest, ...block, ...bursts, ...shares },
            key: `run ${played}`,
            group: '',
          }
        })
        let granted = -1
        let last: { slots: Slot[]; stack: BucketRef[]; cost: number } | undefined
        /** The slots that an instance has of a bucket in each store. */
        const owned = new Map<string, [LeasedSlot[], LeasedSlot[]]>()
        /** Until when buckets are leased, by name. */
        const leasedUntil = new Map<string, number>()
        /** What clients have booked. */
        const bookings = new Map<number, { booking: number; cost: number; at: number }>()
        let serial = 0
        let periods = 0
        for (const [index, each] of steps.entries()) {
          const {
            gap,
            verb,
            stack: places,
            cost,
            owns,
            rate,
            maxWait,
            claim,
            since,
            ahead = 0,
            notBefore,
            within,
            own,
          } = each
          now += gap
          await setTime(now)
          // The client learns of it.
          await store.beat('model')
          const withOwn = (ref: BucketRef, at: number, sign = 1): BucketRef =>
            owns === undefined || verb === 'lease' ? ref : { ...ref, cost: sign * owns[at]! }
          const stack = places.map((place, at) => withOwn(refs[place]!, at))
          if (verb === 'rate') {
            const changed = places[0]!
            const { quota, name, capacity } = refs[changed]!.limits
            if (quota !== undefined) {
              periods += 1
              refs[changed] = quotaRef(name, `run ${played}`, capacity, periods)
              seen.periods += 1
              continue
            }
            refs[changed] = { ...refs[changed]!, limits: { ...refs[changed]!.limits, rate } }
            seen.rates += 1
            // As a reload tells it where requests wait, or not.
            if (claim) for (const one of stores) await one.giveBack({ stack: [refs[changed]!], cost: 0 })
            continue
          }
          if (verb === 'reset') {
            seen.resets += 1
            for (const one of stores) await one.reset(stack[0]!)
            continue
          }
          if (verb === 'settle') {
            const settled = places.map((place, at) => withOwn(refs[place]!, at, claim ? 1 : -1))
            const [got, wanted] = [
              await store.settle!({ stack: settled, cost: claim ? cost : -cost }),
              await model.settle!({ stack: settled, cost: claim ? cost : -cost }),
            ]
            if (got.some((change, at) => Math.abs(change - wanted[at]!) > SAME))
              throw new Error(`step ${index}: ${got} settled, not ${wanted}`)
            seen[claim ? 'settledUp' : 'settledDown'] += 1
            continue
          }
          if (verb === 'giveBack') {
            for (const [which, one] of stores.entries()) {
              const slot = last === undefined ? {} : { slot: last.slots[which]!, slotCost: last.cost }
              // With the rates of now: that is how it is asked.
              const given =
                last?.stack.map(({ limits, cost: own }) => {
                  const ref = refs.find(({ limits: { name } }) => name === limits.name)!
                  return own === undefined ? ref : { ...ref, cost: own }
                }) ?? stack
              await one.giveBack({ stack: given, cost: claim ? cost : 0, ...slot, own: each.own ?? 0 })
            }
            last = undefined
            continue
          }
          // Instances neither lease a quota nor promise for it.
          const isOfQuota = refs[verb === 'appoint' && each.books ? 2 : places[0]!]!.limits.quota !== undefined
          if (isOfQuota && (verb === 'appoint' || verb === 'lease')) continue
          if (verb === 'appoint') {
            const { client, books, fit, more } = each
            // Clients often ask again for what they have booked.
            const cost = books ? Math.min(1, each.cost) : each.cost
            serial += 1
            const request = {
              bucket: refs[books ? 2 : places[0]!]!,
              cost,
              more: books ? 0 : more,
              client,
              booking: books ? serial : 0,
              maxWait,
              fit,
            }
            const [got, wanted] = [await store.appoint!(request), await model.appoint!(request)]
            const problem = promiseDifference(got, wanted)
            if (problem !== undefined) throw new Error(`step ${index}: ${problem}`)
            seen.promised += 1
            if (wanted.more > 0) seen.promisedMore += 1
            if (wanted.booking === serial) seen.booked += 1
            else if (wanted.booking !== 0) seen.toldAgain += 1
            if (!wanted.made) seen.promisedNoMore += 1
            if (wanted.booking !== 0) bookings.set(client, { booking: wanted.booking, cost, at: now + wanted.after })
            continue
          }
          const { booking, cost: bookedCost, at: bookedAt } = bookings.get(each.client) ?? NO_BOOKING
          if (verb === 'admit' && each.redeems && booking > 0) {
            // Mostly in time, but not at its moment: servers round moments, and what is kept for others changes there.
            if (claim && bookedAt > now) now = bookedAt + 0.25
            await setTime(now)
            await store.beat('model')
            const request = {
              ...{
                stack: [...new Set([...places, 2])].map(place => refs[place]!),
                cost: bookedCost,
                maxWait,
                claim: false,
              },
              booked: { place: [...new Set([...places, 2])].indexOf(2), client: each.client, booking },
            }
            const [got, wanted] = [await store.admit(request), await model.admit(request)]
            const problem = difference(got, wanted)
            if (problem !== undefined) throw new Error(`step ${index}: ${problem}`)
            if (wanted.admitted) seen.redeemed += 1
            continue
          }
          if (verb === 'lease') {
            const { instance, demand, lead, late, pace, known, lacks, held, drained, kept, want, returns } = each
            const owner = `${places[0]} ${instance}`
            const slots = owned.get(owner) ?? [[], []]
            const answers: LeaseAnswer[] = []
            for (const [which, one] of stores.entries()) {
              const mine = slots[which]!
              const returned = mine.splice(Math.max(0, mine.length - returns))
              const request = { bucket: stack[0]!, instance: INSTANCES[instance]!, demand, largest: cost }
              const room = { held, drained, kept, want }
              answers.push(await one.lease!({ ...request, ...room, lead, late, pace, lacks, ahead: known, returned }))
              if (which === 1 && returned.length > 0) seen.returned += 1
            }
            const [got, wanted] = answers as [LeaseAnswer, LeaseAnswer]
            const problem = leaseDifference(got, wanted)
            if (problem !== undefined) throw new Error(`step ${index}: ${problem}`)
            for (const [which, { slots: more }] of answers.entries()) slots[which]!.push(...more)
            owned.set(owner, slots)
            seen.leases += 1
            if (wanted.slots.length > 0) seen.leased += 1
            if (wanted.instances > 1) seen.shared += 1
            if (wanted.room > 0 && wanted.spare > 0) seen.rooms += 1
            if (wanted.slots.some(({ at }) => at < wanted.until - (2 * cost) / stack[0]!.limits.rate)) seen.spare += 1
            if (pace < stack[0]!.limits.rate && wanted.slots.length > 1) seen.paced += 1
            const isForecast = demand.some(({ priority, cost }) => priority === FORECAST && cost > 0)
            if (isForecast && wanted.slots.length > 0) seen.forecasts += 1
            if (isForecast && wanted.slots.length > 0 && demand.length === 1) seen.forecastsAlone += 1
            const { name } = stack[0]!.limits
            if (wanted.instances === 0) leasedUntil.delete(name)
            else leasedUntil.set(name, Math.max(leasedUntil.get(name) ?? 0, wanted.roomUntil))
            continue
          }
          const ask = async (one: Store) => {
            if (verb === 'admit') return one.admit({ stack, cost, maxWait, claim, ahead })
            const theirs = one === model ? now : standing.now()
            return one.claim({
              stack,
              cost,
              since,
              ahead,
              ...(notBefore !== undefined && { notBefore: theirs + notBefore }),
              ...(notBefore !== undefined && within !== undefined && { within }),
              ...(own !== undefined && { own }),
            })
          }
          const answers = [await ask(store), await ask(model)] as const
          const problem = difference(...answers)
          if (problem !== undefined) throw new Error(`step ${index}: ${problem}`)
          const isCounted = 'admitted' in answers[1] && !answers[1].admitted && answers[1].reason === 'overflow'
          if (isCounted && stack.some(({ limits }) => limits.quota !== undefined)) seen.counted += 1
          const slots = slotsOf(answers)
          if (verb === 'claim' && slots.length === 0) seen.refused += 1
          const isLeased = stack.some(({ limits }) => (leasedUntil.get(limits.name) ?? 0) > now)
          const claimed = redemptionOf(answers[1])
          if (claimed?.granted && isLeased) seen.inTurn += 1
          if (claimed?.granted === false && claimed.freeAt.every(at => at <= now + reach.horizon)) {
            if (isLeased) seen.notInTurn += 1
            else if (verb === 'claim' && notBefore !== undefined && within !== undefined) seen.within += 1
          }
          if (slots.length < 2) continue
          seen.granted += 1
          if (owns !== undefined && stack.length > 1) seen.mixed += 1
          if (granted === now && stack.every(({ limits }) => limits.burst !== undefined)) seen.together += 1
          granted = now
          if ((slots[1]!.token as number) > now) seen.ahead += 1
          if (verb === 'claim' && since > 0) seen.since += 1
          if (slots[1]!.from < slots[1]!.at) seen.early += 1
          last = { slots, stack, cost }
        }
      }

      const { step, limits, bookable } = scaled(unit)
      const property = fc.asyncProperty(
        fc.tuple(limits, limits, bookable),
        fc.array(step, { maxLength: 40, size: 'max' }),
        play,
      )
      // Near slots are not ahead of what is free.
      if (reach.back >= 0) seen.early += 5
      // In a step of days leases end, and a frame has one slot.
      if (unit > FRAME) for (const kind of ['notInTurn', 'paced'] as const) seen[kind] += 5
      const isSeen = () => Object.values(seen).every(count => count >= 5)
      const areFew = runs(150) < 150
      // What is rare comes in one of some rounds, and hardly in few runs.
      for (let round = 1; round === 1 || (round <= 10 && !areFew && !isSeen()); round++)
        await fc.assert(property, { numRuns: runs(150) })
      t.ok(proven > often(75), `${proven} runs were quick enough`)
      t.ok(areFew || isSeen(), `each kind of answer was seen: ${JSON.stringify(seen)}`)
    }
  })
}
