/** The PostgreSQL store with failures of its server, its table or its clock. */

import { createServer } from 'node:net'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { BucketRef } from '../../src/decider/record.js'
import { type Store, StoreError } from '../../src/sharing/store.js'
import { SideConnection } from '../../src/stores/postgres/link.js'
import { createPostgresStore, migrate } from '../../src/stores/postgres/store.js'
import { type PostgresServer, startPostgres } from '../servers/postgres.js'
import { bucket, clock, perSecond } from './conformance.js'
import { endsWithin } from './ends-within.js'

/** ms. On a busy machine a connection alone may take some 100 ms. */
const TIMEOUT = 1_000

/** ms. So soon calls succeed again once the server is back. */
const BACK = 5_000

let tables = 0

let server: PostgresServer
t.before(async () => {
  server = await startPostgres()
})
t.teardown(() => server.close())

interface Options {
  table?: string
  timeout?: number
  pruneEvery?: number
  timeSource?: string
  url?: string
  onError?(error: Error): void
}

function open(t: Test, options: Options = {}): Store {
  const { table = `table_${tables++}`, timeout = TIMEOUT, url = server.url, ...more } = options
  const store = createPostgresStore({ url, table, timeout, clock, ...more })
  t.teardown(() => store.close())
  return store
}

async function levelOf(store: Store, ref: BucketRef): Promise<number> {
  return (await store.admit({ stack: [ref], cost: 0, maxWait: Infinity, claim: false })).levels[0]!
}

const admit = async (store: Store, ref: BucketRef, cost = 1) =>
  store.admit({ stack: [ref], cost, maxWait: Infinity, claim: false })

async function eventually(condition: () => Promise<boolean>, within: number, what: string): Promise<number> {
  const start = performance.now()
  while (!(await condition())) {
    if (performance.now() - start > within) throw new Error(`not within ${within} ms: ${what}`)
    await sleep(10)
  }
  return performance.now() - start
}

/** The errors of rejected calls, whether all have ended in time, and the time of the slowest. */
async function outcomes(calls: Promise<unknown>[]): Promise<{ errors: unknown[]; isInTime: boolean; took: number }> {
  const start = performance.now()
  const settled = Promise.allSettled(calls)
  const isInTime = await endsWithin(TIMEOUT + 100, settled)
  const results = await settled
  return {
    errors: results.flatMap(result => (result.status === 'rejected' ? [result.reason] : [])),
    isInTime,
    took: performance.now() - start,
  }
}

t.test('several instances create the table at once', async t => {
  const table = `table_${tables++}`
  const stores = Array.from({ length: 8 }, () => open(t, { table, timeout: 5_000 }))
  const one = bucket(1, 100)
  const levels = await Promise.all(stores.map(store => admit(store, one)))
  t.equal(levels.filter(({ admitted }) => admitted).length, 8)
  t.ok(Math.abs((await levelOf(stores[0]!, one)) - 8) < 0.01)
})

t.test('migrate creates the table, also twice, and reports a role without permission', async t => {
  const table = `table_${tables++}`
  await Promise.all([migrate({ url: server.url, table }), migrate({ url: server.url, table })])
  await migrate({ url: server.url, table })
  const [row] = await server.query<{ relpersistence: string; reloptions: string[] }>(
    'SELECT relpersistence, reloptions FROM pg_class WHERE relname = $1',
    [table],
  )
  t.equal(row!.relpersistence, 'u', 'unlogged')
  t.ok(row!.reloptions.includes('fillfactor=50'))

  await server.query(`CREATE ROLE poor LOGIN PASSWORD 'se%cret'`)
  await server.query('REVOKE CREATE ON SCHEMA public FROM PUBLIC')
  await server.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ${table} TO poor`)
  const url = server.url.replace('shaper@', 'poor:se%25cret@')
  const poor = open(t, { url, table })
  t.equal((await admit(poor, bucket(1, 1))).admitted, true, 'needs no right to create what is there')
  await t.rejects(migrate({ url, table: 'elsewhere' }), {
    code: 'SHAPER_STORE_UNAVAILABLE',
    message: /permission denied/,
  })
  const refused = await outcomes([admit(open(t, { url, table: 'elsewhere' }), bucket(1, 1))])
  t.match(refused.errors, [/permission denied/])
})

t.test('names with metacharacters', async t => {
  await server.query('CREATE SCHEMA "a b"')
  const names = [
    `we"ird'; DROP TABLE x; --`,
    'a b.c',
    'a b.$body$ "quoted" \\',
    '@now@ @table@ $1 $& %s',
    'ünïcode 😀',
    'SELECT',
    'n'.repeat(63),
  ]
  for (const table of names) {
    const store = open(t, { table, timeout: 5_000 })
    const one = bucket(1, 10, { key: `'; DROP TABLE "${table}" --`, name: `{"a\\"}` })
    await admit(store, one, 4)
    t.ok(Math.abs((await levelOf(store, one)) - 4) < 0.01, table)
    t.equal((await store.beat(`'"${table}`)).count, 1)
  }
  const [count] = await server.query<{ count: number }>(
    'SELECT count(*)::int FROM pg_class c WHERE relname = ANY ($1) AND relkind = $2',
    [names.map(name => name.replace('a b.', '')), 'r'],
  )
  t.equal(count!.count, names.length)
  for (const table of ['', '.', 'a.', 'a.b.c', 'n'.repeat(64), 'ü'.repeat(32), 'a\0b'])
    t.throws(() => open(t, { table }), RangeError, JSON.stringify(table))
})

