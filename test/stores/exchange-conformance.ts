/** Rules for every store about the states of upstreams that instances exchange. */

import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { createVirtualClock } from '../../src/core/clock.js'
import type { UpstreamState } from '../../src/sharing/board.js'
import type { Store } from '../../src/sharing/store.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { runs } from '../runs.js'

const HOUR = 3_600_000
const DAY = 24 * HOUR

/** How far two clocks of one machine may drift apart in a test, in ms. */
const DRIFT = 1

/** The first time of a clock that tests set, in ms. */
const START = 10 * HOUR

const pause = (pausedFor: number): UpstreamState => ({ pausedFor, rate: undefined, rateFor: 0 })
const allows = (rate: number, rateFor: number, pausedFor = 0): UpstreamState => ({ pausedFor, rate, rateFor })
const NOTHING = pause(0)

/** A step: after `gap` ms a state is sent, or only asked for, with the expected answer. */
type Step = [gap: number, upstream: string, news: UpstreamState | undefined, wanted: UpstreamState]

const STEPS: Record<string, Step[]> = {
  'of two pauses the later end holds': [
    [0, 'a', undefined, NOTHING],
    [0, 'a', pause(10_000), pause(10_000)],
    [4_000, 'a', undefined, pause(6_000)],
    [0, 'a', pause(3_000), pause(6_000)],
    [0, 'a', pause(20_000), pause(20_000)],
    [5_000, 'a', pause(15_000), pause(15_000)],
    [0, 'b', undefined, NOTHING],
    [14_999, 'a', undefined, pause(1)],
    [1, 'a', undefined, NOTHING],
    [0, 'a', pause(5_000), pause(5_000)],
  ],
  'the newest rate replaces the older one, with its life': [
    [0, 'a', allows(0.5, 60_000), allows(0.5, 60_000)],
    [10_000, 'a', pause(2_000), allows(0.5, 50_000, 2_000)],
    [0, 'a', NOTHING, allows(0.5, 50_000, 2_000)],
    [0, 'a', allows(2, 8_000), allows(2, 8_000, 2_000)],
    [2_000, 'a', undefined, allows(2, 6_000)],
    [0, 'b', allows(7, 1_000), allows(7, 1_000)],
    [5_999, 'a', undefined, allows(2, 1)],
    [1, 'a', undefined, NOTHING],
    [0, 'a', allows(0.25, 9_000, 3_000), allows(0.25, 9_000, 3_000)],
    [0, 'a', allows(1, 0), pause(3_000)],
    [0, 'a', allows(3, 1_000), allows(3, 1_000, 3_000)],
    [1_000, 'a', undefined, pause(2_000)],
  ],
  'a clock that goes back is as if no time had passed': [
    [0, 'a', allows(1, 20_000, 10_000), allows(1, 20_000, 10_000)],
    [4_000, 'a', undefined, allows(1, 16_000, 6_000)],
    [-HOUR, 'a', undefined, allows(1, 16_000, 6_000)],
    [1_000, 'a', undefined, allows(1, 15_000, 5_000)],
    [-HOUR, 'a', pause(5_500), allows(1, 15_000, 5_500)],
    [5_500, 'a', undefined, allows(1, 9_500)],
    [-HOUR, 'a', undefined, allows(1, 9_500)],
    [9_500, 'a', undefined, NOTHING],
    [-HOUR, 'a', undefined, NOTHING],
    [0, 'a', pause(1_000), pause(1_000)],
  ],
  'one that goes forth is as if the time had passed': [
    [0, 'a', allows(1, HOUR / 2, HOUR / 6), allows(1, HOUR / 2, HOUR / 6)],
    [HOUR / 4, 'a', undefined, allows(1, HOUR / 4)],
    [HOUR, 'a', undefined, NOTHING],
    [-2 * HOUR, 'a', undefined, NOTHING],
  ],
  'what is absurd is bounded, or is no news': [
    [0, 'a', allows(5, Infinity, Infinity), allows(5, DAY, DAY)],
    [0, 'a', allows(NaN, NaN, NaN), allows(5, DAY, DAY)],
    [0, 'a', allows(6, NaN), allows(5, DAY, DAY)],
    [0, 'a', allows(-1, 1_000, -1), allows(5, DAY, DAY)],
    [0, 'a', allows(0, 1_000, -Infinity), allows(5, DAY, DAY)],
    [0, 'a', allows(Infinity, 1_000), allows(5, DAY, DAY)],
    [0, 'a', allows(1e300, 5_000), allows(1e9, 5_000, DAY)],
    [0, 'a', allows(5e-324, 5_000), allows(1e-9, 5_000, DAY)],
    [0, 'a', allows(4, -5_000), pause(DAY)],
    [DAY, 'a', undefined, NOTHING],
    [0, 'a', pause(1e300), pause(DAY)],
  ],
}

