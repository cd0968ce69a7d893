/** Reports on leases that come to a PostgreSQL far away at the same time: who has the bucket decides on all. */
import pg from 'pg'
import t, { type Test } from 'tap'
import type { BucketRef, LeaseAnswer } from '../../src/decider/record.js'
import { IDLE_REPORT, type Store } from '../../src/sharing/store.js'
import { createPostgresStore, type PostgresOptions } from '../../src/stores/postgres/store.js'
import { startRelay } from '../servers/distance.js'
import { createTime, startPostgres } from '../servers/postgres.js'
import { until } from '../servers/redis.js'
import { clock, conformance, perSecond } from './conformance.js'
import { modelled, standing } from './model.js'

/** ms. Nothing here may be late on a busy machine. */
const TIMEOUT = 10_000

const server = await startPostgres()
t.teardown(() => server.close())

let tables = 0

/** A store that takes any server for one that is far away. */
function create(more: Partial<PostgresOptions> = {}): Store {
  return createPostgresStore({ url: server.url, table: `table_${++tables}`, timeout: TIMEOUT, clock, far: -1, ...more })
}

function open(t: Test, more: Partial<PostgresOptions> = {}): Store {
  const store = create({ pruneEvery: Infinity, ...more })
  t.teardown(() => store.close())
  return store
}

/** ms by which their instances report again. Here nobody has gone meanwhile. */
const LATER = 60_000

conformance('PostgreSQL far away', async () => {
  const [store, other] = [create({ table: 'conforming' }), create({ table: 'conforming' })]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
})

modelled('PostgreSQL far away', async () => {
  const time = await createTime(server, 'time')
  const store = create({ timeSource: time.sql, clock: standing, pruneEvery: Infinity })
  return {
    store,
    setTime: time.set,
    async close() {
      await store.close()
      await time.close()
    },
  }
})

const demand = [{ priority: 3, weight: 1, cost: 2 }]

function report(store: Store, one: BucketRef, instance: number): LeaseAnswer | Promise<LeaseAnswer> {
  return store.lease!({ ...IDLE_REPORT, bucket: one, instance, demand, largest: 1, lead: LATER, lacks: 2, want: 1 })
}

/** Keeps the turns of a bucket until it is called. */
async function holdTurns(t: Test, table: string): Promise<() => Promise<void>> {
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  t.teardown(() => client.end())
  await client.query(`BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('"${table}"' || key, 0)) FROM ${table}`)
  return async () => void (await client.query('COMMIT'))
}

const waiting = async (): Promise<number> => {
  const [row] = await server.query<{ count: number }>(
    `SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND NOT granted`,
  )
  return row!.count
}

t.test('who has a bucket decides on all reports that wait for it', async t => {
  const table = `table_${++tables}`
  const [one, stores] = [perSecond(100, 100), [1, 2, 3, 4, 5].map(() => open(t, { table }))]
  for (const [at, store] of stores.entries()) await report(store, one, at)
  const release = await holdTurns(t, table)
  const asked = stores.map((store, at) => report(store, one, at))
  await until('all wait', async () => (await waiting()) === 5)
  await release()
  const answers = await Promise.all(asked)
  t.same(
    answers.map(({ instances }) => instances),
    [5, 5, 5, 5, 5],
  )
  const slots = answers.flatMap(({ slots }) => slots.map(({ token }) => token))
  t.ok(slots.length > 0)
  t.equal(new Set(slots).size, slots.length, 'each slot is dealt once')
  const left = await server.query<{ size: number }>(
    `SELECT octet_length(answer) AS size FROM ${table}_reports ORDER BY size`,
  )
  t.equal(left.length, 5)
  t.equal(left.filter(({ size }) => size > 10).length, 4, 'one has decided for four others')
})

