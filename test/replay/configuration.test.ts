/** Whole configurations: routes, costs, tiers, shared buckets, penalties, fields that the log lacks, and comparisons. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { limitsOfFile } from '../../src/replay/plan/limits-file.js'
import { replay } from '../../src/replay/replay.js'
import { diffLimits, diffReports } from '../../src/replay/report/diff.js'
import { limits, run } from '../core/run.js'
import { bytes, combined, FIXTURE, planOf, readAll } from './logs.js'

const START = 1_431_857_103

type Tap = Pick<typeof t, 'testdir'>

function configured(t: Tap, config: object, base?: object) {
  const dir = t.testdir({ 'a.json': JSON.stringify(config), ...(base && { 'base.json': JSON.stringify(base) }) })
  return limitsOfFile(join(dir, 'a.json'), {}, {}, base && join(dir, 'base.json'))
}

/** JSON lines with exact times, in ms. */
const lines = (requests: readonly { at: number; ip?: string; method?: string; path?: string; more?: object }[]) =>
  bytes(
    requests
      .map(({ at, ip = '192.0.2.1', method = 'GET', path = '/', more }) =>
        JSON.stringify({
          msec: (START + at / 1_000).toFixed(3),
          remote_addr: ip,
          request_method: method,
          request_uri: path,
          ...more,
        }),
      )
      .join('\n'),
  )

const burst = (count: number, more: object = {}, gap = 0) =>
  Array.from({ length: count }, (_, at) => ({ at: at * gap, ...more }))

t.test('quotas count by the calendar of the log, and those that are spread pace what is left', async t => {
  const quota = (more: object, capacity?: number) =>
    configured(t, { buckets: { calls: { quota: { per: 'hour', ...more }, ...(capacity && { capacity }) } } })
  // From 10:05:03 on, each minute: in four hours of the clock.
  const counted = await replay(planOf(lines(burst(200, {}, 60_000)), quota({ limit: 10 })))
  t.match(counted, { atOnce: 40, delayed: 0, rejected: 160 })
  // Each 30 s for 100 minutes: 60 until 11:00, then one a minute, and two wait at the end.
  const spread = await replay(planOf(lines(burst(200, {}, 30_000)), quota({ limit: 60, spread: true }, 2)))
  const released = spread.atOnce + spread.delayed
  t.ok(released >= 106 && released <= 109, `${released}`)
})

t.test('what a route stores is never rejected, and waits for its turn as long as it takes', async t => {
  const config = (deliver: object) =>
    configured(t, {
      buckets: {
        client: { key: 'ip', rate: '1/s', capacity: 3 },
        all: { key: 'all', rate: '4/s', capacity: 10 },
      },
      routes: [
        {
          name: 'hooks',
          match: { path: '/hooks' },
          deliver: { url: 'postgres://127.0.0.1/x', ...deliver },
        },
        { name: 'rest', maxWait: '1s' },
      ],
    })
  const posts = (ip: string) => burst(20, { ip, method: 'POST', path: '/hooks' })
  const stored = await replay(planOf(lines([...posts('192.0.2.1'), ...posts('192.0.2.2')]), config({})))
  t.match(stored, { atOnce: 1, delayed: 39, rejected: 0 })
  t.match(stored.notes, [/route "hooks" stores requests \(deliver\), so their waits have no bound/])
  t.ok(Math.abs(stored.wait.max - 19_250) < 20, `one a second for each client, and four for all: ${stored.wait.max} ms`)
  const reads = await replay(planOf(lines(burst(20, { path: '/hooks' })), config({})))
  t.match(reads, { rejected: 17 }, 'GET is answered at once')
  const asked = await replay(planOf(lines(posts('192.0.2.1')), config({ when: 'asked' })))
  t.match(asked, { rejected: 17 }, 'a log does not say who prefers to be answered later')
  t.match(asked.notes, [/route "hooks" stores requests whose clients ask for it; a log does not tell which/])
  const beside = [...posts('192.0.2.1'), ...posts('192.0.2.2'), { at: 100, ip: '192.0.2.3', path: '/' }]
  t.match(await replay(planOf(lines(beside), config({}))), { rejected: 0 }, 'two of each are in the shared bucket')
})

