/** Addresses from DNS: what is asked when, and what answers change (contract 14.4). */
import type { SrvRecord } from 'node:dns'
import t from 'tap'
import type { ServerSettings } from '../../src/config/settings.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { createTimerClock } from '../../src/pacing/timer.js'
import { FollowedNames, type NameResolver } from '../../src/proxy/upstream/followed-names.js'
import { startDns } from '../servers/dns.js'
import { eventually, turns } from './harness.js'

const APP = 'http://app.test:9000'

function serverOf(more: Partial<ServerSettings> = {}): ServerSettings {
  return { url: APP, weight: 1, maxInFlight: Infinity, backup: false, dns: true, ...more }
}

function errorOf(code: string): Error {
  return Object.assign(new Error(`query ${code}`), { code })
}

/** DNS on the virtual clock. */
function rigOf(server = serverOf()) {
  const clock = createVirtualClock()
  /** By `4 name`, `6 name`, `srv name` and `system name`. */
  const zone = new Map<string, readonly unknown[] | string>()
  const asked: { what: string; at: number }[] = []
  const told: string[] = []
  let changes = 0
  const answer = async (what: string): Promise<never> => {
    asked.push({ what, at: clock.now() })
    const found = zone.get(what) ?? 'ENODATA'
    if (typeof found === 'string') throw errorOf(found)
    return found as never
  }
  const open = (servers: readonly string[] | undefined): NameResolver => ({
    addresses: (name, family) => answer(`${family} ${name}`),
    services: name => answer(`srv ${name}`),
    ...(servers === undefined && { lookup: name => answer(`system ${name}`) }),
    cancel: () => undefined,
  })
  const names = new FollowedNames({
    clock,
    open,
    told: (url, found, failure) => told.push(`${url} ${found.length} ${failure?.detail ?? ''}`.trim()),
  })
  const name = names.of(server)
  return {
    ...{ clock, zone, asked, told, names, name },
    get changes() {
      return changes
    },
    set4: (addresses: readonly string[], ttl: number, host = 'app.test') =>
      void zone.set(
        `4 ${host}`,
        addresses.map(address => ({ address, ttl })),
      ),
    /** When IPv4 addresses were asked for, in ms. */
    times: () => asked.filter(({ what }) => what.startsWith('4 ')).map(({ at }) => at),
    hosts: () => name.found.map(({ host }) => host),
    async start() {
      const first = name.asked(5_000)
      await turns()
      await first
      name.join(() => {
        changes += 1
      })
      await turns()
    },
    async pass(ms: number, step = 100) {
      for (const end = clock.now() + ms; clock.now() < end; ) {
        clock.runUntil(Math.min(end, clock.now() + step))
        await turns(3)
      }
    },
  }
}

t.test('a name is asked again before its time to live ends, with a spread', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1', '10.0.0.2'], 20)
  await rig.start()
  t.same(rig.hosts(), ['10.0.0.1', '10.0.0.2'])
  await rig.pass(200_000)
  const gaps = rig.times().map((at, index, all) => at - (all[index - 1] ?? at))
  t.ok(gaps.length >= 11)
  t.ok(
    gaps.slice(1).every(gap => gap >= 16_000 && gap <= 20_100),
    `${gaps}`,
  )
  t.ok(new Set(gaps.slice(1)).size > 1, 'not all instances ask at once')
  t.equal(rig.changes, 0, 'the same addresses are no news')
  rig.set4(['10.0.0.3', '10.0.0.2'], 20)
  await rig.pass(20_100)
  t.same(rig.hosts(), ['10.0.0.2', '10.0.0.3'])
  t.equal(rig.changes, 1)
  rig.set4(['10.0.0.2', '10.0.0.3'], 20)
  await rig.pass(20_100)
  t.equal(rig.changes, 1, 'their order is no news')
  t.same(rig.told, [`${APP} 2`, `${APP} 2`])
})

t.test('it is asked at most once a second, and at least every five minutes', async t => {
  const short = rigOf()
  short.set4(['10.0.0.1'], 0)
  await short.start()
  await short.pass(10_000)
  t.equal(short.times().length, 11)
  const long = rigOf()
  long.set4(['10.0.0.1'], 86_400)
  await long.start()
  await long.pass(900_000, 1_000)
  t.equal(long.times().length, 4)
})

