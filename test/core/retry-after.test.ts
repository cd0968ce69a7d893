import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type ShareNode } from '../../src/core/queue/lane.js'
import { type Rejection, Shaper } from '../../src/core/shaper.js'
import { type Arrival, limits, type RunOptions, random, run } from './run.js'

/** A Retry-After, and the outcome of obeying it in the same scenario without later arrivals. */
interface Promised {
  arrivals: Arrival[]
  retryAfterMs: number
  kept: boolean
  /** Whether the request would have been admitted 0.1 % (at least 0.01 ms) earlier, too. */
  early: boolean
}

function promises(stack: BucketLimits[], arrivals: Arrival[], options: RunOptions = {}, most = 6): Promised[] {
  const found: Promised[] = []
  for (const [index, { rejection, arrival }] of run(stack, arrivals, options).outcomes.entries()) {
    if (rejection?.retryAfterMs === undefined || found.length === most) continue
    const past = arrivals.slice(0, index + 1)
    const { retryAfterMs } = rejection
    const admitted = (after: number): boolean => {
      const again = run(stack, [...past, { ...arrival, at: arrival.at + after }], options)
      return again.outcomes.at(-1)!.verdict !== 'rejected'
    }
    found.push({
      arrivals: past,
      retryAfterMs,
      kept: retryAfterMs > 0 && admitted(retryAfterMs + 1e-6),
      early: admitted(retryAfterMs - Math.max(0.01, retryAfterMs / 1_000)),
    })
  }
  return found
}

const COSTS = [1, 1, 0.5, 2, 0.3, 1.7]

function scenario(next: () => number, keysOf: (key: string) => string[], costs: number[]): Arrival[] {
  const pick = <T>(from: T[]): T => from[Math.floor(next() * from.length)]!
  let at = 0
  return Array.from({ length: 1 + Math.floor(next() * 40) }, () => {
    at += pick([0, 0, 10, 50, 100, 133.3])
    return { at, keys: keysOf(pick(['a', 'b', 'c'])), cost: pick(costs) }
  })
}

/** Counts over many random scenarios: promises made, false ones, and ones that were not tight. */
function count(
  scenarios: number,
  costs: number[],
  stackOf: (pick: <T>(from: T[]) => T) => BucketLimits[],
  options?: RunOptions,
): { made: number; broken: Promised[]; early: number } {
  const sum = { made: 0, broken: [] as Promised[], early: 0 }
  for (let seed = 0; seed < scenarios; seed += 1) {
    const next = random(seed)
    const stack = stackOf(from => from[Math.floor(next() * from.length)]!)
    const keysOf = (key: string): string[] => (stack.length === 1 ? [key] : [key, 'all'])
    for (const promised of promises(stack, scenario(next, keysOf, costs), options)) {
      sum.made += 1
      if (!promised.kept) sum.broken.push(promised)
      if (promised.early) sum.early += 1
    }
  }
  return sum
}

function told(broken: Promised[], made: number): string {
  const [shortest] = broken.sort((a, b) => a.arrivals.length - b.arrivals.length)
  return `${broken.length} of ${made} false${shortest === undefined ? '' : `, e.g. ${JSON.stringify(shortest)}`}`
}

t.test('one bucket: Retry-After is true and no longer than needed', async t => {
  const { made, broken, early } = count(1500, COSTS, pick => [limits(pick([1, 3, 5, 7, 100]), pick([2, 3.5, 10]))])
  t.ok(made > 3_000, `${made} rejections`)
  t.equal(broken.length, 0, told(broken, made))
  t.equal(early, 0)
})

t.test('one bucket, maxWait: Retry-After is true and no longer than needed', async t => {
  const { made, broken, early } = count(700, COSTS, pick => [limits(pick([1, 3, 5, 7]), pick([10, 20]))], {
    maxWait: 1_000,
  })
  t.ok(made > 1_000, `${made} rejections`)
  t.equal(broken.length, 0, told(broken, made))
  t.equal(early, 0)
})

const clientAndEveryone = (pick: <T>(from: T[]) => T): BucketLimits[] => [
  limits(pick([1, 2, 5, 10]), pick([2, 3, 5]), 'client'),
  limits(pick([1, 5, 10, 20]), pick([3, 6, 10]), 'everyone'),
]