t.test('an instance that ends while it decides keeps nobody from an answer', async t => {
  const table = `table_${++tables}`
  const relay = await startRelay(server.port, 0)
  t.teardown(() => relay.close())
  const far = open(t, { table, url: server.url.replace(`:${server.port}/`, `:${relay.port}/`) })
  const [near, one] = [open(t, { table }), perSecond(100, 100)]
  for (const [at, store] of [far, near].entries()) await report(store, one, at)
  const release = await holdTurns(t, table)
  const lost = relay.lose('silent', 100)
  const asked = t.rejects(Promise.resolve(report(far, one, 0)))
  await until('it waits', async () => (await waiting()) === 1)
  const answer = report(near, one, 1)
  await until('both wait', async () => (await waiting()) === 2)
  await release()
  // Its connection is closed, with the transaction in it.
  await lost
  relay.close()
  t.equal((await answer).instances, 2)
  await far.close()
  await asked
})

t.test('what another version has left is left to it', async t => {
  const table = `table_${++tables}`
  const [store, one] = [open(t, { table }), perSecond(100, 100)]
  await report(store, one, 1)
  await server.query(
    `INSERT INTO ${table}_reports SELECT key, '0 other', 1, deadline + 1e6, '\\x00' FROM ${table}_reports`,
  )
  t.equal((await report(store, one, 1)).instances, 1)
  const [other] = await server.query(`SELECT answer FROM ${table}_reports WHERE id = '0 other'`)
  t.same(other, { answer: null })
})

t.test('what nobody waits for any more is not decided on, and is deleted after a while', async t => {
  const table = `table_${++tables}`
  const [store, gone, one] = [open(t, { table }), open(t, { table }), perSecond(100, 100)]
  await report(gone, one, 1)
  await gone.close()
  const leave = (ago: number) =>
    server.query(`UPDATE ${table}_reports SET answer = NULL, deadline = deadline - ${TIMEOUT} - ${ago}`)
  await leave(100)
  t.equal((await report(store, one, 2)).instances, 2, 'it was there before')
  const count = async () =>
    (await server.query<{ count: number }>(`SELECT count(*)::int FROM ${table}_reports WHERE answer IS NULL`))[0]!.count
  t.equal(await count(), 1)
  await leave(60_000)
  await report(store, one, 2)
  t.equal(await count(), 0)
})

t.test('reports on many buckets, in any order and several of one, are all answered', async t => {
  const table = `table_${++tables}`
  const stores = Array.from({ length: 4 }, () => open(t, { table }))
  const refs = Array.from({ length: 12 }, () => perSecond(100, 100))
  const asked = Array.from({ length: 300 }, (_, at) => report(stores[at % 4]!, refs[(at * 5) % 12]!, at % 8))
  const answers = await Promise.all(asked)
  const tokens = new Map<BucketRef, unknown[]>(refs.map(ref => [ref, []]))
  for (const [at, { slots }] of answers.entries()) {
    tokens.get(refs[(at * 5) % 12]!)!.push(...slots.map(({ token }) => token))
  }
  for (const list of tokens.values()) t.equal(new Set(list).size, list.length, `${list.length} slots`)
})

t.test('a report may take two round trips more than the timeout', async t => {
  const relay = await startRelay(server.port, 150)
  t.teardown(() => relay.close())
  const store = open(t, { url: server.url.replace(`:${server.port}/`, `:${relay.port}/`), timeout: 400 })
  const one = perSecond(100, 100)
  // It takes 600 ms, on a busy machine more.
  await until('it is answered', () =>
    Promise.resolve(report(store, one, 1)).then(
      () => true,
      () => false,
    ),
  )
})

t.test('with its bucket a report is pruned', async t => {
  const table = `table_${++tables}`
  const store = open(t, { table, pruneEvery: 50 })
  await store.lease!({ ...IDLE_REPORT, bucket: perSecond(100, 10), instance: 1 })
  await until('both are gone', async () => {
    const [row] = await server.query(
      `SELECT (SELECT count(*) FROM ${table})::int AS rows, (SELECT count(*) FROM ${table}_reports)::int AS reports`,
    )
    return row!.rows === 0 && row!.reports === 0
  })
})
