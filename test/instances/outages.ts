/** Faults of a store under load, and what must hold in spite of them. */
import type { Test } from 'tap'
import type { RedisServer } from '../servers/redis.js'
import { startRedis } from '../servers/redis.js'
import { now } from './load.js'
import { checkAccount, checkBound, checkRate, finish, LONG, startTrial, type Trial } from './trial.js'

const CLIENTS = Array.from({ length: 8 }, (_, at) => `client-${at}`)
const RATE = 200

/** The time of the fault, and the time for recovery, in ms. */
const FAULT = 2_000
const RECOVERY = 2_000
/** How long the rate is measured afterwards, in ms. */
const AFTER = LONG ? 5_000 : 1_500
const FROZEN = LONG ? 5_000 : 3_000

interface Fault {
  readonly name: string
  /** Causes the fault. Resolves when the store is back. */
  run(redis: RedisServer, trial: Trial): Promise<void>
  /** The span in which instances are alone, in ms from the fault. */
  readonly alone?: readonly [from: number, to: number]
}

const FAULTS: readonly Fault[] = [
  {
    name: 'the store is killed and starts again, empty',
    async run(redis, trial) {
      await redis.kill()
      await trial.at(FAULT + 2_000)
      await redis.start()
    },
    alone: [700, 2_000],
  },
  { name: 'the store loses its data', run: async redis => void (await redis.command('FLUSHALL')) },
  {
    name: 'the store is frozen',
    async run(redis, trial) {
      redis.signal('SIGSTOP')
      await trial.at(FAULT + FROZEN)
      redis.signal('SIGCONT')
    },
    alone: [700, FROZEN],
  },
]

export function testOutages(t: Test, onOutage: 'local' | 'closed'): void {
  for (const { name, run, alone } of FAULTS) {
    t.test(`${onOutage}: ${name}`, async t => {
      const { trial, redis } = await start(t, onOutage)
      await trial.at(FAULT)
      await run(redis, trial)
      const back = now() - trial.begin
      await trial.at(back + RECOVERY + AFTER)
      const outcome = await finish(trial)
      checkBound(t, outcome, RATE)
      checkAccount(t, trial, outcome)
      if (alone !== undefined && onOutage === 'local') {
        checkRate(t, trial, outcome, { rate: RATE, from: FAULT + alone[0], to: FAULT + alone[1], within: 0.05 })
      }
      checkRate(t, trial, outcome, { rate: RATE, from: back + RECOVERY, to: back + RECOVERY + AFTER, within: 0.05 })
      const unavailable = trial.load.count('unavailable')
      if (onOutage === 'local') t.equal(unavailable, 0)
      else if (alone !== undefined) t.ok(unavailable > 0, `${unavailable} turned away`)
    })
  }
}

export function testCrash(t: Test): void {
  t.test('an instance is killed: the others get the whole rate', async t => {
    const { trial } = await start(t, 'local')
    await trial.at(FAULT)
    await trial.instances[0]!.kill()
    await trial.at(FAULT + RECOVERY + AFTER)
    const outcome = await finish(trial)
    checkBound(t, outcome, RATE)
    checkAccount(t, trial, outcome)
    checkRate(t, trial, outcome, { rate: RATE, from: FAULT + RECOVERY, within: 0.05 })
    checkRate(t, trial, outcome, { rate: RATE, from: FAULT, to: FAULT + RECOVERY, within: 0.05 })
    const cut = trial.load.count('cut')
    // Each of its connections may have asked once more before it noticed.
    t.ok(cut > 0 && cut <= CLIENTS.length * 6, `${cut} were cut`)
  })
}

async function start(t: Test, onOutage: string): Promise<{ trial: Trial; redis: RedisServer }> {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const trial = await startTrial(t, {
    store: { type: 'redis', url: redis.url, onOutage },
    buckets: { everyone: { key: 'all', rate: `${RATE}/s`, capacity: 200 } },
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS,
    3,
  )
  return { trial, redis }
}
