/** Deliveries of programs that start, crash, are asked by operators, and whose database fails. */
import { execFileSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { type Command, shaper, shaperHere } from '../cli/command.js'
import { eventually } from '../proxy/harness.js'
import { runs } from '../runs.js'
import { startRelay } from '../servers/distance.js'
import { freePort } from '../servers/free-port.js'
import { type PostgresServer, startPostgres } from '../servers/postgres.js'
import { until } from '../servers/redis.js'

const server = await startPostgres()
t.teardown(() => server.close())

let named = 0

interface Got {
  readonly body: string
  readonly key: string
  readonly at: number
}

/** A configuration in a file, and an upstream that keeps what it got. */
async function stage(
  t: Test,
  { admin, ...deliver }: { readonly admin?: string; readonly [key: string]: unknown },
  rate = '200/s',
) {
  const got: Got[] = []
  const upstream = createServer((req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', text => {
      body += text
    })
    req.on('end', () => {
      got.push({ body, key: String(req.headers['idempotency-key']), at: performance.now() })
      setTimeout(() => res.writeHead(body.startsWith('bad') ? 500 : 200).end('ok'), 5)
    })
  })
  await new Promise<void>(resolve => upstream.listen(0, '127.0.0.1', resolve))
  const folder = mkdtempSync(join(tmpdir(), 'shaper-deliver-'))
  t.teardown(() => {
    upstream.close()
    upstream.closeAllConnections()
    rmSync(folder, { recursive: true })
  })
  const file = join(folder, 'shaper.config.json')
  named += 1
  const name = `hooks-${named}`
  const config = {
    listen: '127.0.0.1:0',
    upstream: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
    buckets: { all: { key: 'header:x-client', rate, capacity: 400 } },
    routes: [{ name, deliver: { url: server.url, backoff: '10ms', maxBackoff: '50ms', ...deliver } }],
    ...(admin && { admin: { listen: admin } }),
  }
  writeFileSync(file, JSON.stringify(config))
  const start = (): Command => {
    const command = shaper(['start', '-c', file, '--log', 'json'])
    t.teardown(() => command.child.kill('SIGKILL'))
    return command
  }
  return { got, start, file, name }
}

function post(url: string, body: string, headers: Record<string, string> = {}): Promise<Response> {
  return fetch(url, { method: 'POST', body, headers: { 'x-client': 'a', ...headers } })
}

t.test('a database that does not answer at the start is exit 1, and its password is not shown', async t => {
  const url = `postgres://me:hidden@127.0.0.1:${await freePort()}/x`
  const { start, file } = await stage(t, { url })
  const { code, stderr } = await start().finished
  t.equal(code, 1)
  t.match(stderr, /the database of deliveries cannot be used \(postgres:\/\/me:\*\*\*@.*ECONNREFUSED.*\); start it/)
  t.notMatch(stderr, /hidden/)
  const checked = await shaperHere(['check', '-c', file])
  t.equal(checked.code, 0)
  t.notMatch(checked.stdout, /hidden/)
  t.match(checked.stderr, /no bound: requests are stored/)
})

t.test('a table of another version is exit 1', async t => {
  await server.query('CREATE DATABASE other')
  const url = server.url.replace(/postgres$/, 'other')
  const { start } = await stage(t, { url })
  const first = start()
  await first.url
  first.child.kill('SIGTERM')
  await first.finished
  const pg = await import('pg')
  const client = new pg.default.Client({ connectionString: url })
  await client.connect()
  await client.query(`COMMENT ON TABLE shaper_deliveries IS 'shaper deliveries 99'`)
  await client.end()
  const { code, stderr } = await start().finished
  t.equal(code, 1)
  t.match(stderr, /of another version/)
})

t.test('metrics begin at 0, before the first delivery', async t => {
  const admin = `127.0.0.1:${await freePort()}`
  const { start, name } = await stage(t, { admin })
  await start().url
  const metrics = await (await fetch(`http://${admin}/metrics`)).text()
  for (const state of ['waiting', 'dead']) {
    t.match(metrics, `shaper_deliveries{route="${name}",state="${state}"} 0`)
    t.match(metrics, `shaper_delivery_oldest_seconds{route="${name}",state="${state}"} 0`)
  }
  for (const result of ['done', 'retry', 'dead', 'cancelled'])
    t.match(metrics, `shaper_delivery_attempts_total{route="${name}",result="${result}"} 0`)
})