interface Settable {
  /** The instances take turns. */
  readonly stores: readonly Store[]
  setTime(ms: number): unknown
  close(): Promise<void>
}

/** Times are compared to the microsecond, because the clock of a store may have a distant origin. */
const rounded = ({ pausedFor, rate, rateFor }: UpstreamState): unknown => ({
  pausedFor: Math.round(pausedFor * 1_000) / 1_000,
  rate,
  rateFor: Math.round(rateFor * 1_000) / 1_000,
})

/** @param create makes clients of one server whose clock stands still at the time of `setTime`, in ms; called once */
export function exchangeConformance(name: string, create: () => Promise<Settable>): void {
  t.test(`${name}: the state of an upstream, at exact times`, async t => {
    const { stores, setTime, close } = await create()
    t.teardown(close)
    for (const [title, steps] of Object.entries(STEPS)) {
      await t.test(title, async t => {
        let now = START
        for (const [index, [gap, upstream, news, wanted]] of steps.entries()) {
          now += gap
          await setTime(now)
          const got = await stores[index % stores.length]!.exchange(`${title} ${upstream}`, news)
          t.strictSame(rounded(got), wanted, `step ${index}`)
        }
      })
    }
  })
}

const duration = fc.constantFrom(0, 5_000, 6_000.5, 20_000, HOUR, 2 * DAY, Infinity, NaN, -1)
const news = fc.record({
  pausedFor: duration,
  rate: fc.constantFrom(undefined, undefined, 0.001, 1, 1 / 3, 1e300, 0, NaN, -1),
  rateFor: duration,
})
const step = fc.record({
  gap: fc.constantFrom(0, 0, 1, 999.5, 5_000, 5_000, 20_000, HOUR, 2 * DAY, -1, -5_000, -HOUR),
  news: fc.option(news, { nil: undefined }),
  who: fc.nat(1),
})

/**
 * For any sequence of states of one upstream the answers are those of the memory store. With several upstreams the memory
 * store may notice that a state is over before its clock goes back, and another store may not.
 */
export function exchangeModelled(name: string, create: () => Promise<Settable>): void {
  t.test(`property: ${name} has the same state of an upstream as memory`, async t => {
    const { stores, setTime, close } = await create()
    t.teardown(close)
    let played = 0
    const property = fc.asyncProperty(fc.array(step, { maxLength: 30, size: 'max' }), async steps => {
      let now = START
      played += 1
      const model = createMemoryStore({ clock: { ...createVirtualClock(), now: () => now } })
      for (const [index, { gap, news, who }] of steps.entries()) {
        now += gap
        await setTime(now)
        const upstream = `run ${played}`
        const got = JSON.stringify(rounded(await stores[who % stores.length]!.exchange(upstream, news)))
        const wanted = JSON.stringify(rounded(model.exchange(upstream, news)))
        if (got !== wanted) throw new Error(`step ${index}: ${got}, wanted ${wanted}`)
      }
    })
    await fc.assert(property, { numRuns: runs(60) })
  })
}

