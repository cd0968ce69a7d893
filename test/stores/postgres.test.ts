import pg from 'pg'
import t from 'tap'
import { createPostgresStore, type PostgresOptions } from '../../src/stores/postgres/store.js'
import { createTime, startPostgres } from '../servers/postgres.js'
import { boardConformance } from './board-conformance.js'
import { clock, clockConformance, conformance } from './conformance.js'
import { exchangeConformance, exchangeModelled } from './exchange-conformance.js'
import { modelled, standing } from './model.js'

/** One for all suites: each has tables of its own. */
const server = await startPostgres()
t.teardown(() => server.close())

function create(table: string, timeout: number, more: Partial<PostgresOptions> = {}) {
  return createPostgresStore({ url: server.url, table, timeout, clock, ...more })
}

conformance('PostgreSQL', async () => {
  const [store, other] = [create('plain', 1_000), create('plain', 1_000)]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
})

let boards = 0
boardConformance('PostgreSQL', async () => {
  const table = `board_${++boards}`
  const [store, other] = [create(table, 2_000), create(table, 2_000)]
  return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
})

t.test('a NaN in PostgreSQL counts as 0', async t => {
  const store = create('healed', 1_000)
  t.teardown(() => store.close())
  const stack = [{ limits: { name: 'client', rate: 1e-6, capacity: 10 }, key: 'k', group: 'g' }]
  const ask = (cost: number) => store.admit({ stack, cost, maxWait: Infinity, claim: true })
  t.match(await ask(4), { admitted: true })
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  t.teardown(() => client.end())
  // As older versions have left it.
  const { rowCount } = await client.query("UPDATE healed SET level = 'NaN', free = 'NaN' WHERE level > 0")
  t.equal(rowCount, 1)
  t.match(await ask(10), { admitted: true, levels: [10], claim: { granted: true } })
  t.match(await ask(1), { admitted: false, reason: 'overflow' })
})

clockConformance('PostgreSQL', async () => {
  const time = await createTime(server, 'set_by')
  const store = create('clock', 1_000, {
    timeSource: `date_part('epoch', clock_timestamp()) * 1000 + ${time.sql}`,
  })
  return {
    store,
    setClock: time.set,
    async close() {
      await store.close()
      await time.close()
    },
  }
})

modelled('PostgreSQL', async () => {
  const time = await createTime(server, 'set_to')
  // In the model a clock goes back. A row that was pruned before that would be missing then.
  const store = create('modelled', 5_000, { timeSource: time.sql, clock: standing, pruneEvery: Infinity })
  return {
    store,
    setTime: time.set,
    async close() {
      await store.close()
      await time.close()
    },
  }
})

for (const suite of [exchangeConformance, exchangeModelled]) {
  suite('PostgreSQL', async () => {
    const time = await createTime(server, `time_of_${suite.name}`)
    const stores = [1, 2].map(() => create(suite.name, 5_000, { timeSource: time.sql, pruneEvery: Infinity }))
    return {
      stores,
      setTime: time.set,
      async close() {
        await Promise.all(stores.map(store => store.close()))
        await time.close()
      },
    }
  })
}