t.test('a stack, unit costs: Retry-After is true', async t => {
  const { made, broken, early } = count(1200, [1], clientAndEveryone)
  t.ok(made > 3_000)
  t.equal(broken.length, 0, told(broken, made))
  t.comment(`${early} of ${made} longer than needed`)
})

t.test('a stack, mixed costs: Retry-After is true', async t => {
  const { made, broken, early } = count(1200, COSTS, clientAndEveryone)
  t.ok(made > 3_000)
  t.equal(broken.length, 0, told(broken, made))
  t.comment(`${early} of ${made} longer than needed`)
})

t.test('a stack of three, unit costs: Retry-After is true', async t => {
  const sum = { made: 0, broken: [] as Promised[] }
  for (let seed = 0; seed < 1_000; seed += 1) {
    const next = random(seed)
    const pick = (from: number[]): number => from[Math.floor(next() * from.length)]!
    const stack = [
      limits(pick([1, 2, 5, 10]), pick([2, 3, 5, 10]), 'client'),
      limits(pick([1, 3, 8, 20]), pick([2, 5, 10]), 'tenant'),
      limits(pick([1, 5, 10, 20]), pick([3, 6, 10, 30]), 'everyone'),
    ]
    const made = promises(
      stack,
      scenario(next, key => [key, key === 'a' ? 't1' : 't2', 'all'], [1]),
    )
    sum.made += made.length
    sum.broken.push(...made.filter(({ kept }) => !kept))
  }
  t.ok(sum.made > 3_000)
  t.equal(sum.broken.length, 0, told(sum.broken, sum.made))
})

t.test('a stack, maxWait: Retry-After is true', async t => {
  const { made, broken } = count(700, [1], clientAndEveryone, { maxWait: 700 })
  t.ok(made > 1_000)
  t.equal(broken.length, 0, told(broken, made))
})

t.test('a bucket that has just drained enough gives no negative Retry-After', async t => {
  const [promised] = promises(
    [limits(2, 3, 'client'), limits(5, 3, 'everyone')],
    [
      { at: 100, keys: ['c', 'all'] },
      { at: 150, keys: ['c', 'all'] },
      { at: 200, keys: ['c', 'all'] },
      { at: 300, keys: ['a', 'all'] },
      { at: 310, keys: ['b', 'all'] },
    ],
  )
  t.ok(Math.abs(promised!.retryAfterMs - 190) < 1e-3, `${promised!.retryAfterMs}`)
})

t.test('Retry-After counts an expensive request that goes first', async t => {
  const [promised] = promises(
    [limits(10, 2, 'client'), limits(1, 6, 'everyone')],
    [
      { at: 0, keys: ['b', 'all'], cost: 1 },
      { at: 0, keys: ['c', 'all'], cost: 2 },
      { at: 0, keys: ['b', 'all'], cost: 0.5 },
      { at: 0, keys: ['b', 'all'], cost: 2 },
    ],
  )
  // b's 0.5 waits for the 1 (until 1000) and for c's 2 (until 3000).
  t.equal(promised!.kept, true, `${promised!.retryAfterMs}`)
})

t.test('Retry-After covers both a full bucket and a long wait', async t => {
  const route = { name: 'route', gate: new Gate() }
  const waiter = { release() {}, expire() {}, reject() {} }
  const scenario = (retryAt?: number): Rejection => {
    const clock = createVirtualClock()
    const shaper = new Shaper({ clock })
    const request = { route, stack: [new QueuedBucket<ShareNode, Lane>(limits(5, 10)) as SharedBucket], cost: 1 }
    for (let sent = 0; sent < 10; sent += 1) shaper.admit(request, waiter)
    const verdict = shaper.admit(request, waiter, 1_000)
    if (retryAt === undefined) return verdict as Rejection
    clock.runUntil(retryAt)
    return shaper.admit(request, waiter, 1_000) as Rejection
  }
  const { retryAfterMs } = scenario()
  t.equal(retryAfterMs, 1_000, 'ten queued at 5/s: in 1 s five of them, 1 s of waiting, are left')
  t.notOk('reason' in scenario(retryAfterMs! + 1e-6))
})
