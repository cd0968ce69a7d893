/** `shaper key`: one key, and keys found by a text. */
import type { ServerResponse } from 'node:http'
import t from 'tap'
import { withTroubles } from '../../src/admin/snapshot/troubles.js'
import { topLines } from '../../src/cli/commands/top.js'
import { hashedKey } from '../../src/proxy/routing/key.js'
import { startAdminRig } from '../admin/rig.js'
import { httpUpstream, pass, turns } from '../proxy/harness.js'
import { freePort } from '../servers/free-port.js'
import { until } from '../servers/redis.js'
import { shaperHere } from './command.js'

const BUCKETS = {
  client: { key: 'header:x-user', rate: '50/s', capacity: 3 },
  everyone: { key: 'all', rate: '10/s', capacity: 100 },
}

t.test('one key, as lines and as JSON', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: BUCKETS, routes: [{ name: 'api' }] })
  let answered = 0
  const answers = Array.from({ length: 6 }, async () => {
    await fetch(rig.proxy.url, { headers: { 'x-user': 'al ice' } })
    answered += 1
  })
  // One has left, and three are rejected.
  while (answered < 4) await turns()
  await turns(20)
  const key = (...args: string[]) => shaperHere(['key', ...args, '--admin', rig.admin.url])
  const { stdout, stderr, code } = await key('client', 'al ice')
  t.equal(code, 0, stderr)
  const lines = stdout.split('\n')
  t.equal(lines[0], `client: al ice (${hashedKey('al ice')} in the log)`)
  t.match(lines[1], /^level 3 of 3, rate 50\/s; 2 waiting, the oldest for 0 ms, [01] in flight$/)
  t.equal(lines[2], 'a newcomer waits 300 ms')
  t.equal(lines[3], 'because: bucket everyone')
  t.same(lines[5]!.split(/ {2,}/), ['route', 'a newcomer waits', 'is rejected', 'buckets of unknown key'])
  t.same(lines[6]!.split(/ {2,}/), ['api', '300 ms', 'overflow of client, again in 20 ms'])
  t.same(lines[8]!.split(/ {2,}/), ['latest requests', 'route', 'outcome', 'status', 'held', 'answered in'])
  const time = '\\d{4}-\\d\\d-\\d\\dT\\S+Z'
  t.match(stdout, new RegExp(`^${time} {2}api {4}rejected: overflow of client {2}429 +0 ms$`, 'm'))
  t.match(stdout, new RegExp(`^${time} {2}api {4}forwarded +200 +0 ms +[\\d.]+ ms$`, 'm'))

  await rig.source.override({ bucket: 'client', key: 'al ice', rate: 0.2, endsIn: 3_600_000 })
  t.match((await key('client', 'al ice')).stdout, /^overridden until \d{4}-\S+Z: rate 200\/s$/m)
  const asJson = JSON.parse((await key('client', 'al ice', '--json')).stdout)
  t.match(asJson, { bucket: 'client', key: 'al ice', waiting: 2, override: { rate: 200 } })
  t.match((await key('everyone', 'all')).stdout, /^api +\d+ ms +client$/m, 'the bucket that is taken as idle')

  const found = (await key('AL I')).stdout.split('\n')
  t.same(found[0]!.split(/ {2,}/), ['bucket', 'key', 'level', 'waiting', 'a newcomer waits'])
  t.same(found[1]!.split(/ {2,}/), ['client', 'al ice', '3/3', '2', '300 ms'])
  t.match((await key(hashedKey('al ice'))).stdout, /^client +al ice/m)
  const none = await key('nothing', 'x')
  t.same(
    [none.code, none.stderr.replace(/http\S+/, 'URL')],
    [1, 'shaper: the admin server at URL answers 404: there is no such bucket; GET /buckets lists them\n'],
  )
  const bad = await shaperHere(['key', 'a', '--admin', 'ftp://x'])
  t.same([bad.code, bad.stderr], [2, 'shaper: --admin: "ftp://x" is not a URL; use e.g. http://127.0.0.1:9090\n'])
  await pass(rig, 3_000, 100)
  await Promise.all(answers)
})