t.test('the shortest time to live of all addresses counts', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1'], 300)
  rig.zone.set('6 app.test', [{ address: 'fd00::1', ttl: 5 }])
  await rig.start()
  t.same(rig.hosts(), ['10.0.0.1', 'fd00::1'])
  await rig.pass(5_100)
  t.equal(rig.times().length, 2)
})

t.test('a failed question keeps what is known, and is told once; the next ones come after 1 to 30 s', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1'], 10)
  await rig.start()
  for (const failure of ['ESERVFAIL', 'ENOTFOUND']) {
    rig.told.length = 0
    rig.zone.set('4 app.test', failure)
    await rig.pass(10_100)
    const before = rig.times().length
    await rig.pass(150_000)
    t.same(rig.hosts(), ['10.0.0.1'])
    t.equal(rig.changes, 0)
    const gaps = rig
      .times()
      .slice(before - 1)
      .map((at, index, all) => (all[index + 1] ?? at) - at)
      .slice(0, -1)
    const least = [1, 2, 4, 8, 16, 30, 30, 30].slice(0, gaps.length)
    if (failure === 'ESERVFAIL') {
      t.ok(gaps.length >= 6)
      for (const [index, gap] of gaps.entries())
        t.ok(gap >= Math.min(30_000, least[index]! * 1_000) * 0.99 && gap <= 37_000, `${index}: ${gap}`)
    }
    t.same(rig.told, [`${APP} 1 DNS says no address of the upstream: its servers stay as they are`])
    t.match(rig.name.failure?.cause?.message, failure)
    rig.set4(['10.0.0.1'], 10)
    await rig.pass(37_000)
    t.equal(rig.name.failure, undefined)
    t.equal(rig.told.at(-1), `${APP} 1`, 'its end is told, too')
  }
})

t.test('a family that cannot be asked about keeps its addresses; one that has none loses them', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1'], 5)
  rig.zone.set('6 app.test', [{ address: 'fd00::1', ttl: 5 }])
  await rig.start()
  rig.zone.set('6 app.test', 'ETIMEOUT')
  rig.set4(['10.0.0.2'], 5)
  await rig.pass(5_100)
  t.same(rig.hosts(), ['10.0.0.2', 'fd00::1'])
  await rig.pass(5_100)
  t.same(rig.hosts(), ['10.0.0.2', 'fd00::1'], 'also the next time')
  rig.zone.delete('6 app.test')
  await rig.pass(5_100)
  t.same(rig.hosts(), ['10.0.0.2'])
  rig.zone.set('4 app.test', 'ETIMEOUT')
  await rig.pass(5_100)
  t.same(rig.hosts(), ['10.0.0.2'])
  t.not(rig.name.failure, undefined, 'nobody has said an address')
})

t.test('the first hundred addresses are used, whatever their order is', async t => {
  const rig = rigOf()
  const many = Array.from({ length: 3_000 }, (_, at) => `10.0.${at >> 8}.${at & 255}`)
  rig.set4(many, 5)
  await rig.start()
  t.equal(rig.name.found.length, 100)
  t.match(rig.told, [`${APP} 100 DNS has 3000 addresses of the upstream: the first 100 are used`])
  rig.set4(many.reverse(), 5)
  await rig.pass(5_100)
  t.equal(rig.changes, 0)
  t.equal(rig.told.length, 1)
})

t.test('a name that only the system knows is looked up every 30 s', async t => {
  for (const [url, isAsked] of [
    [APP, true],
    ['http://localhost:9000', false],
    ['http://app.localhost:9000', false],
  ] as const) {
    const rig = rigOf(serverOf({ url }))
    const host = new URL(url).hostname
    rig.zone.set(`4 ${host}`, 'ENOTFOUND')
    rig.zone.set(`system ${host}`, [{ address: '127.0.0.1' }, { address: '127.0.0.1' }])
    await rig.start()
    t.same(rig.hosts(), ['127.0.0.1'])
    await rig.pass(120_000)
    const looks = rig.asked.filter(({ what }) => what === `system ${host}`).length
    t.ok(looks >= 5 && looks <= 6, `${looks}`)
    t.equal(rig.times().length > 0, isAsked)
    t.same(rig.told, [`${url} 1`])
  }
})

