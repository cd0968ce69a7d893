import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { withTroubles } from '../../src/admin/snapshot/troubles.js'
import { dryRunTable, topLines } from '../../src/cli/commands/top.js'
import { bucket, instance, quiet, route } from '../admin/dashboard-sample.js'
import { startAdminRig } from '../admin/rig.js'
import { httpUpstream, pass, turns } from '../proxy/harness.js'
import { shaper, shaperHere } from './command.js'

const CLIENT = { client: { key: 'header:x-user', rate: '5/s', capacity: 10 } }

t.test('a table of queues, levels, and rates of the last seconds', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT })
  const before = await rig.snapshot()
  let answered = 0
  const answers = Array.from({ length: 12 }, async () => {
    await fetch(rig.proxy.url, { headers: { 'x-user': 'al\u009b2Jice' } })
    answered += 1
  })
  // One has left, and two are rejected.
  while (answered < 3) await turns()
  while ((await rig.snapshot()).inFlight > 0) await turns()
  const now = await rig.snapshot()
  const lines = topLines({ ...now, at: before.at + 2_000 }, before)
  t.match(lines[0], /^9 queued, the oldest for 0 ms; 0 in flight; wait p50 0 ms/)
  const at = lines.findIndex(line => line.startsWith('bucket'))
  t.same(lines[at]!.split(/\s+/), [
    'bucket',
    'rate',
    'keys',
    'fullest',
    'queued',
    'oldest',
    'in/s',
    'released/s',
    'rejected/s',
  ])
  t.same(lines[at + 1]!.split(/\s+/), ['client', '5/s', '1', '100', '%', '9', '0', 'ms', '12', '1', '2'])
  t.match(
    lines.find(line => line.startsWith('al')),
    /^al\?2Jice +client +############ +10\/10 +9 +0 ms +2 s$/,
  )
  const route = lines.findIndex(line => line.startsWith('route'))
  t.same(lines[route]!.split(/\s+/), ['route', 'queued', 'forwarded/s', '5xx/s', 'failed/s', 'rejected/s', 'why'])
  t.same(lines[route + 1]!.split(/\s+/), ['default', '9', lines[route + 1]!.split(/\s+/)[2], '0', '0', '1', 'overflow'])
  await pass(rig, 3_000, 200)
  await Promise.all(answers)
})

t.test('the oldest request that waits is told: of all, of each bucket, of each key', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: {
      client: { key: 'header:x-user', rate: '5/s', capacity: 10 },
      everyone: { key: 'all', rate: '100/s', capacity: 100 },
    },
  })
  const send = (user: string) => fetch(rig.proxy.url, { headers: { 'x-user': user } })
  const answers: Promise<Response>[] = []
  for (const [user, count, at] of [
    ['slow', 9, 0],
    ['quick', 2, 1_000],
  ] as const) {
    rig.pacer.runUntil(at)
    const before = (await rig.snapshot()).buckets[1]!.offered
    answers.push(...Array.from({ length: count }, () => send(user)))
    while ((await rig.snapshot()).buckets[1]!.offered < before + count) await turns()
  }
  rig.pacer.runUntil(1_100)
  const now = await rig.snapshot()
  const oldestOf = (name: string) => now.buckets.find(bucket => bucket.name === name)!
  t.same([now.oldestMs, oldestOf('client').oldestMs, oldestOf('everyone').oldestMs], [1_100, 1_100, 1_100])
  const ofKeys = oldestOf('client').fullest.map(({ key, oldestMs }) => [key, oldestMs])
  t.same(ofKeys, [
    ['slow', 1_100],
    ['quick', 100],
  ])
  t.equal(oldestOf('everyone').fullest[0]!.oldestMs, 1_100)
  const lines = topLines(now, undefined)
  t.match(lines[0], /^4 queued, the oldest for 1\.1 s; /)
  t.match(
    lines.find(line => line.startsWith('quick')),
    /\/10 +1 +100 ms /,
  )
  await pass(rig, 3_000, 100)
  await Promise.all(answers)
  const after = await rig.snapshot()
  t.same([after.oldestMs, after.buckets[0]!.oldestMs], [undefined, undefined])
})

t.test('what an upstream says of its failure does not control the terminal', async t => {
  const failure = 'an unknown transfer coding (\u009b2J\u001b[2J)'
  const upstreams = [{ url: 'http://127.0.0.1:9000', inFlight: 0, pausedMs: 0, probeMs: 1_000, failure }]
  const text = topLines(withTroubles(quiet(1_000, { upstreams })), undefined).join('\n')
  t.match(text, 'fails: an unknown transfer coding (?2J?[2J); tried again in 1 s')
  t.notOk(text.includes('\u001b') || text.includes('\u009b'))
})

t.test('once answers are shared top has a column for them', async t => {
  const at = (ms: number, shared: number[]) => {
    const one = (coalesced: number, place: number) =>
      route({ name: `r${place}`, outcomes: { ...route().outcomes, forwarded: 8 }, ...(coalesced > 0 && { coalesced }) })
    return quiet(ms, { routes: shared.map(one) })
  }
  const lines = topLines(at(3_000, [6, 0]), at(1_000, [0, 0]))
  const header = lines.findIndex(line => line.startsWith('route'))
  t.match(lines[header], /^route +queued +forwarded\/s +shared\/s +5xx\/s/)
  t.match(lines[header + 1], /^r0 +0 +0 +3 +0 /)
  t.match(lines[header + 2], /^r1 +0 +0 +0 +0 /)
})