t.test('an upstream that fails, is full or pauses is named with its error, and no bucket is blamed', async t => {
  const held: ServerResponse[] = []
  const upstream = await httpUpstream(t, (_req, res) => held.push(res))
  const pausing = await httpUpstream(t, (_req, res) => res.writeHead(429, { 'Retry-After': '30' }).end())
  const dead = `http://127.0.0.1:${await freePort()}`
  for (const [url, more, cause] of [
    [
      dead,
      { breaker: { failures: 1, probe: '1h' } },
      `${dead} fails: the upstream refused the connection (connect ECONNREFUSED`,
    ],
    [upstream.url, { maxInFlight: 1 }, `${upstream.url} is full, with 1 of 1 in flight`],
    [pausing.url, { pauseOn: { status: [429] } }, `${pausing.url} has asked for a pause`],
  ] as const) {
    const rig = await startAdminRig(t, { upstream: { url, ...more }, buckets: BUCKETS, routes: [{ name: 'api' }] })
    const leaves = new AbortController()
    const asked = ['a', 'b', 'c'].map(user =>
      fetch(rig.proxy.url, { headers: { 'x-user': user }, signal: leaves.signal }).catch(() => undefined),
    )
    // The first has a place or has failed, and the others wait.
    await until('all have come', async () => (await rig.snapshot()).buckets[0]!.offered === 3)
    rig.pacer.runUntil(1_000)
    await until('the others are held', async () => withTroubles(await rig.snapshot()).troubles !== undefined)
    const lines = (await shaperHere(['key', 'client', 'a', '--admin', rig.admin.url])).stdout.split('\n')
    t.match(lines[2], /^a newcomer waits (at least|[23]\d(\.\d)? s$)/)
    t.ok(lines[3]!.startsWith(`because: ${cause}`), lines[3]!)
    t.notMatch(lines.slice(0, 5).join('\n'), /bucket everyone|breaker/)
    leaves.abort()
    await Promise.all(asked)
    for (const answer of held) answer.end()
  }
})

t.test('a combined key is typed as its parts, as top shows it', async t => {
  const rig = await startAdminRig(t, {
    upstream: 'echo:',
    buckets: { login: { key: ['ip', 'route'], rate: '1/s', capacity: 5 } },
    routes: [{ name: 'login' }],
  })
  await (await fetch(rig.proxy.url)).text()
  const key = (...args: string[]) => shaperHere(['key', ...args, '--admin', rig.admin.url])
  const shown = topLines(await rig.snapshot(), undefined).find(line => line.startsWith('127.0.0.1'))!
  t.match(shown, /^127\.0\.0\.1 login +login /)
  t.match(
    (await key('login', '127.0.0.1', 'login')).stdout,
    /^login: 127\.0\.0\.1 login \([0-9a-f]{12} in the log\)\nlevel 1 of 5/,
  )
  for (const typed of ['127.0.0.1?login', '127.0.0.1%0Alogin']) {
    const { code, stderr } = await key('login', typed)
    t.equal(code, 1)
    t.match(
      stderr,
      'a key of login has 2 parts (ip, route); write them one after another, as in "shaper key login IP ROUTE"',
    )
  }
})

t.test('a text that no key has: one line on stderr and exit status 1', async t => {
  const upstream = await httpUpstream(t)
  const rig = await startAdminRig(t, { upstream: upstream.url, buckets: BUCKETS, routes: [{ name: 'api' }] })
  const key = (...args: string[]) => shaperHere(['key', ...args, '--admin', rig.admin.url])
  const stderr = 'shaper: no key has this text or this hash\n'
  t.match(await key('nobody'), { code: 1, stdout: '', stderr })
  const asJson = await key('nobody', '--json')
  t.match(asJson, { code: 1, stderr })
  t.same(JSON.parse(asJson.stdout).buckets, [])
})