t.test('the system is not asked about a name that DNS knows, nor where the file says whom to ask', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1'], 5)
  rig.zone.set('system app.test', [{ address: '192.0.2.1' }])
  await rig.start()
  rig.zone.set('4 app.test', 'ENOTFOUND')
  await rig.pass(30_000)
  t.same(rig.hosts(), ['10.0.0.1'])
  for (const url of [APP, 'http://localhost:9000']) {
    const other = rigOf(serverOf({ url, resolver: ['10.0.0.53'] }))
    other.zone.set('system app.test', [{ address: '192.0.2.1' }])
    await other.start()
    t.same(other.hosts(), [])
    t.same(other.told, [`${url} 0 DNS says no address of the upstream: it has no server`])
    t.notOk(other.asked.some(({ what }) => what.startsWith('system')))
  }
})

t.test('SRV: ports, weights, and all but the lowest priority as backups', async t => {
  const url = 'http://_http._tcp.app.test'
  const rig = rigOf(serverOf({ url, dns: 'srv' }))
  const record = (name: string, priority: number, weight: number, port: number): SrvRecord => ({
    ...{ name, priority, weight, port },
  })
  rig.zone.set('srv _http._tcp.app.test', [
    record('spare.test', 20, 10, 81),
    record('a.test', 10, 30, 8080),
    record('b.test', 10, 0, 9090),
    record('b.test', 10, 1, 0),
    record('', 10, 1, 1),
  ])
  rig.set4(['10.0.0.1', '10.0.0.2'], 300, 'a.test')
  rig.set4(['10.0.0.3'], 300, 'b.test')
  rig.set4(['10.0.0.9'], 300, 'spare.test')
  await rig.start()
  const found = [
    { host: '10.0.0.1', port: 8080, weight: 15, isBackup: false },
    { host: '10.0.0.2', port: 8080, weight: 15, isBackup: false },
    { host: '10.0.0.3', port: 9090, weight: 1, isBackup: false },
    { host: '10.0.0.9', port: 81, weight: 10, isBackup: true },
  ]
  t.same(rig.name.found, found)
  rig.zone.set('4 a.test', 'ESERVFAIL')
  await rig.pass(30_100)
  t.same(rig.name.found, found, 'the addresses of a target that cannot be asked about stay')
  t.equal(
    rig.asked.filter(({ what }) => what.startsWith('srv')).length,
    2,
    'after 30 s: their time to live is not known',
  )
  rig.zone.set('4 a.test', 'ENOTFOUND')
  await rig.pass(30_100)
  t.same(rig.name.found, found.slice(2), 'those of a target that is gone do not')
  rig.zone.set('srv _http._tcp.app.test', [record('spare.test', 20, 10, 81)])
  await rig.pass(30_100)
  t.same(rig.name.found, [{ host: '10.0.0.9', port: 81, weight: 10, isBackup: false }])
  rig.zone.set('srv _http._tcp.app.test', [record('', 0, 0, 0)])
  await rig.pass(30_100)
  t.equal(rig.name.found.length, 1, 'no service is a failure, too')
  t.match(rig.name.failure?.cause?.message, /no SRV record of _http._tcp.app.test names a server/)
})

t.test('a name that nobody uses is not asked about, and is forgotten', async t => {
  const rig = rigOf()
  rig.set4(['10.0.0.1'], 5)
  const changed = (): void => undefined
  await rig.name.asked(5_000)
  t.equal(rig.clock.next(), Infinity, 'nobody uses it yet')
  rig.name.join(changed)
  t.equal(rig.names.of(serverOf({ weight: 3 })), rig.name, 'its rules do not matter')
  t.not(rig.names.of(serverOf({ resolver: ['10.0.0.53'] })), rig.name)
  rig.names.forgetUnused()
  t.equal(rig.names.of(serverOf()), rig.name)
  rig.name.leave(changed)
  t.equal(rig.clock.next(), Infinity)
  rig.names.forgetUnused()
  t.not(rig.names.of(serverOf()), rig.name)
})

