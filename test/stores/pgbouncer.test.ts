/** The PostgreSQL store behind the real PgBouncer: it decides as without, and leaves nothing in sessions that others get. */
import pg from 'pg'
import t from 'tap'
import { createPostgresStore } from '../../src/stores/postgres/store.js'
import { startPgBouncer, startPostgres } from '../servers/postgres.js'
import { until } from '../servers/redis.js'
import { newsConformance } from './board-conformance.js'
import { bucket, clock, conformance } from './conformance.js'

const server = await startPostgres()
t.teardown(() => server.close())
const urls = {
  session: await startPgBouncer(t, server, 'session'),
  transaction: await startPgBouncer(t, server, 'transaction'),
}

function create(mode: keyof typeof urls, table: string) {
  return createPostgresStore({ url: urls[mode], table, timeout: 2_000, clock })
}

function pairOf(mode: keyof typeof urls, table: string) {
  return async () => {
    const [store, other] = [create(mode, table), create(mode, table)]
    return { store, other, close: async () => void (await Promise.all([store.close(), other.close()])) }
  }
}

for (const mode of ['session', 'transaction'] as const) conformance(`PgBouncer, ${mode} mode`, pairOf(mode, mode))
newsConformance('PgBouncer, session mode', pairOf('session', 'news'))

t.test('in transaction mode nothing is left in the sessions', async t => {
  const { store, other, close } = await pairOf('transaction', 'left')()
  t.teardown(close)
  for (const each of [store, other]) each.listen!(() => undefined)
  const stack = [bucket(1, 1_000)]
  await Promise.all(
    Array.from({ length: 50 }, (_, at) =>
      [store, other][at % 2]!.admit({ stack, cost: 1, maxWait: Infinity, claim: false }),
    ),
  )
  await store.board!.setOverride({ bucket: 'client', key: 'k', rate: 1, endsIn: 10_000 })
  await until('the other asks for it', async () => (await other.board!.overrides()).length === 1)
  const application = new pg.Client({ connectionString: urls.transaction })
  await application.connect()
  t.teardown(() => application.end())
  // What PgBouncer sets itself for each client.
  const told = ['application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings']
  const { rows } = await application.query(
    `SELECT (SELECT array_agg(name) FROM pg_settings WHERE source = 'session' AND name <> ALL ($1)) AS settings,
      (SELECT array_agg(name) FROM pg_prepared_statements) AS prepared, (SELECT array_agg(c) FROM pg_listening_channels() c) AS channels`,
    [told],
  )
  t.strictSame(rows, [{ settings: null, prepared: null, channels: null }])
})
