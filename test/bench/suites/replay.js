// @ts-check
/** The speed of replays: a generated combined log of 2 GB, with one limit and with 64 at once, on one core. */
import { mkdtempSync, rmSync, statfsSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DIST } from '../participants.js'
import { result } from '../processes.js'
import { median } from '../statistics.js'
import { fixed, ratio } from '../tables.js'

const BYTES = 2_000_000_000
const QUICK_BYTES = 200_000_000

const LEAST = 500_000
const MOST_RUNS = 12

const SINGLE = ['--rate', '5/s', '--capacity', '10']
const RUNS = [
  { name: '5/s, capacity 10', flags: SINGLE },
  { name: '64 points', flags: [...SINGLE, '--sweep', 'rate=1/s..20/s,capacity=5..100'] },
]

/** @typedef {{ lines: number, seconds: number, perSecond: number, cpu: number, memory: number }} Figures */

/** @param {import('../main.js').Context} context */
export async function replay({ quick, rounds: wanted, missing, progress }) {
  const bytes = quick ? QUICK_BYTES : BYTES
  const { bavail, bsize } = statfsSync(tmpdir())
  if (bavail * bsize < 2 * bytes) {
    missing.add(`${(2 * bytes) / 1e9} GB in ${tmpdir()}`)
    return { checks: [], tables: [], raw: {} }
  }
  const directory = mkdtempSync(join(tmpdir(), 'shaper-replay-'))
  try {
    const log = join(directory, 'access.log')
    progress('replay: writing the log')
    await result('write-log.js', [log, String(bytes)])
    const rounds = wanted ?? (quick ? 1 : 3)
    /** @type {Figures[][]} */
    const runs = RUNS.map(() => [])
    for (let round = 0; round < rounds; round += 1) {
      for (const [at, { name, flags }] of RUNS.entries()) {
        progress(`replay: ${name}, round ${round + 1} of ${rounds}`)
        runs[at].push(await result('replay.js', [DIST, ...flags, log]))
      }
    }
    /** @param {number} at @param {keyof Figures} figure */
    const of = (at, figure) => median(runs[at].map(run => run[figure]))
    const speed = of(0, 'perSecond')
    const cost = of(1, 'seconds') / of(0, 'seconds')
    return {
      checks: [
        {
          figure: 'lines/s, one rate and capacity',
          value: fixed(speed, 0),
          target: `>= ${LEAST}`,
          met: speed >= LEAST,
        },
        {
          figure: 'a sweep of 64 points against a single run',
          value: ratio(cost),
          target: `< ${MOST_RUNS}x`,
          met: cost < MOST_RUNS,
        },
      ],
      tables: [
        {
          title: `A combined log of ${bytes / 1e9} GB, ${of(0, 'lines')} lines, 100,000 addresses`,
          columns: ['limits', 'lines/s', 's', 'us of CPU per line', 'MB'],
          rows: RUNS.map(({ name }, at) => [
            name,
            fixed(of(at, 'perSecond'), 0),
            fixed(of(at, 'seconds'), 1),
            fixed(of(at, 'cpu'), 2),
            fixed(of(at, 'memory'), 0),
          ]),
        },
      ],
      raw: { runs },
    }
  } finally {
    rmSync(directory, { recursive: true })
  }
}
