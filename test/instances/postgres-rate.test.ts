/** One rate on PostgreSQL. */
import t from 'tap'
import { startPostgres } from '../servers/postgres.js'
import { checkAccount, checkBound, checkOrder, checkRate, finish, LONG, startTrial } from './trial.js'

const CLIENTS = Array.from({ length: 8 }, (_, at) => `client-${at}`)

t.test('four instances on one PostgreSQL', async t => {
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  const trial = await startTrial(t, {
    store: { type: 'postgres', url: postgres.url, timeout: '2s' },
    buckets: { everyone: { key: 'all', rate: '50/s', capacity: 100 } },
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS,
    1,
  )
  await trial.at(LONG ? 21_000 : 6_000)
  const outcome = await finish(trial)
  checkRate(t, trial, outcome, { rate: 50 })
  checkBound(t, outcome, 50)
  checkOrder(t, outcome, () => 'everyone')
  checkAccount(t, trial, outcome)
})