t.test('a dropped table is created again', async t => {
  const table = `table_${tables++}`
  const store = open(t, { table, timeout: 5_000 })
  const one = bucket(1, 10)
  await admit(store, one)
  await server.query(`DROP TABLE ${table}`)
  const { levels } = await admit(store, one, 3)
  t.same(levels, [3])
})

t.test('a table of an older version gets the columns of leases, while that is in use', async t => {
  const table = `table_${tables++}`
  const [store, one] = [open(t, { table, timeout: 5_000 }), bucket(1, 10)]
  await admit(store, one, 3)
  const drop = () => server.query(`ALTER TABLE ${table} DROP leased_rate, DROP leased_until, DROP leases`)
  await drop()
  await migrate({ url: server.url, table })
  t.ok(Math.abs((await levelOf(store, one)) - 3) < 0.01, 'it goes on with what was there')
  await drop()
  const demand = [{ priority: 3, weight: 1, cost: 1 }]
  const report = {
    demand,
    largest: 1,
    lead: 10,
    late: 0,
    pace: Infinity,
    lacks: 0,
    held: 0,
    drained: 0,
    kept: 0,
    want: 2,
    ahead: 0,
    returned: [],
  }
  const { slots, room } = await store.lease!({ bucket: one, instance: 0.5, ...report })
  t.same([slots.length, room], [1, 2], 'a call that misses them adds them')
})

t.test('only drained instances are pruned', async t => {
  const table = `table_${tables++}`
  // Nothing is pruned before all is there.
  const store = open(t, { table, timeout: 5_000, pruneEvery: Infinity })
  const held = bucket(1, 10)
  await admit(store, held, 5)
  const claimed = perSecond(0.001)
  t.equal(((await store.claim({ stack: [claimed], cost: 1, since: 0 })) as { granted: boolean }).granted, true)
  const blocked = bucket(3_600_000_000, 10, { blockFor: 3_600_000 })
  await admit(store, blocked, 10)
  await Promise.all(Array.from({ length: 3_000 }, () => admit(store, perSecond(1_000, 10), 3)))
  await Promise.all(Array.from({ length: 20 }, () => admit(store, blocked, 10)))
  const pause = (pausedFor: number) => ({ pausedFor, rate: undefined, rateFor: 0 })
  await Promise.all([
    store.exchange('held', pause(3_600_000)),
    store.exchange('over', pause(1)),
    store.exchange('asked'),
  ])
  const count = async () => (await server.query<{ count: number }>(`SELECT count(*)::int FROM ${table}`))[0]!.count
  t.ok((await count()) >= 3_000)
  await admit(open(t, { table, timeout: 5_000 }), held, 0)
  await eventually(async () => (await count()) === 4, 10_000, 'four rows left')
  t.ok((await store.exchange('held')).pausedFor > 3_500_000)
  t.ok(Math.abs((await levelOf(store, held)) - 5) < 0.01)
  t.equal(((await store.claim({ stack: [claimed], cost: 1, since: 0 })) as { granted: boolean }).granted, false)
  t.match(await admit(store, blocked), { reason: 'blocked' })
})

t.test('a busy row needs no vacuum', async t => {
  const table = `table_${tables++}`
  const store = open(t, { table, timeout: 5_000 })
  const one = perSecond(1_000)
  for (let count = 0; count < 300; count += 1) await admit(store, one)
  const stat = async () =>
    (
      await server.query<{ updated: number; hot: number }>(
        'SELECT n_tup_upd::int AS updated, n_tup_hot_upd::int AS hot FROM pg_stat_user_tables WHERE relname = $1',
        [table],
      )
    )[0]!
  await eventually(async () => (await stat()).updated >= 300, 20_000, 'statistics')
  const { updated, hot } = await stat()
  t.equal(hot, updated)
})

