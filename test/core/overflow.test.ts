import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type ShareNode,
  Ticket,
} from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { often, runs } from '../runs.js'
import { type Arrival, burst, limits, run, slots } from './run.js'

const EPSILON = 1e-6

/** The outcome of a request. */
interface Sent {
  client: string
  cost: number
  verdict: Verdict
  ticket: Ticket | undefined
  releasedAt: number | undefined
  /** Rejects a queued request with 429. */
  drops: Rejection[]
  cancelled: boolean
}

interface Bench {
  clock: VirtualClock
  shaper: Shaper
  all: Sent[]
  route: LaneRoute
  bucket(limits: BucketLimits): SharedBucket
  send(client: string, stack: SharedBucket[], options?: { cost?: number; weight?: number; maxWait?: number }): Sent
}

function bench(): Bench {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route: LaneRoute = { name: 'route', gate: new Gate() }
  const all: Sent[] = []
  return {
    clock,
    shaper,
    all,
    route,
    bucket: limits => new QueuedBucket<ShareNode, Lane>(limits),
    send(client, stack, { cost = 1, weight = 1, maxWait } = {}) {
      let releasedAt: number | undefined
      const drops: Rejection[] = []
      const waiter = {
        release: (_: number, now: number) => {
          releasedAt = now
        },
        expire() {},
        reject: (rejection: Rejection) => drops.push(rejection),
      }
      const verdict = shaper.admit({ route, stack, cost, weight }, waiter, maxWait)
      if (verdict === 'released') releasedAt = clock.now()
      const sent: Sent = {
        client,
        cost,
        verdict,
        ticket: verdict instanceof Ticket ? verdict : undefined,
        get releasedAt() {
          return releasedAt
        },
        drops,
        cancelled: false,
      }
      all.push(sent)
      return sent
    },
  }
}

function rejected({ verdict }: Sent): Rejection | undefined {
  return verdict !== 'released' && 'reason' in verdict ? verdict : undefined
}

function must(condition: boolean, complaint: () => string): void {
  if (!condition) throw new Error(complaint())
}

const FAIR: BucketLimits = { ...limits(100, 10, 'everyone'), overflow: 'fair' }
const AMPLE = limits(1e9, 1e9)