t.test('routes, modes and costs work as in the proxy', async t => {
  const config = configured(t, {
    buckets: { client: { key: 'ip', rate: '1/s', capacity: 10 }, login: { key: 'ip', rate: '6/30s', capacity: 2 } },
    routes: [
      { name: 'health', match: { path: '/healthz' }, mode: 'off' },
      { name: 'login', match: { path: '/login', method: 'POST' }, mode: 'meter', buckets: ['login'] },
      { name: 'api', match: { path: '/api/*' }, buckets: ['client'], cost: { POST: 5 }, maxWait: '4s' },
    ],
  })
  const of = (requests: Parameters<typeof lines>[0]) => replay(planOf(lines(requests), config))
  t.match(await of(burst(50, { path: '/healthz' })), { atOnce: 50, rejected: 0 })
  t.match(await of(burst(5, { path: '/login', method: 'POST' })), { atOnce: 2, delayed: 0, rejected: 3 })
  t.match(
    await of(burst(5, { path: '//api/../api/x', method: 'POST' })),
    { atOnce: 1, delayed: 0, rejected: 4 },
    'maxWait',
  )
  t.match(await of(burst(7, { path: '/api/x' })), {
    atOnce: 1,
    delayed: 4,
    rejected: 2,
    wait: { p50: 2_000, max: 4_000 },
  })
  const lost = await of(burst(3, { path: '/elsewhere' }))
  t.match(lost, { rejected: 3 })
  t.match(lost.notes.join(), /3 of those rejected had no route/)
})

t.test('costs in each bucket: numbers count, and what is estimated from bodies counts 1', async t => {
  const config = configured(t, {
    buckets: { calls: { key: 'ip', rate: '1/s', capacity: 9 }, tokens: { key: 'all', rate: '1/s', capacity: 4 } },
    routes: [{ name: 'api', mode: 'meter', cost: { buckets: { calls: 3, tokens: { estimate: 'body/4', max: 'n' } } } }],
  })
  t.match(await replay(planOf(lines(burst(5)), config)), { atOnce: 3, rejected: 2 }, '9 calls at 3')
  const many = Array.from({ length: 6 }, (_, at) => ({ at: 0, ip: `192.0.2.${at}` }))
  t.match(await replay(planOf(lines(many), config)), { atOnce: 4, rejected: 2 }, '4 tokens at 1')
})

t.test('a stack of buckets works as in the core', async t => {
  const config = configured(t, {
    buckets: { client: { key: 'ip', rate: '2/s', capacity: 4 }, everyone: { key: 'all', rate: '5/s', capacity: 12 } },
    routes: [{ name: 'api', buckets: ['client', 'everyone'] }],
  })
  const requests = Array.from({ length: 300 }, (_, at) => ({
    at: Math.floor(at / 7) * 350,
    ip: `192.0.2.${(at * at) % 11}`,
  }))
  const report = await replay(planOf(lines(requests), config))
  const model = run(
    [limits(2, 4), limits(5, 12, 'everyone')],
    requests.map(({ at, ip }) => ({ at, keys: [ip, 'all'] })),
  )
  t.equal(report.admitted, model.admitted.length)
  t.ok(report.rejected > 50 && report.delayed > 50)
  const waits = model.released.map(({ arrival, slot }) => slot! - arrival.at).filter(wait => wait > 1e-6)
  t.equal(report.delayed, waits.length)
  t.ok(Math.abs(report.wait.max - Math.max(...waits)) < 0.01)
})