t.test('simultaneous stacks in any order do not deadlock', async t => {
  const table = `table_${tables++}`
  const stores = Array.from({ length: 4 }, () => open(t, { table, timeout: 10_000 }))
  const refs = Array.from({ length: 20 }, () => bucket(1, 1_000_000))
  const calls = Array.from({ length: 2_000 }, (_, index) => {
    const stack = [0, 7, 11].map(step => refs[(index * 13 + step * (1 + (index % 3))) % refs.length]!)
    return stores[index % 4]!.admit({ stack, cost: 1, maxWait: Infinity, claim: false })
  })
  t.same((await outcomes(calls as Promise<unknown>[])).errors, [])
  const levels = await Promise.all(refs.map(ref => levelOf(stores[0]!, ref)))
  t.ok(Math.abs(levels.reduce((a, b) => a + b) - 6_000) < 1, `${levels}`)
})

t.test('a stopped server: calls are rejected in time and not executed later', async t => {
  const store = open(t)
  const one = bucket(1, 1_000)
  for (let count = 0; count < 10; count += 1) await admit(store, one)
  for (const pause of [600, 2_500]) {
    const before = await levelOf(store, one)
    server.pause()
    let rejected = 0
    try {
      const start = performance.now()
      while (performance.now() - start < pause) {
        const { errors, isInTime, took } = await outcomes(Array.from({ length: 40 }, () => admit(store, one)))
        rejected += errors.length
        t.ok(errors.every(error => error instanceof StoreError))
        t.equal(errors.length, 40)
        t.ok(isInTime, `rejected after ${took} ms`)
        await sleep(20)
      }
    } finally {
      server.resume()
    }
    let level = 0
    await eventually(
      () =>
        levelOf(store, one).then(
          got => {
            level = got
            return true
          },
          () => false,
        ),
      BACK,
      'back',
    )
    await sleep(300)
    level = await levelOf(store, one)
    t.ok(rejected >= 40 && Math.abs(level - before) < 0.01, `${rejected} rejected, level ${level} after ${before}`)
  }
})

t.test('a pause of this process is not taken for an outage', async t => {
  const store = open(t)
  const one = bucket(1, 10)
  await admit(store, one)
  const asked = [admit(store, one), admit(store, one)]
  // The pause begins after they are sent.
  await new Promise(resolve => setImmediate(resolve))
  // After twice that time a connection without an answer counts as stuck.
  const end = performance.now() + 2 * TIMEOUT + 100
  while (performance.now() < end);
  t.same((await outcomes(asked)).errors, [])
})

t.test('a lock that another client holds for long: calls are rejected in time and not executed later', async t => {
  const table = `table_${tables++}`
  const store = open(t, { table })
  const one = bucket(1, 1_000)
  await admit(store, one)
  const held = server.query(
    `WITH locked AS MATERIALIZED (SELECT key FROM ${table} FOR UPDATE) SELECT pg_sleep(3) FROM locked`,
  )
  await eventually(
    async () => {
      const [row] = await server.query(`SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'`)
      return row !== undefined
    },
    BACK,
    'locked',
  )
  const { errors, isInTime, took } = await outcomes(Array.from({ length: 10 }, () => admit(store, one)))
  t.equal(errors.length, 10)
  t.ok(isInTime, `rejected after ${took} ms`)
  await held
  t.ok(Math.abs((await levelOf(store, one)) - 1) < 0.01)
})

t.test('a server that is killed and started again', async t => {
  const seen: Error[] = []
  const store = open(t, { onError: error => seen.push(error) })
  const one = bucket(1, 1_000)
  await Promise.all(Array.from({ length: 200 }, () => admit(store, one)))
  await server.kill()
  const first = await outcomes([admit(store, one)])
  t.equal(first.errors.length, 1)
  t.ok(first.isInTime, `rejected after ${first.took} ms`)
  const { errors, isInTime, took } = await outcomes(Array.from({ length: 50 }, () => admit(store, one)))
  t.ok(errors.length === 50 && errors.every(error => error instanceof StoreError))
  t.ok(isInTime, `rejected after ${took} ms`)
  await server.start()
  const back = await eventually(
    () =>
      admit(store, one).then(
        () => true,
        () => false,
      ),
    BACK,
    'back',
  )
  t.comment(`back after ${Math.round(back)} ms`)
  t.ok(seen.length > 0, 'onError was told of the lost connections')
})

