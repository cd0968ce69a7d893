// @ts-check
/** The cost of one decision without HTTP: ours against rate-limiter-flexible, each run in its own process. */
import { DIST } from '../participants.js'
import { hasPackage, result } from '../processes.js'
import { entry, median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

const MILLION = 1_000_000

const FIGURES = [
  { name: 'performance.now(), which each of them reads', what: 'clock', keys: 1 },
  { name: 'LeakyBucket.tryAdd', what: 'tryAdd', keys: 1, most: 50 },
  { name: 'LeakyBucket.tryAdd, rejecting', what: 'tryAdd, full', keys: 1 },
  { name: 'keyed meter', what: 'meter', keys: 1 },
  { name: 'keyed meter', what: 'meter', keys: MILLION, most: 450 },
  { name: 'RateLimiterMemory.consume', what: 'RateLimiterMemory', keys: 1 },
  { name: 'RateLimiterMemory.consume, rejecting', what: 'RateLimiterMemory, full', keys: 1 },
  { name: 'RateLimiterMemory.consume', what: 'RateLimiterMemory', keys: MILLION },
]

const FASTER = 10

/** ns */
const BEYOND_CLOCK = 10

/** @param {import('../main.js').Context} context */
export async function decision({ quick, rounds: wanted, missing, progress }) {
  const theirs = hasPackage('rate-limiter-flexible')
  if (!theirs) missing.add('rate-limiter-flexible')
  const figures = FIGURES.filter(({ what }) => theirs || !what.startsWith('RateLimiterMemory'))
  const rounds = wanted ?? (quick ? 1 : 5)
  /** @type {Record<string, number[]>} */
  const raw = {}
  for (let round = 0; round < rounds; round += 1) {
    for (const { what, keys } of figures) {
      progress(`decision: ${what}, ${keys} keys, round ${round + 1} of ${rounds}`)
      const values = entry(raw, `${what}, ${keys}`, () => [])
      values.push(await result('decisions.js', [DIST, what, String(keys)]))
    }
  }
  /** @param {string} what @param {number} keys */
  const of = (what, keys) => median(raw[`${what}, ${keys}`] ?? [])
  const checks = figures
    .filter(({ most }) => most !== undefined)
    .map(({ name, what, keys, most = 0 }) => ({
      figure: keys === 1 ? `${name}, hot` : `${name}, 1 M keys`,
      value: `${fixed(of(what, keys), 0)} ns`,
      target: `<= ${most} ns`,
      met: of(what, keys) <= most,
    }))
  const beyond = median((raw['tryAdd, 1'] ?? []).map((ns, round) => ns - (raw['clock, 1']?.[round] ?? Number.NaN)))
  checks.push({
    figure: 'LeakyBucket.tryAdd less the clock',
    value: `${fixed(beyond, 0)} ns`,
    target: `<= ${BEYOND_CLOCK} ns`,
    met: beyond <= BEYOND_CLOCK,
  })
  if (theirs) {
    for (const [name, what, keys] of /** @type {const} */ ([
      ['LeakyBucket.tryAdd against RateLimiterMemory, one key', 'tryAdd', 1],
      ['keyed meter against RateLimiterMemory, one key', 'meter', 1],
      ['keyed meter against RateLimiterMemory, 1 M keys', 'meter', MILLION],
    ])) {
      const value = of('RateLimiterMemory', keys) / of(what, keys)
      checks.push({ figure: name, value: `${ratio(value)} faster`, target: `>= ${FASTER}x`, met: value >= FASTER })
    }
  }
  return {
    checks,
    tables: [
      {
        title: 'ns per decision',
        columns: ['decision', 'keys', 'ns'],
        rows: figures.map(({ name, what, keys }) => [name, String(keys), fixed(of(what, keys), 0)]),
      },
    ],
    raw,
  }
}