t.test('fair: the newest request of the heaviest lane makes room, and is notified once', async t => {
  const { clock, shaper, bucket, send } = bench()
  const everyone = bucket(FAIR)
  const stacks = { a: [bucket(AMPLE), everyone], b: [bucket(AMPLE), everyone], c: [bucket(AMPLE), everyone] }
  const a = Array.from({ length: 7 }, () => send('a', stacks.a))
  const b = Array.from({ length: 3 }, () => send('b', stacks.b))
  t.equal(shaper.queued, 9)
  const c = send('c', stacks.c)
  t.ok(c.ticket, 'the newcomer is in')
  t.same(
    [...a, ...b].map(({ drops }) => drops.length),
    [0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
  )
  t.match(a[6]!.drops[0], { reason: 'overflow', buckets: [everyone] })
  t.equal(shaper.cancel(a[6]!.ticket!), false, 'it has left')
  t.same([shaper.queued, everyone.level(0)], [9, 10])
  clock.runAll()
  t.equal([...a, ...b, c].filter(({ releasedAt }) => releasedAt !== undefined).length, 10)
  t.ok([...a, ...b].every(({ drops }) => drops.length === 0 || drops.length === 1))
})

t.test('fair: the heaviest lane is the one with the most queued cost per weight', async t => {
  const { bucket, send } = bench()
  const everyone = bucket(FAIR)
  const [premium, plain, newcomer] = [0, 1, 2].map(() => [bucket(AMPLE), everyone])
  const a = Array.from({ length: 7 }, () => send('premium', premium!, { weight: 4 }))
  const b = Array.from({ length: 3 }, () => send('plain', plain!))
  send('newcomer', newcomer!)
  t.same([...a, ...b].map(({ drops }) => drops.length).lastIndexOf(1), 9, 'three by one is more than six by four')
})

t.test('fair: a lane at or above its share is rejected, and so is a single lane', async t => {
  const { bucket, send, all } = bench()
  const everyone = bucket(FAIR)
  const stacks = [0, 1].map(() => [bucket(AMPLE), everyone])
  for (let sent = 0; sent < 10; sent += 1) send('a', stacks[0]!)
  t.match(rejected(send('a', stacks[0]!)), { reason: 'overflow', retryAfterMs: 10 })
  // One has gone: nine wait. b may have up to half of ten.
  const mine = Array.from({ length: 8 }, () => send('b', stacks[1]!))
  t.same(
    mine.map(sent => rejected(sent) === undefined),
    [true, true, true, true, false, false, false, false],
    'five of a and four of b: one more would make b as heavy as a was',
  )
  t.equal(all.filter(({ drops }) => drops.length > 0).length, 4)
})

t.test('fair: nothing is dropped when the heaviest lane cannot give enough room', async t => {
  const { shaper, bucket, send, all } = bench()
  const everyone = bucket(FAIR)
  const stacks = [0, 1, 2].map(() => [bucket(AMPLE), everyone])
  for (let sent = 0; sent < 6; sent += 1) send('a', stacks[0]!)
  for (let sent = 0; sent < 4; sent += 1) send('b', stacks[1]!)
  t.match(rejected(send('c', stacks[2]!, { cost: 5 })), { reason: 'overflow', retryAfterMs: 50 })
  t.equal(shaper.queued, 9)
  t.ok(all.every(({ drops }) => drops.length === 0))
})

t.test('fair: a request that is rejected for another reason drops no other', async t => {
  const { bucket, send, all } = bench()
  const everyone = bucket(FAIR)
  const stacks = [0, 1].map(() => [bucket(AMPLE), everyone])
  for (let sent = 0; sent < 10; sent += 1) send('a', stacks[0]!)
  t.ok(rejected(send('b', stacks[1]!, { maxWait: 5 })), 'the predicted wait is 10 ms')
  t.same(
    all.map(({ drops }) => drops.length),
    all.map(() => 0),
  )
})

t.test('fair: a newcomer that a pause would make wait too long displaces none that can wait', async t => {
  for (const { maxWait, room } of [
    { maxWait: 1_000, room: false },
    { maxWait: 10_009, room: false },
    // After the pause one of the others leaves before the newcomer has its turn.
    { maxWait: 10_010, room: true },
  ]) {
    const { clock, shaper, bucket, send, all, route } = bench()
    const everyone = bucket({ ...FAIR, capacity: 4 })
    const [a, b] = [0, 1].map(() => [bucket(AMPLE), everyone])
    send('a', a!)
    shaper.engine.pause(route.gate, 10_000)
    for (let sent = 0; sent < 3; sent += 1) send('a', a!)
    const newcomer = send('b', b!, { maxWait })
    const dropped = all.map(({ drops }) => drops.length)
    t.same(dropped, [0, 0, 0, room ? 1 : 0, 0], `maxWait ${maxWait}`)
    t.equal(rejected(newcomer)?.reason, room ? undefined : 'overflow')
    clock.runAll()
    const left = all.filter(({ releasedAt }) => releasedAt !== undefined)
    t.equal(left.length, 4, 'four of the five are sent')
    if (room) t.ok(newcomer.releasedAt! <= maxWait)
  }
})

t.test('fair: a full stack of two buckets drops no more than necessary', async t => {
  const { bucket, send, all, shaper } = bench()
  const tenant = bucket({ ...limits(100, 5, 'tenant'), overflow: 'fair' })
  const everyone = bucket(FAIR)
  const [a, b] = [0, 1].map(() => [bucket(AMPLE), tenant, everyone])
  const other = [bucket(AMPLE), bucket({ ...limits(100, 5, 'tenant') }), everyone]
  for (let sent = 0; sent < 5; sent += 1) send('a', a!)
  for (let sent = 0; sent < 5; sent += 1) send('other', other)
  t.equal(rejected(send('b', b!)), undefined)
  t.equal(all.filter(({ drops }) => drops.length > 0).length, 1, 'the newest of a was in both')
  t.equal(shaper.queued, 9)
})

/** One arrival of a scenario; `slow` ones wait for their own bucket too. */
interface Step {
  gap: number
  client: number
  cost: number
  hangsUpAfter: number | null
}

interface Scene {
  steps: readonly Step[]
  weights: readonly number[]
  capacity: number
  /** The clients' own buckets, per second. */
  own: number
}

function scenes(own: readonly number[]): fc.Arbitrary<Scene> {
  return fc.record({
    steps: fc.array(
      fc.record({
        gap: fc.constantFrom(0, 0, 0, 0, 0, 5, 10, 35),
        client: fc.constantFrom(0, 0, 0, 0, 1, 1, 2, 3),
        cost: fc.constantFrom(1, 1, 1, 1, 2, 0.5),
        hangsUpAfter: fc.option(fc.constantFrom(0, 5, 20, 100), { freq: 8 }),
      }),
      { minLength: 10, maxLength: 80, size: 'max' },
    ),
    weights: fc.constantFrom([1, 1, 1, 1], [1, 2, 3, 1], [0.5, 1, 4, 1]),
    capacity: fc.constantFrom(5, 10, 12.5),
    own: fc.constantFrom(...own),
  })
}

interface Stage extends Bench {
  everyone: SharedBucket
  stacks: SharedBucket[][]
}

/** Plays a scene up to step `until`. `around` is called with each arrival and has to send it. */
function play(
  { steps, weights, capacity, own }: Scene,
  until: number,
  around: (stage: Stage, step: Step, send: () => Sent) => void = (_, __, send) => send(),
): Stage {
  const base = bench()
  const everyone = base.bucket({ ...FAIR, capacity })
  const stacks = weights.map(() => [base.bucket(limits(own, 1e9)), everyone])
  const stage = { ...base, everyone, stacks }
  const { clock, shaper, send } = stage
  const leaving: { at: number; sent: Sent }[] = []
  const hangUp = (now: number): void => {
    leaving.sort((a, b) => a.at - b.at)
    while (leaving.length > 0 && leaving[0]!.at <= now) {
      const { at, sent } = leaving.shift()!
      clock.runUntil(at)
      if (sent.ticket !== undefined) sent.cancelled = shaper.cancel(sent.ticket)
    }
    clock.runUntil(now)
  }
  let now = 0
  for (const step of steps.slice(0, until + 1)) {
    now += step.gap
    hangUp(now)
    around(stage, step, () => {
      const { client, cost, hangsUpAfter } = step
      const sent = send(`${client}`, stacks[client]!, { cost, weight: weights[client]! })
      if (hangsUpAfter !== null) leaving.push({ at: now + hangsUpAfter, sent })
      return sent
    })
  }
  return stage
}

/** The waiting requests, in order of arrival. */
function waiting(all: readonly Sent[]): Sent[] {
  return all.filter(
    ({ ticket, releasedAt, cancelled, drops }) =>
      ticket !== undefined && releasedAt === undefined && !cancelled && drops.length === 0,
  )
}

function total(sents: readonly Sent[]): number {
  return sents.reduce((sum, { cost }) => sum + cost, 0)
}

/** `drop` undefined: rejected. */
type Expected = 'in' | { drop: Sent[] | undefined }[]

/** The rule in naive form: the allowed outcomes of an arrival. Any of several equally heavy lanes may give room. */
function decide({ all, everyone, clock }: Stage, { weights, capacity }: Scene, { client, cost }: Step): Expected {
  const queue = waiting(all)
  const excess = everyone.hold(clock.now()) + total(queue) + cost - capacity
  if (excess <= EPSILON) return 'in'
  const weightOf = (name: string): number => weights[Number(name)]!
  const mine = queue.filter(sent => sent.client === `${client}`)
  const lanes = new Map<string, Sent[]>()
  for (const sent of queue) lanes.set(sent.client, [...(lanes.get(sent.client) ?? []), sent])
  const present = new Set([...lanes.keys(), `${client}`])
  const share = (capacity * weights[client]!) / [...present].reduce((sum, name) => sum + weightOf(name), 0)
  if (total(mine) >= share - EPSILON) return [{ drop: undefined }]
  const heavy = Math.max(...[...lanes].map(([name, sents]) => total(sents) / weightOf(name)))
  const choices: { drop: Sent[] | undefined }[] = []
  for (const [name, sents] of lanes) {
    if (total(sents) / weightOf(name) < heavy - EPSILON) continue
    const drop: Sent[] = []
    const left = [...sents]
    while (total(drop) < excess - EPSILON && left.length > 0) {
      if (total(left) / weightOf(name) <= (total(mine) + cost) / weights[client]! + EPSILON) break
      drop.push(left.pop()!)
    }
    choices.push({ drop: total(drop) >= excess - EPSILON ? drop : undefined })
  }
  return choices.length > 0 ? choices : [{ drop: undefined }]
}

t.test('property: fair: outcomes equal those of a naive model, and no request is lost', async t => {
  let dropped = 0
  let refused = 0
  fc.assert(
    fc.property(scenes([1e9, 1e9, 40]), scene => {
      const { all, shaper, clock, everyone } = play(scene, Infinity, (stage, step, send) => {
        const expected = decide(stage, scene, step)
        const before = new Set(stage.all.filter(({ drops }) => drops.length > 0))
        const sent = send()
        const gone = stage.all.filter(other => other.drops.length > 0 && !before.has(other))
        if (expected === 'in') {
          must(rejected(sent) === undefined && gone.length === 0, () => 'there was room')
        } else {
          dropped += gone.length
          if (rejected(sent) !== undefined) refused += 1
          const fits = expected.some(({ drop }) =>
            drop === undefined
              ? rejected(sent)?.reason === 'overflow' && gone.length === 0
              : rejected(sent) === undefined && drop.length === gone.length && drop.every(one => gone.includes(one)),
          )
          must(fits, () => `dropped: ${gone.map(({ client, cost }) => `${client}/${cost}`)}`)
        }
        must(stage.everyone.level(stage.clock.now()) <= scene.capacity + EPSILON, () => 'above its brim')
        must(stage.shaper.queued === waiting(stage.all).length, () => 'lost')
        must(Math.abs(stage.everyone.queued - total(waiting(stage.all))) < EPSILON, () => 'cost lost')
      })
      clock.runAll()
      must(shaper.queued === 0 && waiting(all).length === 0, () => 'a request waits for ever')
      must(everyone.queued === 0 && everyone.isPlain, () => 'something is left')
      for (const sent of all) {
        const ends = [sent.releasedAt !== undefined, rejected(sent) !== undefined, sent.cancelled]
        must(ends.filter(Boolean).length + sent.drops.length === 1, () => `ended ${ends} and ${sent.drops.length}`)
      }
      return true
    }),
    { seed: 61, numRuns: runs(1000) },
  )
  t.comment(`${dropped} dropped, ${refused} rejected`)
  t.ok(dropped > often(1_000) && refused > often(1_000))
})

/** Sends a rejected request again after its Retry-After, with no other arrivals in between. */
function truthful(scene: Scene, whom: 'dropped' | 'rejected'): boolean {
  const last = scene.steps.length - 1
  const seen = new Set<number>()
  for (let until = 0; until <= last; until += 1) {
    const { all } = play(scene, until)
    for (const [index, sent] of all.entries()) {
      const rejection = whom === 'dropped' ? sent.drops[0] : rejected(sent)
      if (rejection === undefined || seen.has(index)) continue
      seen.add(index)
      const again = play(scene, until)
      again.clock.runUntil(again.clock.now() + rejection.retryAfterMs! + EPSILON)
      const { client, cost } = scene.steps[index]!
      const before = again.all.filter(({ drops }) => drops.length > 0).length
      const retried = again.send(`${client}`, again.stacks[client]!, { cost, weight: scene.weights[client]! })
      // It has to find room, not take the place of another request.
      const after = again.all.filter(({ drops }) => drops.length > 0).length
      const state = again.everyone.level(again.clock.now())
      must(
        rejected(retried) === undefined && before === after,
        () => `${index} ${whom}: not after ${rejection.retryAfterMs} (${state})`,
      )
    }
  }
  return true
}

t.test('property: fair: Retry-After is true for rejected requests', async () => {
  fc.assert(
    fc.property(scenes([1e9, 40, 20]), scene => truthful(scene, 'rejected')),
    { seed: 62, numRuns: runs(150) },
  )
})

t.test('property: fair: Retry-After is true for dropped requests', async () => {
  fc.assert(
    fc.property(scenes([1e9]), scene => truthful(scene, 'dropped')),
    { seed: 63, numRuns: runs(100) },
  )
})

t.test('property: fair: Retry-After is true when waiting requests are held by their own buckets', async () => {
  fc.assert(
    fc.property(scenes([40, 20]), scene => truthful(scene, 'dropped')),
    { seed: 64, numRuns: runs(100) },
  )
})

/** A naive model of a bucket with `overflow` and `blockFor`. */
interface Model {
  level: number
  at: number
  blockedUntil: number | 'drained' | undefined
}

type ModelVerdict = { admitted: true } | { admitted: false; reason: string; retryAfterMs: number | undefined }

function decideByModel(
  model: Model,
  { rate, capacity, overflow, blockFor }: BucketLimits,
  at: number,
  cost: number,
): ModelVerdict {
  model.level = Math.max(0, model.level - (at - model.at) * rate)
  model.at = at
  if (model.blockedUntil === 'drained' && model.level <= 1e-9) model.blockedUntil = undefined
  if (typeof model.blockedUntil === 'number' && at >= model.blockedUntil) model.blockedUntil = undefined
  if (cost > capacity + 1e-9) return { admitted: false, reason: 'too-costly', retryAfterMs: undefined }
  const blocked = model.blockedUntil !== undefined
  if (!blocked && model.level + cost <= capacity + 1e-9) {
    model.level += cost
    return { admitted: true }
  }
  if (!blocked) {
    if (overflow === 'fill') model.level = Math.max(model.level, capacity)
    if (blockFor !== undefined) model.blockedUntil = blockFor === 'drain' ? 'drained' : at + blockFor
  }
  const untilFit = Math.max(0, model.level + cost - capacity) / rate
  const retryAfterMs =
    model.blockedUntil === 'drained'
      ? model.level / rate
      : Math.max(untilFit, model.blockedUntil === undefined ? 0 : model.blockedUntil - at)
  return { admitted: false, reason: blocked ? 'blocked' : 'overflow', retryAfterMs }
}

const punishing = fc.record({
  rate: fc.constantFrom(1, 5, 10, 100).map(perSecond => perSecond / 1_000),
  capacity: fc.constantFrom(1, 3, 5, 10),
  overflow: fc.constantFrom<('reject' | 'fill')[]>('reject', 'fill'),
  blockFor: fc.constantFrom<(number | 'drain' | undefined)[]>(undefined, 150, 1_000, 'drain'),
})

/** `limits` with a property left out where it is not to be there. */
function penal({ rate, capacity, overflow, blockFor }: { [name in keyof BucketLimits]?: unknown }): BucketLimits {
  return { name: 'client', rate, capacity, overflow, ...(blockFor === undefined ? {} : { blockFor }) } as BucketLimits
}

const arrivals = fc
  .array(
    fc.record({
      gap: fc.constantFrom(0, 0, 0, 1, 10, 50, 99, 100, 101, 150, 400, 1_000, 1_001, 5_000),
      cost: fc.constantFrom(1, 1, 1, 2, 0.5, 4, 11),
    }),
    { minLength: 1, maxLength: 60, size: 'max' },
  )
  .map(steps => {
    let at = 0
    return steps.map(({ gap, cost }): Arrival => {
      at += gap
      return { at, cost }
    })
  })

t.test('property: fill and blockFor: shape and meter do what a naive model does', async t => {
  const reasons: Record<string, number> = {}
  fc.assert(
    fc.property(punishing, arrivals, fc.constantFrom<('shape' | 'meter')[]>('shape', 'meter'), (p, arrivals, mode) => {
      const limits = penal(p)
      const model: Model = { level: 0, at: 0, blockedUntil: undefined }
      const { outcomes } = run([limits], arrivals, {
        mode,
        check: ({ bucketTable, now }) => {
          for (const [, bucket] of bucketTable.entries('client')) {
            must(bucket.level(now) <= limits.capacity + EPSILON, () => 'above its brim')
          }
        },
      })
      for (const { arrival, verdict, rejection } of outcomes) {
        const expected = decideByModel(model, limits, arrival.at, arrival.cost!)
        if (expected.admitted) must(verdict !== 'rejected', () => `${arrival.at}: rejected, ${rejection?.reason}`)
        else {
          const { reason, retryAfterMs } = expected
          reasons[reason] = (reasons[reason] ?? 0) + 1
          must(verdict === 'rejected', () => `${arrival.at}: admitted, not ${reason}`)
          must(rejection!.reason === reason, () => `${arrival.at}: ${rejection!.reason}, not ${reason}`)
          const off = (rejection!.retryAfterMs ?? -1) - (retryAfterMs ?? -1)
          must(Math.abs(off) < 1e-4, () => `${arrival.at}: retry after ${rejection!.retryAfterMs}, not ${retryAfterMs}`)
        }
      }
      return true
    }),
    { seed: 65, numRuns: runs(3000) },
  )
  t.ok(
    ['overflow', 'blocked', 'too-costly'].every(reason => reasons[reason]! > often(1_000)),
    JSON.stringify(reasons),
  )
})

t.test('property: fill and blockFor: shape and meter admit alike', async () => {
  fc.assert(
    fc.property(punishing, arrivals, (p, arrivals) => {
      const [shaped, metered] = (['shape', 'meter'] as const).map(mode => run([penal(p)], arrivals, { mode }))
      return shaped!.admitted.join() === metered!.admitted.join()
    }),
    { seed: 66, numRuns: runs(2000) },
  )
})

t.test('property: fill and blockFor: Retry-After is true', async () => {
  fc.assert(
    fc.property(punishing, arrivals, fc.constantFrom<('shape' | 'meter')[]>('shape', 'meter'), (p, arrivals, mode) => {
      const stack = [penal(p)]
      const { outcomes } = run(stack, arrivals, { mode })
      for (const [index, { rejection, arrival }] of outcomes.entries()) {
        if (rejection?.retryAfterMs === undefined) continue
        const again = { ...arrival, at: arrival.at + rejection.retryAfterMs + EPSILON }
        const retried = run(stack, [...arrivals.slice(0, index + 1), again], { mode })
        if (retried.outcomes.at(-1)!.verdict === 'rejected') return false
        // It is not needlessly late.
        const early = { ...arrival, at: arrival.at + rejection.retryAfterMs - 0.01 }
        if (early.at <= arrival.at) continue
        if (run(stack, [...arrivals.slice(0, index + 1), early], { mode }).outcomes.at(-1)!.verdict !== 'rejected') {
          return false
        }
      }
      return true
    }),
    { seed: 67, numRuns: runs(300) },
  )
})

t.test(
  'property: fill: an admitted request waits no longer than the level it found, however hard others hammer',
  async () => {
    fc.assert(
      fc.property(punishing, arrivals, (p, arrivals) => {
        const stack = [penal(p)]
        const levels: number[] = []
        const { outcomes } = run(stack, arrivals, {
          watch: ([bucket], now) => {
            levels.push(bucket!.level(now))
            return () => {}
          },
        })
        for (const [index, { slot, arrival }] of outcomes.entries()) {
          if (slot === undefined) continue
          const longest = levels[index]! / stack[0]!.rate
          must(slot - arrival.at <= longest + 1e-3, () => `${slot - arrival.at} ms instead of ${longest}`)
        }
        return true
      }),
      { seed: 68, numRuns: runs(1000) },
    )
  },
)

t.test('fill: hammering neither delays waiting requests nor releases them in a burst', async t => {
  const hammer = Array.from({ length: 2_000 }, (_, index) => ({ at: 1 + index }))
  const outcome = run([{ ...limits(10, 5), overflow: 'fill' }], [...burst(5), ...hammer])
  t.same(slots(outcome).slice(0, 5), [0, 100, 200, 300, 400])
  t.equal(outcome.admitted.length, 5, 'it keeps the bucket full')
})

t.test('blockFor: rejected requests do not extend a block', async t => {
  for (const mode of ['shape', 'meter'] as const) {
    for (const [blockFor, over] of [
      [300, 300],
      ['drain', 500],
    ] as const) {
      const hammer = Array.from({ length: 100 }, (_, index) => ({ at: 5 * index }))
      const stack = [{ ...limits(10, 5), blockFor }]
      const { outcomes } = run(stack, [...burst(6), ...hammer, { at: over - 0.01 }, { at: over }], { mode })
      const verdicts = outcomes.map(({ verdict, arrival }) => (verdict === 'rejected' ? undefined : arrival.at))
      const again = verdicts.slice(6).filter(at => at !== undefined)[0]
      t.equal(again, over, `${mode}, ${blockFor}`)
    }
  }
})

t.test('blockFor: requests that wait already are released', async t => {
  const { released } = run([{ ...limits(10, 5), blockFor: 10_000 }], burst(8))
  t.same(
    released.map(({ slot }) => Math.round(slot!)),
    [0, 100, 200, 300, 400],
  )
})

t.test('only the bucket that overflowed applies its penalty', async t => {
  const { bucket, send, clock } = bench()
  const own = bucket({ ...limits(10, 2), overflow: 'fill', blockFor: 1_000 })
  const other = bucket({ ...limits(10, 2), overflow: 'fill', blockFor: 1_000 })
  const everyone = bucket({ ...limits(100, 100, 'everyone'), overflow: 'fill', blockFor: 1_000 })
  for (let sent = 0; sent < 3; sent += 1) send('a', [own, everyone])
  t.same([own.blockedFor(0), everyone.blockedFor(0), everyone.level(0)], [1_000, 0, 2])
  t.equal(rejected(send('b', [other, everyone])), undefined)
  t.match(rejected(send('a', [own, everyone])), { reason: 'blocked', buckets: [own], retryAfterMs: 1_000 })
  clock.runUntil(1_000)
  t.equal(rejected(send('a', [own, everyone])), undefined)
})

t.test('a block is kept although its bucket is empty', async t => {
  const bucketTable = new BucketTable(1e6)
  const strict: BucketLimits = { ...limits(100, 1), blockFor: 60_000 }
  const culprit = bucketTable.find(strict, 'culprit', 0)!
  culprit.fill(1, 0)
  culprit.applyOverflowPolicy(0)
  t.equal(culprit.level(1_000), 0)
  for (let key = 0; key < 1_000; key += 1) bucketTable.find(strict, `${key}`, 1_000 + key)
  t.equal(bucketTable.find(strict, 'culprit', 59_999), culprit)
  for (let key = 0; key < 1_000; key += 1) bucketTable.find(strict, `later ${key}`, 60_000 + key)
  t.not(bucketTable.find(strict, 'culprit', 70_000), culprit, 'it goes when it is over')
})

t.test('a blocked instance is not dropped for a new key while others hold less', async t => {
  const bucketTable = new BucketTable(3)
  const strict: BucketLimits = { ...limits(1, 10), blockFor: 60_000 }
  const culprit = bucketTable.find(strict, 'culprit', 0)!
  culprit.applyOverflowPolicy(0)
  for (const key of ['a', 'b']) bucketTable.find(strict, key, 0)!.fill(1, 0)
  bucketTable.find(strict, 'c', 0)!.fill(1, 0)
  t.equal(bucketTable.find(strict, 'culprit', 0), culprit)
})

t.test('fill: a change of the rate keeps the fill behind waiting requests', async t => {
  const { clock, shaper, bucket, send, all } = bench()
  const own = bucket({ ...limits(10, 5), overflow: 'fill' })
  for (let sent = 0; sent < 5; sent += 1) send('a', [own])
  for (const at of [50, 140]) {
    clock.runUntil(at)
    t.ok(rejected(send('a', [own])))
    t.equal(own.level(at), 5)
  }
  // 60 ms of a period are left, and take twice as long.
  shaper.engine.setLimits(own, { ...limits(5, 5), overflow: 'fill' })
  t.equal(own.level(140), 5)
  clock.runAll()
  t.same(
    all.filter(({ releasedAt }) => releasedAt !== undefined).map(({ releasedAt }) => Math.round(releasedAt!)),
    [0, 100, 260, 460, 660],
  )
})
