import pg from 'pg'
import { createPostgresStore } from '../../src/stores/postgres/store.js'
import { startPostgres } from '../servers/postgres.js'
import { clock, clockConformance, conformance } from './conformance.js'
import { exchangeConformance, exchangeModelled } from './exchange-conformance.js'
import { modelled } from './model.js'

conformance('PostgreSQL', async () => {
  const server = await startPostgres()
  const options = { url: server.url, table: 'shaper_buckets', timeout: 1_000, clock }
  const [store, other] = [createPostgresStore(options), createPostgresStore(options)]
  return {
    store,
    other,
    async close() {
      await Promise.all([store.close(), other.close()])
      await server.close()
    },
  }
})

clockConformance('PostgreSQL', async () => {
  const server = await startPostgres()
  await server.query('CREATE TABLE set_by (ms float8)')
  await server.query('INSERT INTO set_by VALUES (0)')
  const store = createPostgresStore({
    url: server.url,
    table: 'shaper_buckets',
    timeout: 1_000,
    clock,
    timeSource: `date_part('epoch', clock_timestamp()) * 1000 + (SELECT ms FROM set_by)`,
  })
  return {
    store,
    setClock: ms => server.query('UPDATE set_by SET ms = $1', [ms]),
    async close() {
      await store.close()
      await server.close()
    },
  }
})

modelled('PostgreSQL', async () => {
  const server = await startPostgres()
  const client = new pg.Client({ connectionString: server.url })
  await client.connect()
  await client.query('CREATE TABLE set_to (ms float8)')
  await client.query('INSERT INTO set_to VALUES (0)')
  const store = createPostgresStore({
    url: server.url,
    table: 'shaper_buckets',
    timeout: 5_000,
    clock,
    timeSource: '(SELECT ms FROM set_to)',
  })
  return {
    store,
    setTime: ms => client.query({ name: 'set', text: 'UPDATE set_to SET ms = $1', values: [ms] }),
    async close() {
      await store.close()
      await client.end()
      await server.close()
    },
  }
})

for (const suite of [exchangeConformance, exchangeModelled]) {
  suite('PostgreSQL', async () => {
    const server = await startPostgres()
    await server.query('CREATE TABLE set_to (ms float8)')
    await server.query('INSERT INTO set_to VALUES (0)')
    const options = { url: server.url, table: 'shaper_buckets', timeout: 5_000, clock }
    const stores = [1, 2].map(() => createPostgresStore({ ...options, timeSource: '(SELECT ms FROM set_to)' }))
    return {
      stores,
      setTime: ms => server.query('UPDATE set_to SET ms = $1', [ms]),
      async close() {
        await Promise.all(stores.map(store => store.close()))
        await server.close()
      },
    }
  })
}