t.test('a server that is down from the start', async t => {
  await server.kill()
  const store = open(t)
  const calls = [admit(store, bucket(1, 1)), store.beat('a'), store.exchange('a')] as Promise<unknown>[]
  const { errors, isInTime, took } = await outcomes(calls)
  t.ok(errors.length === 3 && errors.every(error => error instanceof StoreError))
  t.ok(isInTime, `rejected after ${took} ms`)
  await server.start()
  await eventually(
    () =>
      admit(store, bucket(1, 1)).then(
        ({ admitted }) => admitted,
        () => false,
      ),
    BACK,
    'back',
  )
})

t.test('a server that accepts connections and stays silent', async t => {
  const sockets = new Set<{ destroy(): void }>()
  const silent = createServer(socket => {
    sockets.add(socket)
    socket.on('error', () => {})
  })
  await new Promise<void>(resolve => silent.listen(0, '127.0.0.1', resolve))
  const { port } = silent.address() as { port: number }
  const store = open(t, { url: `postgres://u:secret@127.0.0.1:${port}/d` })
  const { errors, isInTime, took } = await outcomes(Array.from({ length: 10 }, () => admit(store, bucket(1, 1))))
  t.equal(errors.length, 10)
  t.ok(took >= TIMEOUT - 1 && isInTime, `rejected after ${took} ms`)
  await store.close()
  for (const socket of sockets) socket.destroy()
  await new Promise(resolve => silent.close(resolve))
})

t.test('a side connection that cannot be prepared leaves no other one behind', async t => {
  const heard: string[] = []
  let opened = 0
  const side = new SideConnection({
    url: server.url,
    timeout: 2_000,
    channel: 'side',
    async prepare() {
      opened += 1
      if (opened === 1) throw new Error('not yet')
    },
    received: payload => void heard.push(payload),
  })
  t.teardown(() => side.close())
  side.listen()
  const [first, second] = await Promise.allSettled([side.query('SELECT 1'), side.query('SELECT 2 AS two')])
  t.match(first, { status: 'rejected', reason: { code: 'SHAPER_STORE_UNAVAILABLE' } })
  t.match(second, { status: 'fulfilled', value: [{ two: 2 }] }, 'the next one opens another')
  await side.query("SELECT pg_notify('side', 'news')")
  await eventually(async () => heard.length > 0, BACK, 'the news is heard')
  await side.query('SELECT 1')
  t.same([opened, heard], [2, ['news']], 'there is one, and it is kept')
})

t.test('a statement that has timed out while a connection was opened is not run later', async t => {
  let isOpen = (): void => undefined
  const opening = new Promise<void>(resolve => {
    isOpen = resolve
  })
  const side = new SideConnection({
    url: server.url,
    timeout: 1_000,
    channel: 'side',
    prepare: () => opening,
    received: () => undefined,
  })
  t.teardown(() => side.close())
  const ran: string[] = []
  const run = (name: string) => side.run(async () => ran.push(name))
  await t.rejects(run('late'), new StoreError('PostgreSQL has not answered within 1000 ms'))
  isOpen()
  await run('next')
  t.same(ran, ['next'])
})

t.test('closing rejects open calls', async t => {
  const store = open(t)
  await admit(store, bucket(1, 1))
  const asked = outcomes([admit(store, bucket(1, 1)), admit(store, bucket(1, 1))])
  await store.close()
  t.match((await asked).errors, [{ message: 'the store is closed' }, { message: 'the store is closed' }])
  await t.rejects(admit(store, bucket(1, 1)), { code: 'SHAPER_STORE_UNAVAILABLE' })
  await store.close()
})

t.test('no error shows the password', async t => {
  const urls = [
    `postgres://shaper:hunter2@127.0.0.1:1/postgres`,
    `postgres://shaper:hunter2@127.0.0.1:${server.port}/nowhere`,
    `postgres://shaper:hunter2@127.0.0.1:${server.port}/postgres?sslmode=require`,
    `postgres://shaper:hunter2@host:not-a-port/postgres`,
    `postgres://nobody:hunter2@127.0.0.1:${server.port}/postgres`,
  ]
  for (const url of urls) {
    const seen: unknown[] = []
    const store = open(t, { url, onError: error => seen.push(error) })
    seen.push(...(await outcomes([admit(store, bucket(1, 1))])).errors)
    seen.push(...(await outcomes([migrate({ url, table: 'x' })])).errors)
    t.ok(seen.length >= 2 && seen.every(error => error instanceof Error))
    for (let error of seen as (Error | undefined)[]) {
      for (; error !== undefined; error = error.cause as Error | undefined) {
        const shown = `${error.stack} ${JSON.stringify(error, Object.getOwnPropertyNames(error))}`
        t.notMatch(shown, /hunter2/, url)
      }
    }
    await store.close()
  }
})
