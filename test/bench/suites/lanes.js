// @ts-check
/** The cost of a request to the core while many lanes wait (../lanes.ts). */
import { existsSync } from 'node:fs'
import { result } from '../processes.js'
import { median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

/** A million lanes take more than Node's default heap. */
const NODE_ARGS = ['--max-old-space-size=8000', '--import', '@tapjs/typescript/import']

const MOST = 1
const AT = 100_000

/** @typedef {{ buckets: 'shared' | 'own', lanes: number, enqueue: number, release: number, growth: number }} Row */

/** @param {import('../main.js').Context} context */
export async function lanes({ quick, rounds: wanted, missing, progress }) {
  if (!existsSync(new URL('../lanes.ts', import.meta.url))) {
    missing.add('test/bench/lanes.ts')
    return { checks: [], tables: [], raw: {} }
  }
  const rounds = wanted ?? (quick ? 1 : 3)
  /** @type {Row[][]} */
  const runs = []
  for (let round = 0; round < rounds; round += 1) {
    progress(`lanes: round ${round + 1} of ${rounds}`)
    runs.push(await result('lanes.js', quick ? [] : ['--full'], NODE_ARGS))
  }
  /** @type {Row[]} */
  const rows = runs[0].map((row, at) => {
    const enqueue = median(runs.map(run => run[at].enqueue))
    const release = median(runs.map(run => run[at].release))
    return { ...row, enqueue, release, growth: median(runs.map(run => run[at].growth)) }
  })
  const checks = []
  for (const { buckets, lanes: count, enqueue, release, growth } of rows) {
    const name = `${buckets} buckets, ${count} lanes`
    if (count === AT) {
      const value = enqueue + release
      checks.push({
        figure: `enqueue + release, ${name}`,
        value: `${fixed(value, 2)} us`,
        target: `<= ${MOST} us`,
        met: value <= MOST,
      })
    }
    if (count > 1_000) {
      const most = Math.log(count) / Math.log(1_000)
      checks.push({
        figure: `growth from 1000 lanes, ${name}`,
        value: ratio(growth),
        target: `<= ${ratio(most)} (logarithmic)`,
        met: growth <= most,
      })
    }
  }
  return {
    checks,
    tables: [
      {
        title: 'us per request while so many lanes wait',
        columns: ['buckets', 'lanes', 'enqueue', 'release', 'against 1000 lanes'],
        rows: rows.map(({ buckets, lanes: count, enqueue, release, growth }) => [
          buckets,
          String(count),
          fixed(enqueue, 2),
          fixed(release, 2),
          ratio(growth),
        ]),
      },
    ],
    raw: { rows, runs },
  }
}
