/** Sets the clock of the store by an hour, forward and back, under load: real servers, instances in this process. */
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { BucketLimits } from '../../src/core/bucket/queued-bucket.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { Gate, type LaneRoute } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { FRAME } from '../../src/decider/constants.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import { Sharing } from '../../src/sharing/sharing.js'
import { createRedisStore } from '../../src/stores/redis/store.js'
import { startRedis } from '../servers/redis.js'
import { longestPause, machinePauses, type Pause, rateOf, type Seen, worstWindow } from './figures.js'
import { now } from './load.js'
import { startUpstream } from './system.js'
import { LONG } from './trial.js'

const HOUR = 3_600_000
const RATE = 200
const limits: BucketLimits = { name: 'everyone', rate: RATE / 1_000, capacity: 200 }
/** The time of Redis, and the offset that a key adds. */
const SETTABLE =
  "(function() local t = redis.call('TIME') return tonumber(t[1]) * 1000 + tonumber(t[2]) / 1000 end)() + tonumber(redis.call('GET', 'ahead') or 0)"

/** How long each setting of the clock lasts, in ms, and how much of that is left out for recovery. */
const PART = LONG ? 6_000 : 3_500
const RECOVERY = 2_000

const clock = createTimerClock()

/** The pauses of this process from any cause: four instances share one thread here. */
function watchPauses(t: Test): Pause[] {
  const pauses: Pause[] = []
  let last = now()
  const timer = setInterval(() => {
    const at = now()
    if (at - last > 5) pauses.push({ from: last, to: at, cpu: 0 })
    last = at
  }, 2)
  t.teardown(() => clearInterval(timer))
  return pauses
}

t.test('the rate holds at any setting of the clock', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const upstream = await startUpstream()
  t.teardown(() => upstream.close())
  const pauses = watchPauses(t)
  const sent: Seen[] = []
  const tally = { asked: 0, refused: 0, expired: 0 }
  let stopped = false

  async function startInstance(id: string): Promise<() => void> {
    const store = createRedisStore({ url: redis.url, prefix: 'shaper:', timeout: 250, clock, timeSource: SETTABLE })
    const sharing = new Sharing({ store, onOutage: 'local', clock, id })
    t.teardown(() => sharing.close())
    const shaper = new Shaper({ clock, share: sharing.shareBy(clock) })
    t.teardown(() => shaper.engine.close())
    const bucketTable = new BucketTable(1e9, (limits, key) => sharing.createBucket(limits, key))
    const gate = new Gate()
    const route: LaneRoute = { name: 'route', gate }
    t.ok(
      await sharing.join({
        shaper,
        clock,
        buckets: () => bucketTable.all(),
        peek: (name, key) => bucketTable.peek(name, key),
        gates: () => [gate],
      }),
    )
    const ask = (): void => {
      if (stopped) return
      tally.asked += 1
      const own = sharing.limitsOf(limits, 'all')
      const bucket = bucketTable.find(own, 'all', clock.now())!
      if (bucket.limits !== own) shaper.engine.setLimits(bucket, own)
      const released = (): void => {
        sent.push({ at: now(), path: id })
        gate.leave()
        setTimeout(ask, 1)
      }
      const callbacks = {
        release: released,
        expire: () => {
          tally.expired += 1
        },
        reject: () => undefined,
        decided: (verdict: unknown) => {
          if (verdict === 'released') released()
          else if (typeof verdict === 'object' && verdict !== null && 'reason' in verdict) {
            tally.refused += 1
            setTimeout(ask, 20)
          }
        },
      }
      shaper.arrive({ route, stack: [bucket], cost: 1 }, callbacks, 'shape', 10_000)
    }
    return ask
  }

  const asks = await Promise.all(['one', 'two', 'three', 'four'].map(startInstance))
  for (const ask of asks) for (let at = 0; at < 24; at += 1) ask()
  const steps: [from: number, to: number][] = []
  for (const ahead of [0, HOUR, 0, -HOUR, HOUR]) {
    await redis.command('SET', 'ahead', ahead)
    const from = now()
    await sleep(PART)
    steps.push([from, now()])
  }
  stopped = true
  while (sent.length < tally.asked - tally.refused && now() < steps.at(-1)![1] + 3_000) await sleep(20)

  // Another process stands for the store, because it gets the processor as rarely.
  const machine = [...pauses, ...machinePauses(upstream.notes().pauses)]
  for (const [place, [from, to]] of steps.entries()) {
    const rate = rateOf(sent, from + RECOVERY, to)
    const stood = machine
      .filter(pause => pause.to > from + RECOVERY && pause.from < to)
      .reduce((sum, pause) => sum + pause.to - pause.from, 0)
    const lost = stood / (to - from - RECOVERY)
    const told = `step ${place}: ${rate.toFixed(2)} per second; the machine took up to ${(lost * 100).toFixed(1)} %`
    if (LONG) t.comment(told)
    t.ok(rate <= RATE * 1.05 && rate >= RATE * (0.95 - lost), told)
  }
  const worst = worstWindow(sent, limits.rate)
  const pause = longestPause(machine, worst)
  const told = `the worst window is ${worst.excess.toFixed(2)} from the bound, with a pause of ${pause.toFixed(1)} ms, ${Math.round(worst.from - steps[0]![0])} to ${Math.round(worst.to - steps[0]![0])} ms`
  if (LONG) t.comment(told)
  // What was leased before a step may leave besides what is leased after it: at most a frame and the way to the store.
  t.ok(worst.excess <= (pause + FRAME + 10) * limits.rate, told)
  t.equal(sent.length, tally.asked - tally.refused, 'each is sent once')
  t.equal(tally.expired, 0)
})