t.test('rates by the time of day follow the times of the log', async t => {
  // The log begins at 10:05:03 UTC, 297 s before the rate changes.
  const change = 297_000
  const of = async (mode: string, rate: unknown, requests: Parameters<typeof lines>[0], more: object = {}) =>
    replay(
      planOf(
        lines(requests),
        configured(t, {
          buckets: { all: { key: 'all', rate, capacity: 30, ...more } },
          routes: [{ mode, name: 'api' }],
        }),
      ),
    )
  const fast = [{ from: '10:10', to: '10:11', rate: '5/s' }, { rate: '1/s' }]
  const burst = (at: number, count = 25) => Array.from({ length: count }, () => ({ at }))
  t.match(await of('shape', fast, burst(0)), { atOnce: 1, delayed: 24, wait: { max: 24_000 } }, 'before')
  t.match(await of('shape', fast, burst(change)), { atOnce: 1, delayed: 24, wait: { max: 4_800 } }, 'within')
  // Ten leave at 1/s until the change, the rest at 5/s.
  t.match(
    await of('shape', fast, burst(change - 10_000)),
    { delayed: 24, wait: { max: 12_800 } },
    'across, without another line',
  )
  t.match(await of('shape', fast, [...burst(change - 10_000), { at: change + 40_000 }]), {
    atOnce: 2,
    wait: { max: 12_800 },
  })
  t.match(await of('shape', fast, burst(change + 58_000)), { wait: { max: 16_000 } }, 'ten at 5/s, fourteen at 1/s')
  const berlin = [{ from: '12:10', to: '12:11', rate: '5/s' }, { rate: '1/s' }]
  t.match(await of('shape', berlin, burst(change), { timeZone: 'Europe/Berlin' }), { wait: { max: 4_800 } })
  // In `meter` what has leaked until the change has leaked at 1/s: 20 of 30 are left, and after 2 s 10.
  const meter = [...burst(change - 10_000, 30), ...burst(change + 2_000, 30)]
  t.match(await of('meter', fast, meter), { admitted: 50, rejected: 10 })
  // Six leave at 5/s. At 1/s two more leave in time, and the rest expire at once. So there is room for one that comes then.
  const limited = configured(t, {
    buckets: {
      all: { key: 'all', rate: [{ from: '10:09', to: '10:10', rate: '5/s' }, { rate: '1/s' }], capacity: 30 },
    },
    routes: [{ name: 'api', maxWait: '3s' }],
  })
  const late = [...burst(change - 1_000, 15), ...burst(change + 500, 3)]
  t.match(await replay(planOf(lines(late), limited)), { admitted: 9, rejected: 9 })
  // A tier has its own. A gap of days in the log costs nothing to speak of.
  const tiers = [{ name: 'x', keys: ['all'], rate: fast }]
  const days = 3 * 86_400_000
  t.match(await of('shape', '1/h', [...burst(change, 1), ...burst(change + days, 25)], { tiers }), {
    wait: { max: 4_800 },
  })
})

t.test('patterns, ranges of addresses and buckets that do not apply', async t => {
  const config = configured(t, {
    buckets: {
      client: {
        key: 'ip',
        rate: '1/h',
        capacity: 2,
        tiers: [{ name: 'office', keys: ['10.0.0.0/8'], capacity: 4 }],
      },
      user: { key: { from: 'header:x-user', missing: 'skip' }, rate: '1/h', capacity: 3 },
    },
    routes: [
      { name: 'free', match: { ip: '198.51.100.0/24', path: '*.css' }, mode: 'off' },
      { name: 'user', match: { path: '~ ^/u[0-9]$' }, buckets: ['user'], mode: 'meter' },
      { name: 'api', mode: 'meter' },
    ],
  })
  const of = (more: object) => replay(planOf(lines(burst(9, more)), config))
  t.match(await of({ ip: '198.51.100.9', path: '/a.css' }), { admitted: 9 })
  t.match(await of({ ip: '192.0.2.9', path: '/a.css' }), { admitted: 2 })
  t.match(await of({ ip: '10.1.1.1' }), { admitted: 4 })
  t.match(await of({ path: '/u1', more: { http_x_user: 'a' } }), { admitted: 3 })
  t.match(await of({ path: '/u1', more: { http_x_user: '-' } }), { admitted: 9 }, 'no bucket applies')
  const skipping = configured(t, {
    buckets: {
      user: { key: { from: 'header:x-user', missing: 'skip' }, rate: '1/h', capacity: 3 },
      everyone: { key: 'all', rate: '1/h', capacity: 5 },
    },
  })
  const report = await replay(planOf(lines(burst(9)), skipping))
  t.match(
    report,
    { admitted: 5, clients: { hardest: [{ client: '192.0.2.1' }] } },
    'the address stands in for the client',
  )
})

