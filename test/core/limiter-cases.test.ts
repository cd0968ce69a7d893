/**
 * Cases of other leaky-bucket limiters as figures (fixtures/limiter-cases.json). Their burst of b admits b + 1 requests at
 * once, and our capacity of b admits b. So their b is our b + 1.
 */
import { readFileSync } from 'node:fs'
import t, { type Test } from 'tap'
import { QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { Gate, type Lane, type SharedBucket, type ShareNode, Ticket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { type Arrival, burst, limits, type Run, run, slots } from './run.js'

interface Case {
  src: string
  r: number
  burst: number
  at_ms: number[]
  keys: string[]
  commit: boolean[]
  script: string
  expect: unknown
  expect_delay_s: number[]
  expect_excess: number[]
}

const cases = JSON.parse(
  readFileSync(new URL('../fixtures/limiter-cases.json', import.meta.url), 'utf8'),
) as (Partial<Case> & { src: string })[]

const name = (found: Partial<Case>): string => `${found.src}, burst ${found.burst ?? '-'}`

function bucketOf({ r, burst }: Case): ReturnType<typeof limits> {
  return limits(r, burst + 1)
}

function decisions({ outcomes }: Run): string[] {
  return outcomes.map(({ verdict }) => (verdict === 'rejected' ? 'reject' : 'pass'))
}

/** All requests come at one moment. As many pass as fit, in shape and in meter. */
function passOrReject(t: Test, found: Case): void {
  const arrivals = found.at_ms.map(at => ({ at }))
  for (const mode of ['shape', 'meter'] as const) {
    t.same(decisions(run([bucketOf(found)], arrivals, { mode })), found.expect, mode)
  }
}

/** A live shaper with one bucket. */
function live(found: Case): { bucket: SharedBucket; send: (done?: (slot: number) => void) => unknown } & {
  shaper: Shaper
  clock: ReturnType<typeof createVirtualClock>
} {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route = { name: 'route', gate: new Gate() }
  const bucket: SharedBucket = new QueuedBucket<ShareNode, Lane>(bucketOf(found))
  const send = (done: (slot: number) => void = () => {}): unknown => {
    const verdict = shaper.admit({ route, stack: [bucket], cost: 1 }, { release: done, expire() {}, reject() {} })
    if (verdict === 'released') done(clock.now())
    return verdict
  }
  return { bucket, send, shaper, clock }
}

const handlers: Record<string, (t: Test, found: Case) => void> = {
  'lua-resty-limit-traffic t/req.t TEST1 (BSD-2), burst 40': (t, found) => {
    t.match(found.script, /^80 sequential requests/)
    const { send, clock } = live(found)
    const released: number[] = []
    const next = (slot: number): void => {
      released.push(slot)
      if (released.length < 80) send(next)
    }
    send(next)
    clock.runAll()
    const { elapsed_s, exact } = found.expect as { elapsed_s: [number, number]; exact: string }
    const elapsed = released.at(-1)! / 1_000
    t.equal(released.length, 80)
    t.equal(Math.round(elapsed * 1e9) / 1e9, Number(exact.split('=')[1]))
    t.ok(elapsed >= elapsed_s[0] && elapsed <= elapsed_s[1])
  },

  't/req.t TEST2, burst 10': (t, found) => {
    const arrivals: Arrival[] = found.at_ms.map((at, index) => ({ at, keys: [found.keys[index]!] }))
    const excesses: number[] = []
    const outcome = run([bucketOf(found)], arrivals, {
      watch: ([bucket], now) => {
        excesses.push(bucket!.level(now))
        return () => {}
      },
    })
    t.same(
      outcome.outcomes.map(({ slot, arrival }) => (slot! - arrival.at) / 1_000),
      found.expect_delay_s,
    )
    t.same(excesses, found.expect_excess)
  },

  't/req.t TEST3, burst 0': passOrReject,
  't/req.t TEST3, burst 1': passOrReject,
  't/req.t TEST3, burst 2': passOrReject,

  't/req.t TEST4 (peek does not consume), burst 10': (t, found) => {
    const { bucket, send, clock } = live(found)
    const delays = found.commit.map((commit, index) => {
      clock.runUntil(found.at_ms[index]!)
      const delay = bucket.level(clock.now()) / bucket.limits.rate / 1_000
      t.equal(bucket.excess(1, clock.now()), 0)
      if (commit) send()
      return delay
    })
    t.same(delays, found.expect_delay_s)
  },

  't/req.t TEST7 (cancel returns the slot), burst 40': (t, found) => {
    const { bucket, send, shaper, clock } = live(found)
    const delays = found.expect_delay_s.map(() => {
      const delay = bucket.level(clock.now()) / bucket.limits.rate / 1_000
      const verdict = send()
      if (verdict instanceof Ticket) t.equal(shaper.cancel(verdict), true)
      return delay
    })
    t.same(delays, found.expect_delay_s)
  },

  'nginx-tests limit_req.t (BSD-2), burst 1': (t, found) => {
    t.match(found.script, /^3 back-to-back/)
    const statuses = decisions(run([bucketOf(found)], burst(3), { mode: 'meter' }))
    t.same(
      statuses.map(decision => (decision === 'pass' ? '200' : '503')),
      found.expect,
    )
  },

  // Bodies are the forwarder's part. Ours is that the second request is delayed, by less than the 0.6 s of the script.
  'nginx-tests limit_req.t, burst 5': (t, found) => {
    t.match(found.script, /after 0\.6 s$/)
    t.same(slots(run([bucketOf(found)], burst(2))), [0, 500])
  },

  "nginx-tests limit_req.t 'rejects not counted', burst 1": (t, found) => {
    for (const mode of ['shape', 'meter'] as const) {
      const outcome = run([bucketOf(found)], [...burst(2), ...burst(49, 10, 10), { at: 501 }], { mode })
      t.same(outcome.admitted, [0, 1, 51], mode)
    }
    t.equal(found.expect, '200')
  },

  "nginx-tests limit_req.t 'negative excess', burst 1": (t, found) => {
    const arrivals = found.at_ms.map(at => ({ at }))
    for (const mode of ['shape', 'meter'] as const) {
      const { released, outcomes } = run([bucketOf(found)], arrivals, { mode })
      t.equal(released.length, (found.expect as string[]).length, mode)
      t.ok(outcomes.every(({ verdict }) => verdict === 'released'))
    }
  },

  // nginx sends the first two at once ("delay=1"): a burst of 2. Without one that is "delay=0". Both admit the same.
  'nginx-tests limit_req_delay.t, burst 2': (t, found) => {
    const outcome = run(
      [bucketOf(found)],
      found.at_ms.map(at => ({ at })),
    )
    const expected = (found.expect as string[]).map(status => (status.startsWith('200') ? 'pass' : 'reject'))
    t.same(decisions(outcome), expected)
    t.same(slots(outcome), [0, 2_000, 4_000])
    const delayed = run(
      [{ ...bucketOf(found), burst: 2 }],
      found.at_ms.map(at => ({ at })),
    )
    t.same(decisions(delayed), expected)
    const atOnce = (found.expect as string[])
      .filter(status => status.startsWith('200'))
      .map(status => !/delay/.test(status))
    t.same(
      delayed.released.map(({ arrival, slot }) => slot === arrival.at),
      atOnce,
    )
    t.same(slots(delayed).at(-1), 2_000)
  },

  'nginx-tests limit_req2.t, burst -': (t, found) => {
    t.match(found.script, /1000 r\/s and 1 r\/min.*both limits must pass/)
    const stack = [limits(1_000, 1, 'fast'), limits(1 / 60, 1, 'slow')]
    const both = run(stack, [{ at: 0 }, { at: 10 }, { at: 59_999 }, { at: 60_000 }])
    t.same(decisions(both), ['pass', 'reject', 'reject', 'pass'])
    t.same(
      both.outcomes[1]!.rejection!.buckets.map(bucket => bucket.limits.name),
      ['slow'],
    )
    const [fast] = [...both.bucketTable.entries('fast')].map(([, bucket]) => bucket.level(10))
    t.ok(fast !== undefined && fast <= 1, 'what the slow one refuses does not fill the fast one')
    t.same(decisions(run([stack[0]!], [{ at: 0 }, { at: 10 }, { at: 10 }])), ['pass', 'pass', 'reject'])
    t.same(decisions(run([], burst(100))), Array(100).fill('pass'), 'a request without a key in either is not limited')
  },
}

t.same(cases.map(name).sort(), Object.keys(handlers).sort(), 'every case of the file is handled, and no other')

for (const found of cases) {
  t.test(name(found), async t => {
    const handler = handlers[name(found)]
    if (handler === undefined) return t.fail('no handler')
    handler(t, found as Case)
  })
}
