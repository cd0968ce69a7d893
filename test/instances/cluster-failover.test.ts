/** Kills the server of a Redis Cluster that holds the bucket under load. Its replica takes over. */
import t from 'tap'
import { hashSlot, hashTag } from '../../src/stores/redis/keys.js'
import { startCluster, until } from '../servers/redis.js'
import { now } from './load.js'
import { checkAccount, checkBound, checkRate, finish, LONG, startTrial } from './trial.js'

const CLIENTS = Array.from({ length: 8 }, (_, at) => `client-${at}`)
const FAULT = 2_000
const RECOVERY = 2_000
const AFTER = LONG ? 6_000 : 2_000

t.test('a replica takes over', async t => {
  const cluster = await startCluster({ replicas: 1 })
  t.teardown(() => cluster.stop())
  const [first] = cluster.masters
  const [replica] = cluster.replicas
  // Only the first server has a replica. It holds the first third of the slots.
  const name = Array.from({ length: 100 }, (_, at) => `everyone-${at}`).find(it => hashSlot(hashTag(it)) < 5_000)!
  const trial = await startTrial(t, {
    store: { type: 'redis', cluster: cluster.urls, onOutage: 'local' },
    buckets: { [name]: { key: 'all', rate: '200/s', capacity: 200 } },
  })
  trial.load.addAll(
    trial.instances.map(({ url }) => url),
    CLIENTS,
    3,
  )
  await trial.at(FAULT)
  await first!.kill()
  await until('the replica has taken over', async () =>
    String(await replica!.command('CLUSTER', 'NODES')).includes('myself,master'),
  )
  await until('the cluster is well', async () =>
    String(await replica!.command('CLUSTER', 'INFO')).includes('cluster_state:ok'),
  )
  const back = now() - trial.begin
  t.comment(`the cluster was without it for ${Math.round(back - FAULT)} ms`)
  await trial.at(back + RECOVERY + AFTER)
  const outcome = await finish(trial)
  checkBound(t, outcome, 200)
  checkAccount(t, trial, outcome)
  checkRate(t, trial, outcome, { rate: 200, from: back + RECOVERY, to: back + RECOVERY + AFTER, within: 0.05 })
  t.equal(trial.load.count('unavailable'), 0)
})
