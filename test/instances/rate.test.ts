/** One rate with any number of instances: a real upstream behind four real instances on one Redis. */
import t from 'tap'
import { Client } from 'undici'
import { startRedis, until } from '../servers/redis.js'
import { clientOf } from './load.js'
import { checkAccount, checkBound, checkOrder, checkRate, finish, LONG, measured, startTrial } from './trial.js'

const DURATION = LONG ? 21_000 : 5_000
const CLIENTS = Array.from({ length: 12 }, (_, at) => `client-${at}`)

const redis = await startRedis()
t.teardown(() => redis.stop())

let trials = 0
/** The machine may pause. That must not count as an outage. */
const store = () => ({ type: 'redis', url: redis.url, prefix: `trial-${++trials}:`, timeout: '2s' })

t.test('one shared bucket: the rate, the bound and the order', async t => {
  const trial = await startTrial(t, {
    store: store(),
    buckets: { everyone: { key: 'all', rate: '200/s', capacity: 200 } },
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS.slice(0, 8),
    3,
  )
  await trial.at(DURATION)
  const outcome = await finish(trial)
  checkRate(t, trial, outcome, { rate: 200 })
  checkBound(t, outcome, 200)
  checkOrder(t, outcome, () => 'everyone')
  checkAccount(t, trial, outcome)
})

/** The influence of the machine on a single instance without a store. */
t.test('for comparison: one instance with a bucket of its own', { skip: !LONG }, async t => {
  const trial = await startTrial(t, {
    store: 'memory',
    buckets: { everyone: { key: 'all', rate: '200/s', capacity: 200 } },
    count: 1,
  })
  trial.load.addAll([trial.instances[0]!.url], CLIENTS.slice(0, 8), 12)
  await trial.at(DURATION)
  const outcome = await finish(trial)
  checkRate(t, trial, outcome, { rate: 200 })
  checkBound(t, outcome, 200)
})

t.test('stacks: each client has its rate, and all together have theirs', async t => {
  const trial = await startTrial(t, {
    store: store(),
    buckets: {
      client: { key: 'header:x-client', rate: '20/s', capacity: 40 },
      everyone: { key: 'all', rate: '200/s', capacity: 200 },
    },
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS,
    2,
  )
  await trial.at(DURATION)
  const outcome = await finish(trial)
  checkRate(t, trial, outcome, { rate: 200 })
  checkBound(t, outcome, 200)
  for (const client of CLIENTS)
    checkBound(t, outcome, 20, { what: client, of: ({ path }) => clientOf(path) === client })
  checkOrder(t, outcome)
  checkAccount(t, trial, outcome)
})

for (const mode of ['meter', 'shape']) {
  t.test(`${mode}: a burst over four instances is admitted up to b`, async t => {
    const trial = await startTrial(t, {
      store: store(),
      buckets: { everyone: { key: 'all', rate: '1/h', capacity: 40 } },
      route: { mode, maxWait: undefined },
    })
    const { load, instances } = trial
    const connections = instances.flatMap(({ url }) => Array.from({ length: 15 }, () => new Client(url)))
    t.teardown(async () => void (await Promise.all(connections.map(connection => connection.destroy()))))
    const asked = connections.map(connection => load.ask(connection, 'burst'))
    // In `shape` one request leaves at once. The others would wait for hours.
    const passes = mode === 'meter' ? 40 : 1
    await until('all are decided on', () => load.count('rejected') >= 20 && load.count('ok') >= passes)
    for (const connection of connections) void connection.destroy()
    await Promise.all(asked)
    t.equal(load.count('rejected'), 20)
    t.equal(measured(await trial.upstream.seen()).length, passes)
  })
}
