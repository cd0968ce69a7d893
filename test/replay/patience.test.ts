/** `--patience`: work for clients that have left, and what giving up saves. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { limitsOfFile } from '../../src/replay/plan/limits-file.js'
import { replay } from '../../src/replay/replay.js'
import { diffLimits } from '../../src/replay/report/diff.js'
import type { LeavingOutcomes, ReplayReport } from '../../src/replay/report/report.js'
import { shaperHere } from '../cli/command.js'
import { type Client, connect, get, httpUpstream, pass, startRig, turns } from '../proxy/harness.js'
import { bytes, combined, planOf } from './logs.js'

const START = 1_431_857_103

interface Line {
  /** ms since the beginning of the log */
  readonly at: number
  readonly ip?: string
  readonly path?: string
}

/** JSON lines, written when the answer came, which took `service` ms. */
const answered = (requests: readonly Line[], service: number) =>
  requests
    .map(({ at, ip = '192.0.2.1', path = '/' }) =>
      JSON.stringify({
        msec: (START + (at + service) / 1_000).toFixed(3),
        remote_addr: ip,
        request_method: 'GET',
        request_uri: path,
        request_time: (service / 1_000).toFixed(3),
      }),
    )
    .join('\n')

const CLIENTS = ['192.0.2.1', '192.0.2.2', '192.0.2.3', '192.0.2.4']

/** The same requests of each of four clients. */
const ofEach = (times: readonly number[]): Line[] => times.flatMap(at => CLIENTS.map(ip => ({ at, ip })))

const total = ({ inTime, late, left, givenUp, rejected }: LeavingOutcomes) => inTime + late + left + givenUp + rejected

t.test('what is sent for nobody, who leaves while queued, and what giving up makes of them', async t => {
  // They wait for 0 to 5 s. Answers take 0.5 s.
  const log = answered(ofEach([0, 0, 0, 0, 0, 0]), 500)
  const { leaving, ...report } = await replay(planOf(bytes(log), { rate: '1/s', capacity: '10' }, { patience: 3_200 }))
  t.same(leaving, {
    patience: 3_200,
    service: 500,
    kept: { inTime: 4 * 3, late: 4, left: 4 * 2, givenUp: 0, rejected: 0 },
    givenUp: { inTime: 4 * 3, late: 0, left: 0, givenUp: 4 * 3, rejected: 0 },
  })
  t.match(report, { requests: 24, atOnce: 4, delayed: 20, rejected: 0 }, 'the rest of the report is as without')
})

t.test('who is given up on arrival takes no room in the bucket', async t => {
  const log = answered(ofEach([0, 0, 0, 0, 0, 0, 100, 100]), 500)
  const { leaving } = await replay(planOf(bytes(log), { rate: '1/s', capacity: '4' }, { patience: 3_200 }))
  t.same(leaving!.kept, { inTime: 4 * 3, late: 4, left: 0, givenUp: 0, rejected: 4 * 4 })
  t.same(leaving!.givenUp, { inTime: 4 * 3, late: 0, left: 0, givenUp: 4 * 5, rejected: 0 })
})

t.test('who leaves gives back the place', async t => {
  // Those of the beginning have left after 3.2 s, so that of 3.5 s has the slot at 4 s.
  const log = answered(ofEach([0, 0, 0, 0, 0, 0, 0, 3_500]), 500)
  const { leaving } = await replay(planOf(bytes(log), { rate: '1/s', capacity: '7' }, { patience: 3_200 }))
  t.same(leaving!.kept, { inTime: 4 * 4, late: 4, left: 4 * 3, givenUp: 0, rejected: 0 })
  t.equal(leaving!.givenUp.inTime, 4 * 4)
})