/** An exchange, and our times before and after it. */
interface Exchange {
  readonly from: number
  readonly to: number
  readonly state: UpstreamState
}

async function exchange(store: Store, upstream: string, news?: UpstreamState): Promise<Exchange> {
  const from = performance.now()
  const state = await store.exchange(upstream, news)
  return { from, to: performance.now(), state }
}

/** A duration in ms that one exchange sent and a later one asked for. */
interface Passing {
  readonly duration: number
  readonly sent: Exchange
  readonly asked: Exchange
}

/** Checks what is left of a duration. Counted from the answer it does not end early. */
function expectLeft(t: Test, left: number, { duration, sent, asked }: Passing, what: string): void {
  const [least, most] = [sent.from + duration - asked.to - DRIFT, sent.to + duration - asked.from + DRIFT]
  t.ok(left >= least && left <= most && left <= duration + DRIFT, `${what}: ${left}, wanted ${least} to ${most}`)
}

/** In real time, with two instances of one store. */
export async function exchangesInRealTime(t: Test, store: Store, other: Store): Promise<void> {
  const name = `upstream of ${process.pid}`
  t.strictSame(await store.exchange(name), NOTHING, 'nothing is known')

  const sent = await exchange(store, name, allows(1 / 3, 2 * HOUR, HOUR))
  const seen = await exchange(other, name)
  expectLeft(t, seen.state.pausedFor, { duration: HOUR, sent, asked: seen }, 'the pause')
  t.equal(seen.state.rate, 1 / 3, 'to the last bit')
  expectLeft(t, seen.state.rateFor, { duration: 2 * HOUR, sent, asked: seen }, 'the life of the rate')

  const longer = await exchange(other, name, pause(2 * HOUR))
  await other.exchange(name, allows(5, 3 * HOUR, HOUR))
  const both = await exchange(store, name)
  expectLeft(t, both.state.pausedFor, { duration: 2 * HOUR, sent: longer, asked: both }, 'the later end')
  t.equal(both.state.rate, 5)

  const soon = `${name}, soon`
  const brief = await exchange(store, soon, allows(1, 150, 300))
  const polls = [brief]
  while (polls.at(-1)!.state.pausedFor > 0 && performance.now() < brief.to + 10_000) {
    await sleep(5)
    polls.push(await exchange(polls.length % 2 === 0 ? store : other, soon))
  }
  for (const poll of polls) {
    const passing = { duration: 300, sent: brief, asked: poll }
    if (poll.to < brief.from + 300) expectLeft(t, poll.state.pausedFor, passing, 'a pause')
    if (poll.to < brief.from + 149) t.equal(poll.state.rate, 1, 'a rate that holds')
    if (poll.from > brief.to + 151) t.equal(poll.state.rate, undefined, 'a rate that is over')
  }
  const over = polls.at(-1)!
  t.strictSame(over.state, NOTHING)
  t.ok(over.to >= brief.from + 300 - DRIFT, `over after ${over.to - brief.from} ms`)
  const before = polls.at(-2)!
  t.ok(before.from <= brief.to + 300 + DRIFT, `still paused after ${before.from - brief.to} ms`)

  const names = [
    '',
    ' ',
    'http://a:80',
    'http://a:80/',
    'a}b',
    '{a',
    '"a"',
    "a'b",
    'a\\',
    '%',
    '%7b',
    '*',
    'ä€😀',
    '\0',
  ]
  const all = [...names, '\ud800', '\udc00', 'k'.repeat(9_000), `${'k'.repeat(8_999)}l`, '%instances', 'beat:a']
  await Promise.all(all.map((text, index) => store.exchange(text, allows(index + 1, HOUR))))
  const rates = await Promise.all(all.map(async text => (await other.exchange(text)).rate))
  t.same(
    rates,
    [...all.keys()].map(index => index + 1),
    'different texts are different upstreams',
  )
}