t.test('the first answer is awaited for a limited time', async t => {
  const clock = createVirtualClock()
  let answer: ((addresses: { address: string; ttl: number }[]) => void) | undefined
  const names = new FollowedNames({
    clock,
    open: () => ({
      addresses: (_name, family) =>
        family === 6 ? Promise.reject(errorOf('ENODATA')) : new Promise(resolve => (answer = resolve)),
      services: () => Promise.resolve([]),
      cancel: () => undefined,
    }),
    told: () => undefined,
  })
  const asked = names.ask([serverOf()], 5_000)
  let isOver = false
  void asked.then(() => {
    isOver = true
  })
  clock.runUntil(4_999)
  await turns()
  t.notOk(isOver)
  clock.runUntil(5_000)
  await asked
  let changes = 0
  const name = names.of(serverOf())
  name.join(() => {
    changes += 1
  })
  answer!([{ address: '10.0.0.1', ttl: 5 }])
  await turns()
  t.same([changes, name.found.length], [1, 1], 'it comes later')
})

/** With the real resolver, on real time. */
async function realRig(t: Parameters<typeof startDns>[0], more: Partial<ServerSettings> = {}) {
  const dns = await startDns(t)
  const told: string[] = []
  const names = new FollowedNames({
    clock: createTimerClock(),
    told: (_url, found, failure) => told.push(`${found.length} ${failure?.cause?.message ?? ''}`.trim()),
  })
  t.teardown(() => names.close())
  const name = names.of(serverOf({ resolver: [dns.address], ...more }))
  return { dns, names, name, told }
}

t.test('a DNS server: both families, SRV, and an answer that is cut off', async t => {
  const { dns, name, names } = await realRig(t)
  dns.set('A', 'app.test', ['10.0.0.2', '10.0.0.1'])
  dns.set('AAAA', 'app.test', ['fd00::1'])
  await name.asked(30_000)
  t.same(
    name.found.map(({ host }) => host),
    ['10.0.0.1', '10.0.0.2', 'fd00::1'],
  )
  dns.set('SRV', 'srv.test', ['1 5 8080 app.test', '2 1 81 app.test'])
  const services = names.of(serverOf({ url: 'http://srv.test', dns: 'srv', resolver: [dns.address] }))
  await services.asked(30_000)
  t.same(
    services.found.map(({ host, port, isBackup }) => `${host} ${port} ${isBackup}`),
    [
      ...['10.0.0.1 8080 false', '10.0.0.2 8080 false', 'fd00::1 8080 false'],
      ...['10.0.0.1 81 true', '10.0.0.2 81 true', 'fd00::1 81 true'],
    ],
  )
  dns.set(
    'A',
    'many.test',
    Array.from({ length: 2_000 }, (_, at) => `10.1.${at >> 8}.${at & 255}`),
  )
  const many = names.of(serverOf({ url: 'http://many.test', resolver: [dns.address] }))
  await many.asked(30_000)
  t.equal(many.found.length, 100)
  t.ok(dns.questions.includes('A many.test tcp'))
})

t.test('long: an answer with a guessed id is none, and a name that does not exist is a failure', async t => {
  const { dns, name, names, told } = await realRig(t)
  dns.set('A', 'app.test', ['10.6.6.6'])
  dns.mode = 'wrong-id'
  await name.asked(30_000)
  t.same(name.found, [])
  t.match(name.failure?.cause?.message, /ETIMEOUT/)
  dns.mode = 'usual'
  const gone = names.of(serverOf({ url: 'http://gone.test', resolver: [dns.address] }))
  await gone.asked(30_000)
  t.match(gone.failure?.cause?.message, /ENOTFOUND/)
  dns.mode = 'servfail'
  const failing = names.of(serverOf({ url: 'http://failing.test', resolver: [dns.address] }))
  await failing.asked(30_000)
  t.match(failing.failure?.cause?.message, /ESERVFAIL/)
  t.equal(told.length, 3)
})

t.test('a question that is under way ends with the program', async t => {
  const { dns, name, names, told } = await realRig(t)
  dns.mode = 'silent'
  const asked = name.asked(30_000)
  await eventually(() => dns.questions.length === 2)
  names.close()
  await asked
  t.same(told, [], 'and is no news')
})