t.test('operators list, retry and delete, and metrics count', async t => {
  const admin = `127.0.0.1:${await freePort()}`
  const { start, name } = await stage(t, { admin, attempts: 2 })
  const url = await start().url
  const base = `http://${admin}`
  await post(url, 'bad')
  const list = async () => {
    const found = await (await fetch(`${base}/deliveries?state=dead`)).json()
    return (found as { deliveries: { id: string; route: string; state: string; error: object }[] }).deliveries
  }
  while ((await list()).length === 0) await sleep(20)
  const [dead] = await list()
  t.match(dead, { route: name, state: 'dead', error: { status: 500 } })
  t.equal((await fetch(`${base}/deliveries?state=odd`)).status, 400)
  const ask = (...args: string[]) => shaperHere(['deliveries', ...args, '--admin', base])
  t.match((await ask('list', '--state', 'dead')).stdout, new RegExp(`${dead!.id} +${name} +dead +2 .*answered 500`))
  t.match(JSON.parse((await ask('show', dead!.id, '--json')).stdout), { id: dead!.id, state: 'dead' })
  t.match(await ask('retry', 'A'.repeat(22)), { code: 1, stderr: /404: there is no such dead letter/ })
  t.match(await ask('retry'), { code: 2, stderr: /needs the id of a delivery/ })
  t.match(await ask('list', '--state', 'odd'), {
    code: 2,
    stderr: /Allowed choices are waiting, done, dead, cancelled/,
  })
  t.equal((await fetch(`${base}/deliveries/${dead!.id}`, { method: 'POST' })).status, 405)
  t.equal((await fetch(`${base}/deliveries/${dead!.id}/retry`, { method: 'POST' })).status, 415)
  const json = { 'content-type': 'application/json' }
  const retry = () => fetch(`${base}/deliveries/${dead!.id}/retry`, { method: 'POST', headers: json })
  t.equal((await retry()).status, 200)
  while ((await list()).length === 0) await sleep(20)
  const metrics = await (await fetch(`${base}/metrics`)).text()
  t.match(metrics, `shaper_deliveries{route="${name}",state="dead"} 1`)
  t.match(metrics, new RegExp(`shaper_delivery_oldest_seconds\\{route="${name}",state="dead"\\} \\d`))
  t.match(metrics, `shaper_delivery_attempts_total{route="${name}",result="dead"} 2`)
  t.match(metrics, `shaper_requests_total{route="${name}",outcome="accepted"} 1`)
  const { counts } = (await (await fetch(`${base}/deliveries?counts`)).json()) as { counts: object[] }
  t.match(counts, [{ route: name, state: 'dead', count: 1 }], 'for the dashboard')
  t.equal((await fetch(`${base}/deliveries/${dead!.id}`, { method: 'DELETE' })).status, 200)
  t.equal((await fetch(`${base}/deliveries/${dead!.id}`, { method: 'DELETE' })).status, 404)
  t.equal((await retry()).status, 404)
  t.equal((await fetch(`${base}/deliveries/${dead!.id}/odd`)).status, 404)
  t.same(await list(), [])
})

t.test(
  'two instances and kill -9: nothing accepted is lost, no key changes, and order is kept',
  { timeout: 180_000 },
  async t => {
    const { got, start, name: route } = await stage(t, { ordered: true })
    const instances = [start(), start()]
    const urls = await Promise.all(instances.map(({ url }) => url))
    const keys = new Map<string, string>()
    const lanes = ['a', 'b', 'c', 'd']
    let isOver = false
    /** A client that sends one after the other, and each until it is accepted. */
    const lane = async (name: string): Promise<void> => {
      for (let count = 0; !isOver; count += 1) {
        const body = `${name}-${count}`
        const key = `key-${body}`
        for (let at = count; ; at += 1) {
          const headers = { 'x-client': name, 'idempotency-key': `"${key}"` }
          const answer = await post(urls[at % 2]!, body, headers).catch(() => undefined)
          if (answer?.status === 202) break
          await sleep(20)
        }
        keys.set(body, key)
        await sleep(20)
      }
    }
    const clients = lanes.map(lane)
    for (let round = 0; round < Math.max(3, runs(6)); round += 1) {
      await sleep(300 + Math.random() * 700)
      const which = round % 2
      instances[which]!.child.kill('SIGKILL')
      await instances[which]!.finished
      instances[which] = start()
      urls[which] = await instances[which]!.url
    }
    isOver = true
    await Promise.all(clients)
    // What a killed one had is free when its lease is over.
    const delivered = () => new Set(got.map(({ body }) => body))
    for (let left = 300; left > 0 && delivered().size < keys.size; left -= 1) {
      await sleep(200)
      if (left % 50 === 0) t.comment(`${delivered().size} of ${keys.size}`)
    }
    t.same(
      [...keys.keys()].filter(body => !delivered().has(body)),
      [],
    )
    t.ok(got.every(({ body, key }) => key === `"key-${body}"`))
    for (const name of lanes) {
      const firsts = [...delivered()].filter(body => body.startsWith(`${name}-`))
      t.same(
        firsts,
        firsts.map((_, at) => `${name}-${at}`),
        `${name} in order`,
      )
    }
    const { waiting } = (
      await server.query<{ waiting: number }>(
        `SELECT count(*)::int AS waiting FROM shaper_deliveries WHERE state = 'waiting' AND route = '${route}'`,
      )
    )[0]!
    t.ok(waiting <= 10, `${waiting} wait`)
    t.comment(`${keys.size} accepted, ${got.length} sent`)
  },
)

