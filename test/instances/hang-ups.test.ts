/** Clients that hang up while they wait do not use up the rate. */
import t from 'tap'
import { startRedis } from '../servers/redis.js'
import { checkAccount, checkBound, checkOrder, checkRate, finish, LONG, startTrial } from './trial.js'

const CLIENTS = Array.from({ length: 8 }, (_, at) => `client-${at}`)

t.test('three of ten hang up while they wait', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const trial = await startTrial(t, {
    store: { type: 'redis', url: redis.url, timeout: '2s' },
    buckets: { everyone: { key: 'all', rate: '200/s', capacity: 400 } },
    // They wait for about 500 ms.
    leaves: () => (Math.random() < 0.3 ? Math.random() * 400 : undefined),
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS,
    4,
  )
  await trial.at(LONG ? 21_000 : 5_000)
  const outcome = await finish(trial)
  const left = trial.load.count('left') / trial.load.sent
  t.ok(left > 0.2, `${left} have hung up`)
  checkRate(t, trial, outcome, { rate: 200, within: 0.03 })
  checkBound(t, outcome, 200)
  checkOrder(t, outcome, () => 'everyone')
  checkAccount(t, trial, outcome)
})
