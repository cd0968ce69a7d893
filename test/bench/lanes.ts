/**
 * The cost of a request to the core while many lanes wait: for enqueueing and for its release, on one shared bucket and on
 * separate buckets. Real time, virtual clock.
 *
 *     node --import @tapjs/typescript/import test/bench/lanes.ts [--full]       (--full: also a million lanes)
 */
import { fileURLToPath } from 'node:url'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type ShareNode } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'

export interface Row {
  /** `shared`: all lanes wait on one bucket behind their own; `own`: each lane waits on its own bucket only. */
  buckets: 'shared' | 'own'
  lanes: number
  /** Microseconds to enqueue a request. */
  enqueue: number
  /** Microseconds for a release while all lanes wait, without the arrival of its successor. */
  release: number
  /** The cost of both, relative to 1000 lanes. */
  growth: number
}

const RELEASES = 20_000

const REPEATS = 3

type Sample = Pick<Row, 'enqueue' | 'release'>

const nothing = { release() {}, expire() {}, reject() {} }

export async function lanes(options: { full?: boolean } = {}): Promise<Row[]> {
  const counts = [1_000, 10_000, 100_000, ...(options.full ? [1_000_000] : [])]
  const rows: Row[] = []
  for (const buckets of ['shared', 'own'] as const) {
    // Warms up the compiler.
    measure(buckets, 1_000)
    let base = 0
    for (const lanes of counts) {
      const { enqueue, release } = best(Array.from({ length: REPEATS }, () => measure(buckets, lanes)))
      base ||= enqueue + release
      rows.push({ buckets, lanes, enqueue, release, growth: (enqueue + release) / base })
    }
  }
  return rows
}

/** The smallest value of each figure, because anything above it comes from other load of the machine. */
function best(samples: readonly Sample[]): Sample {
  return {
    enqueue: Math.min(...samples.map(({ enqueue }) => enqueue)),
    release: Math.min(...samples.map(({ release }) => release)),
  }
}

function measure(buckets: Row['buckets'], lanes: number): Sample {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const everyone: SharedBucket = new QueuedBucket<ShareNode, Lane>({ name: 'everyone', rate: 1, capacity: 1e12 })
  const stacks = Array.from({ length: lanes }, () => {
    // Own buckets: in a second of virtual time each lane releases once, and all are busy all the time.
    const rate = buckets === 'shared' ? 1e6 : 1 / lanes
    const own: SharedBucket = new QueuedBucket<ShareNode, Lane>({ name: 'client', rate, capacity: 1e12 })
    return buckets === 'shared' ? [own, everyone] : [own]
  })
  // One request leaves at once. The others are enough for no lane to become empty while releases are timed.
  const each = 2 + Math.ceil(RELEASES / lanes)
  const began = process.hrtime.bigint()
  for (let round = 0; round < each; round += 1) {
    for (const [index, stack] of stacks.entries()) {
      // Lanes with own buckets start one after the other, so that their slots are spread.
      if (round === 0 && buckets === 'own') clock.runUntil(index)
      shaper.admit({ route, stack, cost: 1 }, nothing)
    }
  }
  const enqueued = process.hrtime.bigint()
  const before = shaper.queued
  clock.runUntil(clock.now() + RELEASES)
  const done = process.hrtime.bigint()
  return {
    enqueue: Number(enqueued - began) / 1e3 / (lanes * each),
    release: Number(done - enqueued) / 1e3 / (before - shaper.queued),
  }
}

export function table(rows: readonly Row[]): string {
  const line = (...cells: string[]): string => cells.map(cell => cell.padStart(11)).join('')
  return [
    line('buckets', 'lanes', 'enqueue us', 'release us', 'x 1k lanes'),
    ...rows.map(({ buckets, lanes, enqueue, release, growth }) =>
      line(buckets, `${lanes}`, enqueue.toFixed(2), release.toFixed(2), growth.toFixed(2)),
    ),
  ].join('\n')
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  console.log(table(await lanes({ full: process.argv.includes('--full') })))
}