t.test('top marks overridden keys, blocked or not', async t => {
  const overriddenUntil = '2030-01-01T00:00:00.000Z'
  const fullest = [
    instance('a', 5, { overriddenUntil }),
    instance('b', 5, { overriddenUntil, blockedMs: 12_000 }),
    instance('c', 5),
  ]
  const lines = topLines(quiet(1_000, { buckets: [bucket({ fullest })] }), undefined).map(line => line.trimEnd())
  const stateOf = (key: string) => lines.find(line => line.startsWith(`${key} `))!
  t.match(stateOf('a'), /ms +overridden$/)
  t.match(stateOf('b'), /blocked 12 s, overridden$/)
  t.notMatch(stateOf('c'), 'overridden')
})

t.test('what dry runs would have done', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, {
    upstream: upstream.url,
    buckets: CLIENT,
    dryRun: true,
    routes: [{ name: 'api' }],
  })
  for (let sent = 0; sent < 12; sent += 1) {
    await fetch(rig.proxy.url, { headers: { 'x-user': 'a', 'user-agent': 'curl/8' } })
  }
  const lines = dryRunTable(await rig.snapshot())
  t.ok(lines.some(line => /^library +2 +9$/.test(line)))
  t.ok(lines.some(line => /^api +client +a +library +2 +9 +1.8 s$/.test(line)))
  const plain = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT })
  t.match(dryRunTable(await plain.snapshot())[0], /no route is a dry run/)
})

t.test('the command: once, with a token, and errors in one line', async t => {
  const rig = await startAdminRig(t, { upstream: 'echo:', buckets: CLIENT }, { token: 's3cret-of-16-and-more' })
  const args = (more: string[]) => ['top', '--admin', rig.admin.url, ...more]
  const top = (more: string[], env = {}) => shaperHere(args(more), { env })
  const refused = await top(['--count', '1'])
  t.equal(refused.code, 1)
  t.match(refused.stderr, /^shaper: the admin server at http:\/\/127\.0\.0\.1:\d+ wants a token; set SHAPER_TOKEN\n$/)
  const wrong = await top(['--count', '1'], { SHAPER_TOKEN: 'other' })
  t.match(
    wrong.stderr,
    /^shaper: the admin server at http:\S+ refuses the token in SHAPER_TOKEN; set it to the token of the configuration\n$/,
  )
  const shown = await shaper(args(['--count', '2', '--interval', '100ms']), {
    env: { SHAPER_TOKEN: 's3cret-of-16-and-more' },
  }).finished
  t.equal(shown.code, 0, shown.stderr)
  t.equal(shown.stdout.match(/^bucket /gm)?.length, 2)
  const rehearsed = await top(['--dry-run', '--count', '1'], { SHAPER_TOKEN: 's3cret-of-16-and-more' })
  t.match(rehearsed.stdout, /no route is a dry run/)
  const bad = await shaperHere(['top', '--interval', '1ms', '--count', 'x'])
  t.equal(bad.code, 2)
  t.equal(bad.stderr.split('\n').length, 3)
  await rig.admin.close()
  // A process of its own, because this one keeps connections to the server that has closed.
  const away = await shaper(args(['--count', '1'])).finished
  t.equal(away.code, 1)
  t.match(away.stderr, /does not answer \(ECONNREFUSED\); .*, or name it with --admin URL\n$/)
})

t.test('top shows what the admin server says to do', async t => {
  let body = ''
  const server = createServer((_req, res) =>
    res.writeHead(421, { 'Content-Type': 'application/problem+json' }).end(body),
  )
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.close()
    server.closeAllConnections()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const saying = async (text: string): Promise<string> => {
    body = text
    const { code, stderr } = await shaperHere(['top', '--admin', url, '--count', '1'])
    t.equal(code, 1)
    return stderr
  }
  const plain = `shaper: the admin server at ${url} answers 421`
  t.equal(await saying('{"detail":"use an IP address\\u001b[1m"}'), `${plain}: use an IP address?[1m\n`)
  for (const other of ['', 'null', '[]', '{"detail":5}', '<html>']) t.equal(await saying(other), `${plain}\n`, other)
})

t.test('how long clients of a route wait, and what was given up', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: CLIENT,
    routes: [{ name: 'a', match: { path: '/a' } }, { name: 'b' }],
  })
  const plain = await rig.snapshot()
  const withPatience = (patience: object) => ({
    ...plain,
    routes: plain.routes.map(route =>
      route.name === 'a' ? { ...route, patience: { givenUp: 30, ...patience } } : route,
    ),
  })
  const linesOf = (patience: object) =>
    topLines(withPatience(patience) as typeof plain, undefined)
      .filter(line => /^[ab] /.test(line))
      .map(line => line.replace(/ +/g, ' '))
  t.same(linesOf({ learntMs: 1_940, lastMinute: 13 }), ['a 0 leave after 1.94 s, 13 given up/min', 'b 0'])
  t.same(linesOf({ lastMinute: 2 }), ['a 0 2 given up/min', 'b 0'])
  t.same(linesOf({ serviceMs: 80, lastMinute: 0 }), ['a 0', 'b 0'], 'nothing to tell')
})

t.test('right after a burst the first table and the snapshot tell its rate', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: CLIENT, routes: [{ mode: 'meter' }] })
  for (let number = 0; number < 12; number += 1) await fetch(rig.proxy.url, { headers: { 'x-user': 'a' } })
  rig.pacer.runUntil(2_000)
  const now = await rig.snapshot()
  t.same(now.buckets[0]!.perSecond, { offered: 6, released: 5, rejected: 1 })
  const line = topLines(now, undefined).find(each => each.startsWith('client'))
  t.same(line!.trim().split(/\s+/).slice(-3), ['6', '5', '1'])
})
