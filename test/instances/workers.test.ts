/** The workers of one instance keep one rate, also when one of them dies. */
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startRedis, until } from '../servers/redis.js'
import { checkAccount, checkBound, checkRate, finish, LONG, startTrial } from './trial.js'

const CLIENTS = Array.from({ length: 8 }, (_, at) => `client-${at}`)
const PART = LONG ? 10_000 : 3_000

for (const name of ['Redis', 'the first process']) {
  t.test(`two workers keep one rate by ${name}, and a killed worker is replaced`, async t => {
    const redis = name === 'Redis' ? await startRedis() : undefined
    t.teardown(() => redis?.stop())
    const trial = await startTrial(t, {
      store: redis === undefined ? 'memory' : { type: 'redis', url: redis.url, timeout: '2s' },
      buckets: { everyone: { key: 'all', rate: '200/s', capacity: 200 } },
      count: 1,
      args: ['--workers', '2'],
      processes: 2,
      patience: 5_000,
    })
    const [instance] = trial.instances
    trial.load.addAll([instance!.url], CLIENTS, 8)
    await trial.at(1_000 + PART)
    const working = () => instance!.notes().filter(({ sent }) => sent.length > 0)
    const before = working()
    t.equal(before.length, 2, 'both work')
    process.kill(before[0]!.pid, 'SIGKILL')
    const killed = performance.now()
    // Clients reconnect to the remaining workers. The new worker gets some of the later connections.
    await until('another one takes its place', async () => {
      trial.load.add(instance!.url, 'late', 1)
      await sleep(100)
      return working().length === 3
    })
    if (LONG) t.comment(`replaced after ${Math.round(performance.now() - killed)} ms`)
    await trial.at(1_000 + PART + 2_000 + PART)
    const outcome = await finish(trial)
    checkRate(t, trial, outcome, { rate: 200, to: 1_000 + PART })
    checkRate(t, trial, outcome, { rate: 200, from: 1_000 + PART + 2_000, within: 0.05 })
    checkBound(t, outcome, 200)
    checkAccount(t, trial, outcome)
  })
}