t.test('tiers, penalties and keys of headers', async t => {
  const config = configured(t, {
    buckets: {
      client: {
        key: 'header:x-api-key',
        rate: '1/s',
        capacity: 2,
        blockFor: '10s',
        tiers: [
          { name: 'gold', keys: ['acme'], capacity: 20 },
          { name: 'plan', header: { 'x-plan': 'silver' }, capacity: 5 },
        ],
      },
    },
  })
  const of = (more: object, count = 30) => replay(planOf(lines(burst(count, { more })), config))
  t.match(await of({ http_x_api_key: 'acme' }), { admitted: 20, clients: { hardest: [{ client: 'acme' }] } })
  t.match(await of({ http_x_api_key: 'other', http_x_plan: 'silver' }), { admitted: 5 })
  t.match(await of({ http_x_api_key: 'other' }), { admitted: 2 })
  const blocked = await replay(planOf(lines([...burst(3), { at: 9_000 }, { at: 10_500 }]), config))
  t.match(blocked, { admitted: 3, rejected: 2 })
  t.match(
    blocked.notes.join('\n'),
    /\(json\) does not contain the header "x-api-key", which the key of bucket "client" needs/,
  )
  t.match(blocked.clients.hardest[0]!.client, '192.0.2.1', 'the address stands in for a missing key')
})

t.test('what no log has is told, and is missing', async t => {
  const config = configured(t, {
    upstream: 'echo:',
    identity: { jwt: { jwksUrl: 'https://id.example/keys' } },
    buckets: {
      user: { key: ['jwt:sub', 'body:tenant'], rate: '1/s', capacity: 2 },
      host: { key: { from: 'cert', missing: 'all' }, rate: '1/s', capacity: 5 },
    },
  })
  const result = await replay(planOf(lines(burst(10, { more: { http_authorization: 'Bearer x' } })), config))
  t.match(result, { admitted: 2 })
  t.same(
    ['jwt:sub', 'body:tenant', 'cert'].map(
      key => result.notes.filter(note => note.includes(`the key "${key}"`)).length,
    ),
    [1, 1, 1],
  )
  t.match(result.notes[0], /^no log has what the key "jwt:sub" is made of; no request counts as having it$/)
})

t.test('a field that the log lacks is an error for a flag and a note for a file', async t => {
  await t.rejects(replay(planOf([FIXTURE], { rate: '5/s', capacity: '10', key: 'header:x-api-key' })), {
    message:
      /^--key: .*apache-access\.log\.gz \(combined\) does not contain the header "x-api-key"; use --key ip, or add it to the log$/,
  })
  await t.rejects(replay(planOf([FIXTURE], { rate: '5/s', capacity: '10', key: 'host' })), {
    message: /does not contain the host/,
  })
  const byAgent = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5', key: 'header:user-agent' }))
  t.ok(byAgent.clients.total > 100 && byAgent.clients.total < 1_000, 'what it has can be a key')
  t.match(byAgent.clients.hardest[0]!.client, /Mozilla/)
  const all = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5', key: 'all' }))
  t.equal(all.clients.total, 1)
  const methods = await replay(planOf([FIXTURE], { rate: '1/s', capacity: '5', key: 'ip,method' }))
  t.ok(methods.clients.total > 1_753)
})

