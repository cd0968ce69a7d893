/** Limits of single keys from a file or from PostgreSQL, in the program: it reads them in a thread. */
import { once } from 'node:events'
import { renameSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { Agent, request } from 'undici'
import type { Snapshot } from '../../src/admin/snapshot/snapshot.js'
import { blocks } from '../docs-code.js'
import { startPostgres } from '../servers/postgres.js'
import { startRedis, until } from '../servers/redis.js'
import { type Command, shaper, shaperHere } from './command.js'

type Teardown = { teardown(end: () => unknown): void; testdir(files: Record<string, string>): string }

async function startUpstream(t: Teardown): Promise<string> {
  const server = createServer((_req, res) => res.end('ok')).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

const BUCKET = { key: 'header:x-api-key', rate: '1/s', capacity: 10 }
const configOf = (upstream: string, limits: object, more: object = {}) =>
  JSON.stringify({
    listen: '127.0.0.1:0',
    admin: { listen: '127.0.0.1:0' },
    upstream,
    buckets: { client: { ...BUCKET, limits } },
    routes: [{ name: 'api' }],
    ...more,
  })

/** Starts it, and ends it with the test. */
async function start(t: Teardown, cwd: string, ...args: string[]) {
  const command = shaper(['start', '--log', 'json', ...args], { cwd })
  const agent = new Agent({ pipelining: 1 })
  t.teardown(async () => {
    command.child.kill('SIGKILL')
    await Promise.all([command.finished, agent.close()])
  })
  const url = await command.url
  const ask = async (key: string, headers: Record<string, string> = { prefer: 'wait=0' }) => {
    const {
      statusCode,
      headers: answered,
      body,
    } = await request(url, { dispatcher: agent, headers: { 'x-api-key': key, ...headers } })
    await body.dump()
    return { status: statusCode, policy: answered['ratelimit-policy'] as string }
  }
  const policyIs = (key: string, policy: string) =>
    until(`${key} has ${policy}`, async () => (await ask(key)).policy === `"client";${policy}`)
  return { command, ask, policyIs, url }
}

function records({ stderr }: Command): Record<string, unknown>[] {
  return stderr()
    .split('\n')
    .slice(0, -1)
    .map(line => JSON.parse(line))
}

async function adminOf(command: Command): Promise<string> {
  await until('the admin server listens', () => /admin server listens/.test(command.stderr()))
  return records(command).find(({ msg }) => msg === 'the admin server listens')!.url as string
}

t.test('a file: at the start, changed while a request waits, gone; metrics, /buckets, shaper key', async t => {
  const cwd = t.testdir({
    'customers.csv': 'key,rate,capacity\ngold,50/s,100\nslow,1/h,10\nwrong,x,1\n',
    'shaper.config.json': configOf(await startUpstream(t), { file: 'customers.csv' }),
  })
  const { command, ask, policyIs } = await start(t, cwd)
  await policyIs('gold', 'q=100;w=2')
  await policyIs('other', 'q=10;w=10')
  await policyIs('wrong', 'q=10;w=10')
  const admin = await adminOf(command)
  t.match(records(command), [
    { bucket: 'client', msg: 'line 4: rate is wrong; use e.g. 5/s' },
    { bucket: 'client', keys: 2, bad: 1, msg: 'limits of single keys have been read' },
  ])
  t.notMatch(command.stderr(), /"?gold/, 'no key is logged')
  await ask('slow')
  const waiting = ask('slow', {})
  const snapshot = async () => ((await (await request(`${admin}/buckets`)).body.json()) as Snapshot).buckets[0]!
  await until('one waits', async () => (await snapshot()).waiting === 1)
  t.match(await snapshot(), { outside: { keys: 2, readAt: Number } })
  writeFileSync(join(cwd, 'new.csv'), 'key,rate,capacity\ngold,50/s,100\nslow,20/s,40\nmore,1,1\n')
  const changedAt = performance.now()
  renameSync(join(cwd, 'new.csv'), join(cwd, 'customers.csv'))
  t.equal((await waiting).status, 200)
  t.ok(performance.now() - changedAt < 20_000, 'it would have waited for an hour')
  const key = await shaperHere(['key', 'client', 'slow', '--admin', admin])
  t.match(key.stdout, /^client: slow \(\w+ in the log\), limits of its own\nlevel \S+ of 40, rate 20\/s/)
  const metrics = await (await request(`${admin}/metrics`)).body.text()
  t.match(metrics, /^shaper_key_limits\{bucket="client"\} 3$/m)
  t.match(metrics, /^shaper_key_limits_bad_rows\{bucket="client"\} 0$/m)
  t.match(metrics, /^shaper_key_limits_last_read_success\{bucket="client"\} 1$/m)
  t.match(metrics, /^shaper_key_limits_read_seconds\{bucket="client"\} 1\d{9}/m)
  rmSync(join(cwd, 'customers.csv'))
  await until('it is told', () => /the file is gone/.test(command.stderr()))
  await policyIs('gold', 'q=100;w=2')
  t.match(await snapshot(), { outside: { keys: 3, failure: /gone/ } })
  t.match(await (await request(`${admin}/metrics`)).body.text(), /^shaper_key_limits_last_read_success\S+ 0$/m)
})

t.test('--workers: all have them, and a change comes to all; the log has each line once', async t => {
  const cwd = t.testdir({
    'customers.jsonl': '{"key":"gold","rate":50,"capacity":100,"maxInFlight":4}\n{"key":"few","maxInFlight":1}\n',
    'shaper.config.json': configOf(await startUpstream(t), { file: 'customers.jsonl' }),
  })
  const { command, ask } = await start(t, cwd, '--workers', '2')
  const policies = async (key: string) =>
    new Set(await Promise.all(Array.from({ length: 8 }, async () => (await ask(key, {})).policy)))
  t.same([...(await policies('gold'))], ['"client";q=100;w=2'])
  writeFileSync(join(cwd, 'customers.jsonl'), '{"key":"gold","rate":5,"capacity":20}\n')
  await until('all have changed', async () => [...(await policies('gold'))].join() === '"client";q=20;w=4')
  const admin = await adminOf(command)
  t.match(await (await request(`${admin}/metrics`)).body.text(), /^shaper_key_limits\{bucket="client"\} 1$/m)
  const told = records(command).filter(({ msg }) => /maxInFlight is wrong; the workers divide it/.test(`${msg}`))
  t.equal(told.length, 1)
})

t.test('a file that cannot be used: exit 2 with its path, with workers too; check says so', async t => {
  const cwd = t.testdir({
    'none.json': configOf('echo:', { file: 'missing.csv' }),
    'folder.json': configOf('echo:', { file: '.' }),
    'header.json': configOf('echo:', { file: 'header.csv' }),
    'header.csv': 'key,rte\na,5\n',
  })
  const failed = async (...args: string[]) => {
    const { code, stderr } = await shaper(args, { cwd }).finished
    t.equal(code, 2, stderr)
    return stderr
  }
  const missing =
    /^shaper: buckets\.client\.limits\.file: "missing\.csv" does not exist \(looked for at .*\); name a file with a line for each key/
  t.match(await failed('start', '-c', 'none.json'), missing)
  t.match(await failed('check', '-c', 'none.json'), missing)
  t.match(await failed('start', '-c', 'folder.json'), /cannot be read \(EISDIR\)/)
  const header =
    'shaper: buckets.client.limits.file: "header.csv": the column "rte" is not known; did you mean "rate"?\n'
  t.equal(await failed('start', '-c', 'header.json'), header)
  t.equal(await failed('start', '-c', 'header.json', '--workers', '2'), header)
  t.equal(await failed('check', '-c', 'header.json'), header)
})

t.test('check says how many keys there are, shows the first, and warns of bad lines', async t => {
  const lines = ['key,rate,capacity,priority', 'a,50/s,100,', 'b,,7,1', 'c,2,,', 'd,1,1,', 'e,x,,']
  const cwd = t.testdir({
    'a.csv': lines.join('\n'),
    'a.json': JSON.stringify({
      upstream: 'echo:',
      buckets: { client: { key: 'query:user', rate: '1/s', capacity: 10, limits: { file: 'a.csv' } } },
    }),
    'secret.json': configOf('echo:', { file: 'a.csv' }),
  })
  const check = async (file: string) => {
    const here = process.cwd()
    process.chdir(cwd)
    try {
      return await shaperHere(['check', '-c', file], { cwd })
    } finally {
      process.chdir(here)
    }
  }
  const { code, stdout, stderr } = await check('a.json')
  t.equal(code, 0)
  t.same(JSON.parse(stdout).buckets.client.limits, { file: 'a.csv' })
  t.match(
    stderr,
    'bucket "client": 4 keys have limits of their own\n  "a": 50/s, capacity 100\n  "b": 1/s, capacity 7, priority 1\n  "c": 2/s, capacity 10\n',
  )
  t.match(stderr, 'warning: buckets.client.limits: line 6: rate is wrong; use e.g. 5/s\n')
  t.match((await check('secret.json')).stderr, /their own\n {2}\([0-9a-f]{12} in the log\): 50\/s, capacity 100\n/)
})

t.test('replay', async t => {
  const cwd = t.testdir({
    'customers.csv': 'key,rate,capacity\n192.0.2.1,1/s,1\n',
    'access.log': Array.from(
      { length: 8 },
      (_, at) => `192.0.2.${1 + (at % 2)} - - [01/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1\n`,
    ).join(''),
  })
  const limits = { file: join(cwd, 'customers.csv') }
  const config = { upstream: 'echo:', buckets: { client: { key: 'ip', rate: '1/s', capacity: 3, limits } } }
  writeFileSync(join(cwd, 'c.json'), JSON.stringify(config))
  const { stdout, stderr } = await shaperHere([
    'replay',
    join(cwd, 'access.log'),
    '-c',
    join(cwd, 'c.json'),
    '--spread',
    'none',
    '--json',
  ])
  t.match(JSON.parse(stdout || stderr), { requests: 8, rejected: 4 }, 'three of the first, and one of the second')
})

t.test('two programs on a Redis', async t => {
  const redis = await startRedis()
  t.teardown(() => redis.stop())
  const cwd = t.testdir({
    'customers.csv': 'key,rate,capacity\ngold,1/h,6\n',
    'shaper.config.json': configOf(
      await startUpstream(t),
      { file: 'customers.csv' },
      {
        store: { type: 'redis', url: redis.url },
        routes: [{ name: 'api', mode: 'meter' }],
      },
    ),
  })
  const both = [await start(t, cwd), await start(t, cwd)]
  const statuses = async () => {
    const found: number[] = []
    for (let at = 0; at < 8; at += 1) found.push((await both[at % 2]!.ask('gold', {})).status)
    return found.filter(status => status === 200).length
  }
  t.equal(await statuses(), 6)
  writeFileSync(join(cwd, 'customers.csv'), 'key,rate,capacity\ngold,1/h,8\n')
  for (const { command } of both)
    await until('it is read', () => records(command).filter(({ msg }) => /have been read/.test(`${msg}`)).length === 2)
  t.equal(await statuses(), 2)
})

t.test('PostgreSQL: a query, refreshed and told by NOTIFY; what it answers is streamed', async t => {
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  await postgres.query('CREATE TABLE customers (id text PRIMARY KEY, rate float8, capacity int, max_in_flight int)')
  await postgres.query("INSERT INTO customers SELECT 'customer-' || n, n, n + 1, NULL FROM generate_series(1, 20001) n")
  await postgres.query("INSERT INTO customers VALUES ('wrong', -1, 1, 1)")
  const query = 'SELECT id AS key, rate, capacity, max_in_flight FROM customers ORDER BY rate;'
  const limits = (more: object) => ({ postgres: { url: postgres.url, query }, ...more })
  const upstream = await startUpstream(t)
  const cwd = t.testdir({
    'shaper.config.json': configOf(upstream, limits({ refresh: '1h', channel: 'changed' })),
    'often.json': configOf(upstream, limits({ refresh: '50ms' })),
    'bad.json': configOf(upstream, { postgres: { url: postgres.url, query: 'SELECT id, rate FROM customers' } }),
  })
  const { command, policyIs } = await start(t, cwd)
  const often = await start(t, cwd, '-c', 'often.json')
  await policyIs('customer-9', 'q=10;w=2')
  await policyIs('customer-20001', 'q=20002;w=2')
  t.match(records(command), [{ msg: 'row 1: rate is wrong; use e.g. 5/s' }, { keys: 20_001, bad: 1 }])
  await until(
    'it listens',
    async () =>
      (await postgres.query("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = 'SELECT 1'")).length >
      0,
  )
  await postgres.query("UPDATE customers SET capacity = 77 WHERE id = 'customer-9'")
  await postgres.query('NOTIFY changed')
  await policyIs('customer-9', 'q=77;w=9')
  await often.policyIs('customer-9', 'q=77;w=9')
  await postgres.kill()
  await until('it is told', () => /limits of single keys cannot be read/.test(often.command.stderr()))
  await often.policyIs('customer-9', 'q=77;w=9')
  const { code, stderr } = await shaper(['start'], { cwd }).finished
  t.equal(code, 1)
  t.match(
    stderr,
    /^shaper: buckets\.client\.limits\.postgres: .*ECONNREFUSED.*; start PostgreSQL, or change the url or the query\n$/,
  )
  t.match(
    (await shaperHere(['check', '-c', join(cwd, 'often.json')])).stderr,
    /warning: buckets\.client\.limits\.postgres: /,
  )
  await postgres.start()
  await postgres.query("UPDATE customers SET capacity = 5 WHERE id = 'customer-9'")
  await often.policyIs('customer-9', 'q=5;w=1')
  const bad = await shaper(['start', '-c', 'bad.json'], { cwd }).finished
  t.match(bad.stderr, /the column "id" is not known/)
  const checked = await shaperHere(['check', '-c', join(cwd, 'often.json')])
  t.match(checked.stderr, 'bucket "client": 20001 keys have limits of their own')
  t.notMatch(checked.stdout, /postgres:\/\/[^:@/]+:[^*@]+@/)
})

t.test('the recipes of docs/guide.md', async t => {
  const [withFile, withQuery] = blocks('docs/guide.md', 'json').filter(block => block.includes('"limits"'))
  const upstream = await startUpstream(t)
  const started = (config: string) => ({ ...JSON.parse(config), upstream, listen: '127.0.0.1:0' })
  const cwd = t.testdir({ 'customers.csv': blocks('docs/guide.md', 'csv')[0]! })
  writeFileSync(join(cwd, 'file.json'), JSON.stringify(started(withFile!)))
  const fromFile = await start(t, cwd, '-c', 'file.json')
  await fromFile.policyIs('k-acme', 'q=120;w=2')
  await fromFile.policyIs('k-initech', 'q=40;w=2')
  await fromFile.policyIs('other', 'q=5;w=5')
  const postgres = await startPostgres()
  t.teardown(() => postgres.close())
  await postgres.query(blocks('docs/guide.md', 'sql')[0]!)
  const config = started(withQuery!)
  config.buckets.client.limits.postgres.url = postgres.url
  writeFileSync(join(cwd, 'query.json'), JSON.stringify(config))
  const fromQuery = await start(t, cwd, '-c', 'query.json')
  await fromQuery.policyIs('k-acme', 'q=40;w=2')
  await fromQuery.policyIs('k-initech', 'q=5;w=5')
  await until('it listens', async () => {
    const rows = await postgres.query(
      "SELECT 1 FROM pg_stat_activity WHERE application_name = 'shaper' AND state = 'idle'",
    )
    return rows.length > 0
  })
  await postgres.query("UPDATE api_keys SET plan = 'pro' WHERE key = 'k-initech'")
  await fromQuery.policyIs('k-initech', 'q=40;w=2')
})