t.test('a stopped instance is taken for dead, and sends nothing when it goes on', { timeout: 90_000 }, async t => {
  const { got, start } = await stage(t, {}, '2/s')
  const one = start()
  const url = await one.url
  for (let count = 0; count < 6; count += 1) t.equal((await post(url, `${count}`)).status, 202)
  await eventually(() => got.length >= 2)
  one.child.kill('SIGSTOP')
  await sleep(200)
  const other = start()
  await other.url
  await eventually(() => new Set(got.map(({ body }) => body)).size === 6)
  one.child.kill('SIGCONT')
  await sleep(1_500)
  const twice = got.filter(({ body }, at) => got.findIndex(each => each.body === body) !== at)
  // Of one that was on its way its answer was not recorded.
  t.ok(twice.length <= 1, JSON.stringify(twice))
  t.equal((await post(url, 'again')).status, 202)
  await eventually(() => got.at(-1)!.body === 'again')
})

/** How many rows are in the table, and wait. */
async function stored({ query }: PostgresServer): Promise<{ rows: number; waiting: number }> {
  const sql = `SELECT count(*)::int AS rows, (count(*) FILTER (WHERE state = 'waiting'))::int AS waiting FROM shaper_deliveries`
  return (await query<{ rows: number; waiting: number }>(sql))[0]!
}

t.test(
  'a database whose disk is full: 503, nothing half accepted, and it goes on when there is room',
  { skip: process.getuid?.() !== 0 && 'only root mounts a small disk', timeout: 300_000 },
  async t => {
    const own = await startPostgres()
    const disk = mkdtempSync(join(tmpdir(), 'shaper-small-'))
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=24m', 'tmpfs', disk])
    t.teardown(async () => {
      await own.close()
      execFileSync('umount', [disk])
      rmSync(disk, { recursive: true })
    })
    const { uid, gid } = statSync(own.data)
    execFileSync('chown', [`${uid}:${gid}`, disk])
    await own.query(`CREATE TABLESPACE small LOCATION '${disk}'`)
    const { got, start } = await stage(t, { url: own.url }, '2/s')
    const first = start()
    await first.url
    first.child.kill('SIGTERM')
    await first.finished
    await own.query('ALTER TABLE shaper_deliveries SET TABLESPACE small')
    const filler = join(disk, 'filler')
    writeFileSync(filler, Buffer.alloc(16 * 1024 * 1024))
    const url = await start().url
    // It cannot be compressed. So some fill the disk, before many are delivered.
    const body = (number: number) => `${number} ${randomBytes(500_000).toString('base64')}`
    const sent = new Map<string, string>()
    let answer = await post(url, 'first')
    for (let number = 0; answer.status === 202 && number < 200; number += 1) {
      const [key, text] = [`full-${number}`, body(number)]
      sent.set(key, text)
      answer = await post(url, text, { 'idempotency-key': key })
    }
    t.equal(answer.status, 503)
    t.ok(Number(answer.headers.get('retry-after')) >= 1)
    const accepted = sent.size
    t.ok(accepted > 5, `${accepted} fit`)
    const [[key, text]] = [...sent].slice(-1) as [[string, string]]
    t.equal((await stored(own)).rows, accepted, 'the first one and those that were accepted')
    rmSync(filler)
    while (answer.status === 503) {
      await sleep(50)
      answer = await post(url, text, { 'idempotency-key': key })
    }
    t.equal(answer.status, 202)
    await until('all are delivered', async () => (await stored(own)).waiting === 0)
    t.equal((await stored(own)).rows, accepted + 1)
    t.equal(new Set(got.map(({ body }) => body)).size, accepted + 1)
  },
)

t.test(
  'a slow database: all is stored and sent once; one that takes too long is 503',
  { timeout: 300_000 },
  async t => {
    const own = await startPostgres()
    t.teardown(() => own.close())
    const link = await startRelay(own.port, 250)
    t.teardown(() => link.close())
    const { got, start } = await stage(t, { url: own.url.replace(`${own.port}`, `${link.port}`) })
    const url = await start().url
    t.match(url, /^http:/)
    const answers = await Promise.all([...Array(20).keys()].map(number => post(url, `${number}`)))
    t.same(new Set(answers.map(({ status }) => status)), new Set([202]))
    await until('all are delivered', async () => (await stored(own)).waiting === 0)
    t.equal(got.length, 20)
    // Its answers are lost, though what they answer is done.
    const lost = link.lose('silent', 8_000)
    const late = await post(url, 'late', { 'idempotency-key': 'late' })
    t.equal(late.status, 503)
    t.ok(Number(late.headers.get('retry-after')) >= 1)
    await lost
    let again = late
    while (again.status === 503) again = await post(url, 'late', { 'idempotency-key': 'late' })
    t.equal(again.status, 202)
    await until('that is delivered, too', async () => (await stored(own)).waiting === 0)
    t.equal((await stored(own)).rows, 21)
    t.equal(new Set(got.map(({ body }) => body)).size, 21)
  },
)