t.test('IPv6 clients are counted by network', async t => {
  const log = ['2001:db8::1', '2001:DB8:0::2', '2001:db8:0:1::1', '::ffff:192.0.2.1', '192.0.2.1']
    .map(ip => combined(START, ip))
    .join('')
  const { clients } = await replay(planOf(bytes(log), { rate: '1/s', capacity: '1' }, { seed: undefined }))
  t.equal(clients.total, 3)
  t.same(clients.hardest.map(({ client }) => client).sort(), ['192.0.2.1', '2001:db8:0:0::/64'])
})

t.test('long: two configurations are compared on the same requests', async t => {
  const a = configured(t, { buckets: { client: { key: 'ip', rate: '1/s', capacity: 5 } } })
  const dir = t.testdir({ 'b.json': '{ "buckets": { "client": { "key": "ip", "rate": "2/s", "capacity": 3 } } }' })
  const b = limitsOfFile(join(dir, 'b.json'), {}, {})
  const { limits: _limits, ...plan } = planOf([FIXTURE], a)
  const diff = await diffLimits(a, b, plan)
  const [alone, other] = [await replay(planOf([FIXTURE], a)), await replay(planOf([FIXTURE], b))]
  for (const [side, single] of [
    [diff.a, alone],
    [diff.b, other],
  ] as const) {
    const { requests, admitted, delayed, rejected, wait } = single
    t.match(side, { requests, admitted, delayed, rejected, wait })
  }
  const { newlyRejected, noLongerRejected, changed } = diff.clients
  t.equal(newlyRejected - noLongerRejected, other.clients.rejected - alone.clients.rejected)
  t.ok(newlyRejected > 0 && changed.length > 10)
  t.ok(changed.every(({ a, b }) => a.rejected !== b.rejected || a.delayed !== b.delayed))
  const sizes = changed.map(({ a, b }) => Math.abs(a.rejected - b.rejected))
  t.same(
    sizes,
    [...sizes].sort((x, y) => y - x),
  )
  const same = await diffLimits(a, a, plan)
  t.same(same.clients, { newlyRejected: 0, noLongerRejected: 0, newlyDelayed: 0, noLongerDelayed: 0, changed: [] })
  const reports = diffReports(alone, other)
  t.equal(reports.b.rejected, other.rejected)
  t.ok(reports.clients.changed.length > 0)
})

t.test('a file takes missing keys from another file', async t => {
  const base = {
    buckets: { client: { key: 'ip', rate: '1/s', capacity: 5 } },
    routes: [{ name: 'all', mode: 'meter' }],
  }
  const { settings } = configured(t, { buckets: { client: { key: 'ip', rate: '9/s', capacity: 7 } } }, base)
  t.match(settings, { routes: [{ mode: 'meter' }], buckets: [{ capacity: 7 }] })
})

t.test('more keys than maxKeys, and an empty log', async t => {
  const many = Array.from({ length: 5_000 }, (_, at) => combined(START, `10.${at >> 8}.${at & 255}.1`)).join('')
  const file = join(t.testdir({}), 'many.log')
  writeFileSync(file, many)
  const report = await replay(planOf([file], { rate: '1/s', capacity: '1' }))
  t.match(report, { requests: 5_000, rejected: 0, clients: { total: 5_000 } })
  t.match(report.busiest, { arrivals: 5_000, releases: 5_000, at: '2015-05-17T10:05:03.000Z' })
  t.match(await replay(planOf(bytes(''), { rate: '1/s', capacity: '1' })), {
    requests: 0,
    bad: 0,
    admitted: 0,
    wait: { max: 0 },
  })
  t.equal((await readAll([file])).seen.length, 5_000)
})
