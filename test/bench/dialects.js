// @ts-check
/**
 * How APIs count, each dialect scaled so that 600 calls take half a minute to a minute, and what the calls cost. A simulator
 * (programs/simulator.js) refuses by these rules, and the ideal time follows from them.
 */
import { random } from './statistics.js'

/**
 * One rule of an API: how much more time a cost needs, and what it leaves behind. Times are in ms.
 *
 * @typedef {object} Rule
 * @property {(at: number, cost: number) => number} wait 0: the cost is accepted now
 * @property {(at: number, cost: number) => void} add
 *
 * @typedef {Record<string, number>} Costs by rule
 *
 * @typedef {object} Dialect
 * @property {string} title
 * @property {import('../../dist/index.js').ShaperOptions} told what shaper is told of it
 * @property {Record<string, () => Rule>} rules
 * @property {number} [even] calls per second of a client that spaces its calls evenly. Its time is the ideal then: what a
 *   window would also take in one piece is in the column beside it
 * @property {(calls: number) => Costs[]} costs
 */

/** The part of a rate that clients are told. */
export const MARGIN = 0.99

/** A bucket drains evenly. @param {number} capacity @param {number} rate per second @returns {() => Rule} */
const bucket = (capacity, rate) => () => {
  let level = 0
  let before = 0
  /** @param {number} at */
  const drained = at => Math.max(0, level - ((at - before) * rate) / 1_000)
  return {
    wait: (at, cost) => {
      const excess = drained(at) + cost - capacity
      return excess <= 1e-9 ? 0 : (excess / rate) * 1_000
    },
    add(at, cost) {
      level = drained(at) + cost
      before = at
    },
  }
}

/** At most so many in any window. @param {number} most @param {number} ms @returns {() => Rule} */
const sliding = (most, ms) => () => {
  /** @type {number[]} */
  const times = []
  return {
    wait: at => Math.max(0, (times.at(-most) ?? -Infinity) + ms - at),
    add: at => void times.push(at),
  }
}

/** At most so many in each window; the windows follow each other by the clock. @param {number} most @param {number} ms @returns {() => Rule} */
const fixed = (most, ms) => () => {
  let window = -1
  let count = 0
  return {
    wait: at => (Math.floor(at / ms) === window && count >= most ? (window + 1) * ms - at : 0),
    add(at) {
      count = Math.floor(at / ms) === window ? count + 1 : 1
      window = Math.floor(at / ms)
    },
  }
}

/** @param {number} calls */
const ones = calls => Array.from({ length: calls }, () => ({ requests: 1 }))

/**
 * A burst is told a little smaller than it is: calls that are sent at once come one after the other, and the last of them must not
 * be later than the limit allows the next.
 *
 * @type {Record<string, Dialect>}
 */
export const DIALECTS = {
  bucket: {
    title: 'leaky bucket: 40 at once, then 20/s',
    told: { rate: 20 * MARGIN, burst: 39 },
    rules: { requests: bucket(40, 20) },
    costs: ones,
  },
  sliding: {
    title: '10 in any second',
    told: { rate: 10 * MARGIN },
    rules: { requests: sliding(10, 1_000) },
    even: 10,
    costs: ones,
  },
  fixed: {
    title: '100 in each 6 s',
    told: { rate: (100 / 6) * MARGIN },
    rules: { requests: fixed(100, 6_000) },
    even: 100 / 6,
    costs: ones,
  },
  // 500 and 30,000 a minute, ten times as fast. A tenth of a minute's worth may come at once.
  tokens: {
    title: '500 requests and 30,000 tokens in 6 s',
    told: {
      buckets: { requests: { rate: (500 / 6) * MARGIN, burst: 48 }, tokens: { rate: 5_000 * MARGIN, burst: 2_900 } },
    },
    rules: { requests: bucket(50, 500 / 6), tokens: bucket(3_000, 5_000) },
    costs(calls) {
      const draw = random(1)
      // The first half is bound by the requests, the second one by the tokens.
      return Array.from({ length: calls }, (_, at) => ({
        requests: 1,
        tokens: Math.round(at < calls / 2 ? 20 + draw() * 20 : 200 + draw() * 400),
      }))
    },
  },
  points: {
    title: 'points: 1000 at once, then 500/s; 1 to 50 each',
    told: { buckets: { points: { rate: 500 * MARGIN, burst: 990 } } },
    rules: { points: bucket(1_000, 500) },
    costs(calls) {
      const draw = random(2)
      return Array.from({ length: calls }, () => ({ points: 1 + Math.floor(draw() * 50) }))
    },
  },
}

/** Accepts a call or not. @param {Dialect} dialect @returns {(at: number, costs: Costs) => number} ms until it would be. 0: it is accepted */
export function createJudge({ rules }) {
  const made = Object.entries(rules).map(([name, make]) => ({ name, rule: make() }))
  return (at, costs) => {
    const wait = Math.max(...made.map(({ name, rule }) => rule.wait(at, costs[name])))
    if (wait === 0) for (const { name, rule } of made) rule.add(at, costs[name])
    return wait
  }
}

/** When the last call is accepted if each comes, in order, as soon as it may. In ms. @param {Dialect} dialect @param {number} calls */
export function leastTime(dialect, calls) {
  const judge = createJudge(dialect)
  let at = 0
  for (const costs of dialect.costs(calls)) {
    for (let wait = judge(at, costs); wait > 0; wait = judge(at, costs)) at += Math.max(wait, 1e-6)
  }
  return at
}

/** The ideal time in ms. @param {Dialect} dialect @param {number} calls */
export function idealTime(dialect, calls) {
  return dialect.even === undefined ? leastTime(dialect, calls) : ((calls - 1) / dialect.even) * 1_000
}

/** A model API, ten times as fast: 500 requests and 30,000 tokens in a minute of 6 s. The tokens of an answer are spread evenly. */
export const MODEL = {
  minute: 6_000,
  requests: 500,
  tokens: 30_000,
  least: 50,
  most: 550,
  /** ms */
  latency: 50,
  msPerToken: 1,
}