t.test('twice the rate: without giving up most of what is sent is for nobody, with it nothing', async t => {
  const requests = Array.from({ length: 6_000 }, (_, at) => ({ at: at * 5, ip: `192.0.2.${at % 200}` }))
  const config = { buckets: { all: { key: 'all', rate: '100/s', capacity: 1_000 } }, routes: [{ name: 'api' }] }
  const limits = limitsOfFile(join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json'), {}, {})
  const { leaving } = await replay(planOf(bytes(answered(requests, 300)), limits, { patience: 2_000 }))
  const { kept, givenUp } = leaving!
  for (const outcomes of [kept, givenUp]) t.equal(total(outcomes), 6_000)
  t.ok(kept.late / (kept.late + kept.inTime) > 0.85, `${kept.late} of ${kept.late + kept.inTime}`)
  t.equal(givenUp.late, 0)
  t.ok(givenUp.inTime > 3_000, `${givenUp.inTime} are answered in time, ${kept.inTime} else`)
})

t.test('at its turn a request is given up whose wait became too long, and its slot is used', async t => {
  // The rate falls at 10:10, 297 s after the beginning. Of 13 requests a second before, six leave until then. That of 2 s is in
  // time, those that would leave at 3 s are not: so a newcomer then does not wait.
  const change = 297_000
  const rate = [{ from: '10:09', to: '10:10', rate: '5/s' }, { rate: '1/s' }]
  const config = { buckets: { all: { key: 'all', rate, capacity: 30, maxInFlight: 1 } }, routes: [{ name: 'api' }] }
  const limits = limitsOfFile(join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json'), {}, {})
  const run = async (last: readonly number[]) => {
    // The first twenty are long before, one after the other, for the usual time of answers.
    const before = Array.from({ length: 20 }, (_, at) => ({ at: at * 2_000 }))
    const burst = Array.from({ length: 13 }, () => ({ at: change - 1_000 }))
    const log = answered([...before, ...burst, ...last.map(after => ({ at: change - 1_000 + after }))], 500)
    return (await replay(planOf(bytes(log), limits, { patience: 3_000 }))).leaving!.givenUp
  }
  t.same(await run([]), { inTime: 27, late: 0, left: 0, givenUp: 6, rejected: 0 })
  // With a patience of 3 s and answers that take 0.5 s each may wait for 2.5 s: from 3.1 s on 0, 1 and 2 s.
  t.same(await run([3_100, 3_100, 3_100, 3_100]), { inTime: 30, late: 0, left: 0, givenUp: 7, rejected: 0 })
})

t.test('the time of answers: from logs that tell it, without the time in the queue', async t => {
  const service = async (log: string) =>
    (await replay(planOf(bytes(log), { rate: '1/s', capacity: '10' }, { patience: 2_000 }))).leaving!.service
  const twenty = (line: (at: number) => object) =>
    Array.from({ length: 20 }, (_, at) => JSON.stringify(line(at))).join('\n')
  const own = (more: object) => (at: number) => ({
    level: 30,
    time: 1_000 * (START + at),
    route: 'api',
    outcome: 'forwarded',
    status: 200,
    method: 'GET',
    path: '/',
    key: 'abc',
    waitMs: 700,
    ...more,
    msg: 'request',
  })
  t.equal(await service(twenty(own({ upstreamMs: 100 }))), 100, "shaper's own log")
  t.equal(await service(twenty(own({}))), undefined, 'nothing was sent')
  const traefik = (at: number) => ({
    StartUTC: new Date(1_000 * (START + at)).toISOString(),
    ClientHost: '192.0.2.1',
    RequestMethod: 'GET',
    RequestPath: '/',
    Duration: 250_000_000,
  })
  t.equal(await service(twenty(traefik)), 250, 'its time is that of the beginning')
  t.equal(await service(Array.from({ length: 20 }, (_, at) => combined(START + at)).join('')), undefined)
  const timed = (count: number) =>
    Array.from({ length: count }, (_, at) => combined(START + at, '192.0.2.1', `"-" "curl/8" 0.${100 + at}`)).join('')
  t.equal(await service(timed(20)), 117, 'the 90th percentile')
  t.equal(await service(timed(19)), undefined, 'fewer than twenty tell nothing')
})

t.test('routes that queue nothing are late only where answers take longer than clients wait', async t => {
  const config = {
    buckets: { all: { key: 'all', rate: '1/s', capacity: 2 } },
    routes: [
      { name: 'off', match: { path: '/off' }, mode: 'off' },
      { name: 'meter', mode: 'meter' },
    ],
  }
  const limits = limitsOfFile(join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json'), {}, {})
  const requests = Array.from({ length: 20 }, (_, at) => ({ at: 0, path: at < 10 ? '/off' : '/' }))
  const { leaving } = await replay(planOf(bytes(answered(requests, 500)), limits, { patience: 1_000 }))
  const both = { inTime: 12, late: 0, left: 0, givenUp: 0, rejected: 8 }
  t.same([leaving!.kept, leaving!.givenUp], [both, both])
})

t.test('the patience of routes counts without --patience, and a target is refused with it', async t => {
  const routes = [
    { name: 'api', match: { path: '/a' }, patience: '3200ms' },
    { name: 'keen', match: { path: '/b' }, patience: 'none' },
    { name: 'rest', mode: 'meter', patience: '1ms' },
  ]
  const buckets = { client: { key: 'ip', rate: '1/s', capacity: 10 } }
  const cwd = t.testdir({
    'a.json': JSON.stringify({ buckets, routes }),
    'b.json': JSON.stringify({ buckets, routes: [routes[0]] }),
    'c.json': JSON.stringify({ buckets, routes: [{ patience: '3200ms' }] }),
    'timed.log': answered(
      ['/a', '/b'].flatMap((path, at) =>
        ofEach([0, 0, 0, 0, 0, 0]).map(each => ({ ...each, path, ip: `198.51.${at}.${each.ip?.at(-1)}` })),
      ),
      500,
    ),
    'plain.log': Array.from({ length: 6 }, () => combined(START, '192.0.2.1', '"-" "-"', 'GET /a HTTP/1.1')).join(''),
  })
  const run = async (...args: string[]) => {
    const { code, stdout, stderr } = await shaperHere(['replay', ...args, '--json'], { cwd })
    t.equal(code, 0, stderr)
    return JSON.parse(stdout) as ReplayReport
  }
  const [a, b, timed, plain] = ['a.json', 'b.json', 'timed.log', 'plain.log'].map(name => join(cwd, name)) as [
    ...[string, string, string, string],
  ]
  // Each waits for 0 to 5 s. On /a the last three answers of each client would come after 3.5, 4.5 and 5.5 s.
  const report = await run(timed, '-c', a)
  t.match(report, { requests: 48, admitted: 24 + 12, rejected: 12, expired: 0, wait: { max: 5_000 } })
  t.same(report.notes, ['patience of "api": answers are taken to come after 500 ms, the 90th percentile in the log'])
  const both = (await run(timed, '-c', a, '--patience', '3200ms')) as ReplayReport
  t.same({ ...both, leaving: undefined }, { ...report, leaving: undefined }, 'the rest of the report is as without')
  t.match(both.leaving, { kept: { inTime: 24, late: 8 }, givenUp: { inTime: 24, givenUp: 24 } })

  // Four wait for no longer than 3.2 s.
  const untold = await run(plain, '-c', a, '--spread', 'none')
  t.match(untold, { admitted: 4, rejected: 2, wait: { max: 3_000 } })
  t.match(untold.notes, ['patience of "api": answers are taken to come at once, because the log does not say how long'])
  const piped = await shaperHere(['replay', '-c', a, '--json'], { cwd, input: readFileSync(timed) })
  t.match(JSON.parse(piped.stdout), {
    admitted: 24 + 16,
    notes: [/because standard input cannot be read twice; save it/],
  })

  const diff = await shaperHere(['replay', '--diff', a, b, timed, '--json'], { cwd })
  t.match(JSON.parse(diff.stdout), { a: { rejected: 12 }, b: { rejected: 12 + 24 } }, diff.stderr)
  const refused = await shaperHere(['replay', timed, '-c', join(cwd, 'c.json'), '--target', 'reject<=1%'], { cwd })
  t.equal(refused.code, 2)
  t.match(refused.stderr, /--sweep: .* has more than one bucket or route, tiers, costs, penalties or patience; try one/)
})

t.test('by the patience of its route a request is rejected for a change of the rate that is known', async t => {
  // As with --patience above: the rate falls while thirteen wait. Those that would not get their answers are told so on arrival.
  const change = 297_000
  const rate = [{ from: '10:09', to: '10:10', rate: '5/s' }, { rate: '1/s' }]
  const config = { buckets: { all: { key: 'all', rate, capacity: 30 } }, routes: [{ name: 'api', patience: '3s' }] }
  const cwd = t.testdir({ 'a.json': JSON.stringify(config) })
  const limits = limitsOfFile(join(cwd, 'a.json'), {}, {})
  const before = Array.from({ length: 20 }, (_, at) => ({ at: at * 2_000 }))
  const burst = Array.from({ length: 13 }, () => ({ at: change - 1_000 }))
  writeFileSync(join(cwd, 'log'), answered([...before, ...burst], 500))
  const report = await replay(planOf([join(cwd, 'log')], limits))
  t.match(report, { requests: 33, admitted: 27, rejected: 6, expired: 0 })
  const other = limitsOfFile(join(cwd, 'a.json'), {}, {})
  const { a, b } = await diffLimits(limits, other, planOf([join(cwd, 'log')], limits))
  t.same([a.admitted, b.rejected], [27, 6], 'a comparison knows the time of day, too')
})

t.test('the command prints both, says where the log has no times, and refuses what it cannot do', async t => {
  const cwd = t.testdir({
    'timed.log': answered(ofEach([0, 0, 0, 0, 0, 0]), 500),
    'plain.log': Array.from({ length: 5 }, () => combined(START)).join(''),
  })
  const back = process.cwd()
  process.chdir(cwd)
  t.teardown(() => process.chdir(back))
  const limits = ['--rate', '1/s', '--capacity', '10', '--patience', '3200ms']
  const timed = await shaperHere(['replay', 'timed.log', ...limits], { cwd })
  t.match(timed.stdout, /if clients leave after 3\.2 s, and answers take 500 ms \(90th percentile in the log\):/)
  t.match(timed.stdout, /answered after they left +4 +0\n/)
  t.match(timed.stdout, /sent for nobody +25 % +0 %\n/)
  t.notMatch(timed.stdout, /does not say how long/)
  const plain = await shaperHere(['replay', 'plain.log', ...limits], { cwd })
  t.match(plain.stdout, /answers take no time:/)
  t.match(plain.stdout, /note: the log does not say how long answers take/)
  const without = await shaperHere(['replay', 'plain.log', '--rate', '1/s', '--json'], { cwd })
  t.notOk('leaving' in (JSON.parse(without.stdout) as object))
  writeFileSync(join(cwd, 'a.json'), '{}')
  for (const [more, message] of [
    [['--patience', '2'], /--patience: "2" is not a duration/],
    [['--patience', '2s', '--sweep'], /--patience: not together with --sweep/],
    [['--patience', '2s', '--target', 'reject<=1%'], /--patience: not together with --sweep or --target/],
  ] as const) {
    const { code, stderr } = await shaperHere(['replay', 'plain.log', '--rate', '1/s', ...more], { cwd })
    t.equal(code, 2)
    t.match(stderr, message)
  }
  const diff = await shaperHere(['replay', '--diff', 'a.json', 'a.json', 'plain.log', '--patience', '2s'], { cwd })
  t.match(diff.stderr, /--patience: not together with --diff/)
})

t.test('the proxy gives up the same requests, and the same clients leave', async t => {
  const upstream = await httpUpstream(t)
  const buckets = {
    client: { key: 'ip', rate: '2/s', capacity: 20 },
    all: { key: 'all', rate: '5/s', capacity: 60 },
  }
  const route = { name: 'api', buckets: ['client', 'all'] }
  const rig = await startRig(t, {
    upstream: upstream.url,
    trustProxy: true,
    buckets,
    routes: [{ ...route, patience: '1250ms' }],
  })
  const requests = Array.from({ length: 150 }, (_, at) => ({
    at: Math.floor(at / 5) * 300,
    ip: `192.0.2.${(at * at + at) % 7}`,
  }))
  const counts = (outcome: string) => rig.outcomes.filter(each => each === outcome).length
  const waiting = new Map<Client, number>()
  let answers = 0
  /** Slots and arrivals are at whole 100 ms, so nobody leaves at a slot. */
  const passUntil = async (until: number) => {
    while (rig.pacer.now() < until) {
      await pass(rig, rig.pacer.now() + 50, 50)
      await rig.until(({ released }) => released.length === counts('api forwarded 200'))
      while (answers + counts('api cancelled 499') < rig.outcomes.length) await turns()
      for (const [client, leavesAt] of waiting) {
        if (leavesAt > rig.pacer.now()) continue
        const before = rig.outcomes.length
        waiting.delete(client)
        client.hangUp()
        await rig.finished(before + 1)
      }
    }
  }
  for (const [number, { at, ip }] of requests.entries()) {
    await passUntil(at)
    const client = await connect(t, rig)
    client.send(get('/', `X-Forwarded-For: ${ip}`))
    waiting.set(client, at + 1_250)
    const over = (): void => {
      if (waiting.delete(client)) answers += 1
    }
    client.answer().then(over, over)
    await rig.until(({ queued, released }) => {
      const atOnce = released.filter(({ wait }) => wait === 0).length
      return queued.length + atOnce + counts('api rejected 429') > number
    })
  }
  await passUntil(requests.at(-1)!.at + 3_000)
  await rig.finished(requests.length)
  const config = { buckets, routes: [route] }
  const limits = limitsOfFile(join(t.testdir({ 'a.json': JSON.stringify(config) }), 'a.json'), {}, {})
  // Lines without a duration: answers take no time, as on the clock of the proxy.
  const log = answered(requests, 0).replace(/,"request_time":"[^"]*"/g, '')
  const { leaving } = await replay(planOf(bytes(log), limits, { patience: 1_250 }))
  const live = {
    inTime: counts('api forwarded 200'),
    late: 0,
    left: counts('api cancelled 499'),
    givenUp: rig.givenUp.length,
    rejected: 0,
  }
  t.same(leaving!.givenUp, live)
  t.ok(live.inTime > 30 && live.givenUp > 30)
})
