/**
 * Prints what real instances do on real stores, with some of them at a distance. Each part takes less than a minute.
 *
 *     node build/test/instances/measure.js [PART OF A TITLE]...
 *
 * The columns are those of simulate.ts. `seen` is by the upstream, `sent` by the instances. `calls/s` are those that the store
 * has carried out for all instances together. `machine` is the part of the time in which it let processes stand still.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'undici'
import { hashSlot, hashTag } from '../../src/stores/redis/keys.js'
import { moveAway, startRelay } from '../servers/distance.js'
import { type PostgresServer, startPostgres } from '../servers/postgres.js'
import { type RedisServer, startCluster, startRedis } from '../servers/redis.js'
import { machinePauses, type Seen, stoodStill } from './figures.js'
import { clientOf, Load, now } from './load.js'
import { allowedBurst, countBy, gaps, printTable, quantile, ratePerSecond, spreadOf, worstBurst } from './spacing.js'
import { Instance, startUpstream, type Upstream } from './system.js'

/** ms */
const WARM_UP = 1_500
/** An overloaded machine must not count as an outage. */
const TIMEOUT = '2s'

type Cells = Record<string, string | number>

/** A store, as instances are to know it. */
interface Place {
  /** The store in the configuration of an instance. */
  store(instance: number): object
  /** How many calls it has carried out so far. */
  calls(): Promise<number>
}

interface Row {
  readonly what: string
  readonly place: Place
  readonly buckets: Record<string, object>
  /** Requests per second that all may pass together. */
  readonly perSecond: number
  readonly routes?: readonly object[]
  readonly count?: number
  readonly ms?: number
  /** After how many ms a request hangs up. Asked for each. */
  leaves?(): number | undefined
  /** Adds the load. */
  load?(running: Running): void
  /** What else happens, while the load lasts. */
  meanwhile?(running: Running): Promise<void>
  more?(running: Running, sent: readonly Seen[]): Cells
  /** What is compared; default: instances. */
  shares?(path: string): string
}

interface Running {
  readonly instances: readonly Instance[]
  readonly upstream: Upstream
  readonly load: Load
  /** The start of the load, in ms. */
  readonly begin: number
}

const ends: (() => unknown)[] = []

async function endAll(): Promise<void> {
  for (const end of ends.splice(0).reverse()) await end()
}

async function figuresOf(row: Row): Promise<Cells> {
  const { what, place, buckets, count = 4, ms = 6_000, leaves } = row
  const upstream = await startUpstream()
  const routes = (row.routes ?? [{ name: 'api' }]).map(route => ({
    ...{ mode: 'shape', buckets: Object.keys(buckets), maxWait: '10s', patience: 'none' },
    ...route,
  }))
  const instances = Array.from(
    { length: count },
    (_, at) => new Instance({ upstream: upstream.url, store: place.store(at), buckets, routes }, []),
  )
  try {
    await Promise.all(instances.map(instance => instance.ready()))
    const load = new Load(leaves === undefined ? {} : { leaves })
    const running: Running = { instances, upstream, load, begin: now() }
    ;(row.load ?? ofClients(24))(running)
    await sleep(WARM_UP)
    const [before, from] = [await place.calls(), now()]
    await Promise.all([sleep(ms), row.meanwhile?.(running)])
    const [calls, to] = [(await place.calls()) - before, now()]
    await Promise.race([load.stop(), sleep(500)])
    return { what, ...(await describe(row, running, { from, to, calls })) }
  } finally {
    await Promise.all(instances.map(instance => instance.close()))
    await upstream.close()
  }
}

interface Span {
  readonly from: number
  readonly to: number
  readonly calls: number
}

async function describe(row: Row, running: Running, { from, to, calls }: Span): Promise<Cells> {
  const { perSecond, count = 4, shares } = row
  const within = ({ at }: Seen): boolean => at > from && at <= to
  const seen = (await running.upstream.seen()).filter(within).map(({ at }) => at)
  const notes = running.instances.map(instance => instance.notes())
  const byInstance = notes.map(files => files.flatMap(({ sent }) => sent).filter(within))
  const all = byInstance.flat().sort((one, other) => one.at - other.at)
  const sent = all.map(({ at }) => at)
  const rate = ratePerSecond(seen, from, to)
  const pauses = machinePauses(notes.flat().flatMap(note => note.pauses))
  const waits = waitsOf(
    notes.flat().flatMap(({ read }) => read),
    all,
  )
  const gap = (times: readonly number[]): string =>
    [0, 0.01].map(part => fixed((quantile(gaps(times), part) * perSecond) / 1_000, 2)).join(' ')
  return {
    'rate (% of r)': `${fixed(rate, 1)} (${fixed((rate / perSecond) * 100, 1)})`,
    'burst sent, seen (may be)': `${[sent, seen].map(times => fixed(worstBurst(times, perSecond / 1_000), 1)).join(', ')} (${allowedBurst(perSecond / 1_000, count)})`,
    'gap 0/1 % sent, seen': `${gap(sent)}, ${gap(seen)}`,
    shares: shares
      ? named(countBy(all, ({ path }) => shares(path)))
      : byInstance.map(({ length }) => length).join(' / '),
    'calls/s': fixed((calls / (to - from)) * 1_000, 1),
    '/request': fixed(calls / seen.length, 2),
    'wait p50 p99': waits.length > 0 ? `${fixed(quantile(waits, 0.5), 1)} ${fixed(quantile(waits, 0.99), 1)}` : '-',
    'machine %': fixed(stoodStill(pauses, from, to, count) * 100, 1),
    more: Object.entries(row.more?.(running, all) ?? {})
      .map(([name, value]) => `${name} ${value}`)
      .join(', '),
  }
}

function waitsOf(read: readonly Seen[], sent: readonly Seen[]): number[] {
  const came = new Map(read.map(({ path, at }) => [path, at]))
  return sent.flatMap(({ path, at }) => (came.has(path) ? at - came.get(path)! : []))
}

function named(counts: Map<string | number, number>): string {
  if (counts.size <= 5)
    return [...counts]
      .map(([name, count]) => `${name}: ${count}`)
      .sort()
      .join(' / ')
  const { least, most } = spreadOf([...counts.values()])
  return `${fixed(least, 0)} to ${fixed(most, 0)} %`
}

function fixed(value: number, digits: number): string {
  return Number.isFinite(value) ? value.toFixed(digits) : '-'
}

/** So many clients on each instance, which ask again after each answer. */
function ofClients(connections: number): (running: Running) => void {
  return ({ instances, load }) => {
    for (const { url } of instances) load.add(url, 'client', connections)
  }
}

let prefixes = 0

/** @param delay ms each way, of an instance */
async function redisAt(delay: (instance: number) => number, count = 4): Promise<Place> {
  const redis = await startRedis()
  ends.push(() => redis.stop())
  const ports: number[] = []
  for (let instance = 0; instance < count; instance += 1) {
    const ms = delay(instance)
    const relay = ms > 0 ? await startRelay(redis.port, ms) : undefined
    ends.push(() => relay?.close())
    ports.push(relay?.port ?? redis.port)
  }
  return {
    store: instance => ({
      type: 'redis',
      url: `redis://127.0.0.1:${ports[instance]}`,
      timeout: TIMEOUT,
      prefix: prefix(),
    }),
    calls: () => scriptCalls([redis]),
  }

  function prefix(): string {
    return `row-${prefixes}:`
  }
}

async function scriptCalls(servers: readonly RedisServer[]): Promise<number> {
  const stats = await Promise.all(servers.map(server => server.command('INFO', 'commandstats')))
  return stats.reduce<number>(
    (sum, text) => sum + Number(/cmdstat_evalsha:calls=(\d+)/.exec(String(text))?.[1] ?? 0),
    0,
  )
}

async function postgresAt(delay: (instance: number) => number, count = 4): Promise<Place> {
  const postgres = await startPostgres()
  ends.push(() => postgres.close())
  const ports: number[] = []
  for (let instance = 0; instance < count; instance += 1) {
    const ms = delay(instance)
    const relay = ms > 0 ? await startRelay(postgres.port, ms) : undefined
    ends.push(() => relay?.close())
    ports.push(relay?.port ?? postgres.port)
  }
  return {
    store: instance => ({
      ...{ type: 'postgres', table: `row_${prefixes}`, timeout: TIMEOUT },
      url: postgres.url.replace(/:\d+\//, `:${ports[instance]}/`),
    }),
    calls: () => transactions(postgres),
  }
}

/** Those that have ended. A connection reports its own once a second. */
async function transactions(postgres: PostgresServer): Promise<number> {
  const [row] = await postgres.query<{ count: string }>(
    'SELECT sum(xact_commit) AS count FROM pg_stat_database WHERE datname = current_database()',
  )
  return Number(row!.count)
}

const everyone = (perSecond: number, capacity = 400): Record<string, object> => ({
  everyone: { key: 'all', rate: `${perSecond}/s`, capacity },
})

const firstAt = (delay: number) => (instance: number) => (instance === 0 ? delay : 0)

async function distances(of: (delay: (instance: number) => number) => Promise<Place>, ways: number[]): Promise<Row[]> {
  const rows: Row[] = []
  for (const way of ways) {
    const place = await of(firstAt(way))
    rows.push({ what: `1 of 4 at a round trip of ${2 * way} ms`, place, buckets: everyone(200), perSecond: 200 })
  }
  return rows
}

/** One request at a time, each on another instance in turn. */
async function askInTurn({ instances, load }: Running): Promise<number[]> {
  const clients = instances.map(({ url }) => new Client(url))
  const waits: number[] = []
  for (let at = 0; at < 60; at += 1) {
    const began = now()
    await load.ask(clients[at % clients.length]!, 'idle')
    waits.push(now() - began)
    await sleep(50)
  }
  await Promise.all(clients.map(client => client.destroy()))
  return waits
}

async function idle(): Promise<Row[]> {
  const rows: Row[] = []
  for (const way of [0, 7, 15]) {
    let waits: number[] = []
    rows.push({
      what: `idle, round trip ${2 * way} ms`,
      ...{ place: await redisAt(() => way), buckets: everyone(200), perSecond: 200, load: () => {} },
      async meanwhile(running) {
        waits = await askInTurn(running)
      },
      more: () => ({ 'answered after p50': fixed(quantile(waits, 0.5), 1), p90: fixed(quantile(waits, 0.9), 1) }),
    })
  }
  return rows
}

async function calls(): Promise<Row[]> {
  const place = await redisAt(() => 0, 16)
  return [
    [200, 1],
    [200, 4],
    [200, 12],
    [20, 12],
    [1_000, 4],
  ].map(([perSecond, count]) => ({
    what: `r = ${perSecond}, ${count} instances, saturated`,
    ...{ place, buckets: everyone(perSecond!, 4_000), perSecond: perSecond!, count: count!, ms: 6_000 },
    load: ofClients(2 + Math.ceil(96 / count!)),
  }))
}

async function classes(): Promise<Row[]> {
  const place = await redisAt(() => 0)
  return [
    {
      what: 'class 0 on one instance, class 7 on three',
      ...{ place, buckets: everyone(200), perSecond: 200 },
      routes: [
        { name: 'first', match: { path: '/first/*' }, priority: 0 },
        { name: 'last', priority: 7 },
      ],
      load({ instances, load }) {
        for (const [at, { url }] of instances.entries()) load.add(url, at === 0 ? 'first' : 'last', 24)
      },
      shares: clientOf,
    },
    {
      what: '20/s of each of 20 clients, 200/s of all',
      ...{ place, perSecond: 200, shares: clientOf },
      buckets: { client: { key: 'header:x-client', rate: '20/s', capacity: 40 }, ...everyone(200) },
      load({ instances, load }) {
        const clients = Array.from({ length: 20 }, (_, at) => `client-${at}`)
        load.addAll(
          instances.map(({ url }) => url),
          clients,
          1,
        )
      },
    },
    {
      what: 'weights 3, 1, 1, 1',
      ...{ place, perSecond: 200, shares: clientOf },
      buckets: {
        client: {
          ...{ key: 'header:x-client', rate: '10000/s', capacity: 1_000, weight: 1 },
          tiers: [{ name: 'heavy', keys: ['heavy'], weight: 3 }],
        },
        ...everyone(200),
      },
      load({ instances, load }) {
        for (const [at, { url }] of instances.entries()) load.add(url, at === 0 ? 'heavy' : `light-${at}`, 24)
      },
    },
  ]
}

async function changes(): Promise<Row[]> {
  const place = await redisAt(() => 0)
  const row = { place, buckets: everyone(200), perSecond: 200 }
  const stopped = (signal: NodeJS.Signals): Pick<Row, 'meanwhile' | 'more'> => {
    let at = 0
    return {
      async meanwhile({ instances }) {
        await sleep(2_000)
        at = now()
        instances[0]!.child.kill(signal)
      },
      more: (_, sent) => {
        const times = sent.map(it => it.at)
        const lost = (from: number): string => fixed(100 - ratePerSecond(times, from, from + 500) * 0.5, 1)
        return { 'slots lost in 500 ms': lost(at), 'the next 500': lost(at + 500) }
      },
    }
  }
  let burst: Load | undefined
  return [
    { ...row, what: 'an instance is killed', ...stopped('SIGKILL') },
    { ...row, what: 'an instance is stopped (SIGTERM)', ...stopped('SIGTERM') },
    {
      ...{ ...row, what: '100 at once on 4 instances, b = 40, r = 1/h', ms: 1_000, load: () => {} },
      ...{ buckets: { everyone: { key: 'all', rate: '1/h', capacity: 40 } } },
      routes: [{ name: 'api', maxWait: undefined }],
      async meanwhile({ instances, load }) {
        burst = load
        const clients = Array.from({ length: 100 }, (_, at) => new Client(instances[at % 4]!.url))
        const asked = clients.map(client => load.ask(client, 'burst'))
        await sleep(2_000)
        for (const client of clients) void client.destroy()
        await Promise.all(asked)
      },
      more: () => ({ admitted: 100 - burst!.count('rejected'), rejected: burst!.count('rejected') }),
    },
  ]
}

/** @param way ms to the first of three servers */
async function clusterAt(way: number): Promise<Place> {
  const servers = await startCluster()
  ends.push(() => servers.stop())
  if (way > 0) {
    const relay = await moveAway(servers, servers.masters[0]!, way)
    ends.push(() => relay.close())
  }
  return {
    store: () => ({
      ...{ type: 'redis', timeout: TIMEOUT, prefix: `row-${prefixes}:` },
      cluster: servers.masters.slice(1).map(({ url }) => url),
    }),
    calls: () => scriptCalls(servers.masters),
  }
}

/** The name of a bucket of the key `all` on one of three servers. */
function bucketOn(server: number): string {
  for (let number = 0; ; number += 1) {
    const name = `everyone-${number}`
    if (Math.floor((hashSlot(hashTag(name)) * 3) / 16_384) === server) return name
  }
}

/** Buckets of each client and of all, which live apart. The buckets of clients are on all servers. */
function apart(place: Place): Row {
  return {
    what: 'a stack over two hash slots',
    ...{ place, perSecond: 200, count: 2, ms: 5_000 },
    buckets: {
      client: { key: 'header:x-client', rate: '50/s', capacity: 100 },
      method: { key: 'method', rate: '200/s', capacity: 400 },
    },
    load({ instances, load }) {
      const clients = Array.from({ length: 12 }, (_, at) => `client-${at}`)
      load.addAll(
        instances.map(({ url }) => url),
        clients,
        2,
      )
    },
    shares: clientOf,
  }
}

async function distantNode(): Promise<Row[]> {
  const place = await clusterAt(30)
  const row = (perSecond: number, server: number): Row => ({
    what: `${perSecond}/s on ${server === 0 ? 'the node at 60 ms' : 'a near node'}`,
    ...{ place, perSecond, count: 2, ms: 5_000 },
    buckets: { [bucketOn(server)]: { key: 'all', rate: `${perSecond}/s`, capacity: 400 } },
  })
  return [row(20, 0), row(100, 0), row(100, 1), apart(place)]
}

async function nearNodes(): Promise<Row[]> {
  const row = apart(await clusterAt(0))
  return [
    row,
    {
      ...{ ...row, what: `${row.what}, half of the requests hang up` },
      leaves: () => (Math.random() < 0.5 ? 200 * Math.random() : undefined),
    },
    {
      ...{ ...row, what: 'one bucket', perSecond: 200 },
      buckets: { [bucketOn(0)]: { key: 'all', rate: '200/s', capacity: 400 } },
    },
  ]
}

async function postgres(): Promise<Row[]> {
  const near = await postgresAt(() => 0)
  const [far] = await distances(postgresAt, [15])
  return [
    ...[50, 200].map(perSecond => ({
      what: `${perSecond}/s, 4 instances`,
      ...{ place: near, buckets: everyone(perSecond), perSecond },
    })),
    { ...far!, buckets: everyone(50), perSecond: 50, what: `${far!.what}, 50/s` },
  ]
}

/** Two instances of which one or both lose answers three times, while more clients come than fit. */
async function lostAnswers(store: (port: number) => object, port: number): Promise<Row[]> {
  const relays = [await startRelay(port, 0), await startRelay(port, 0)]
  for (const relay of relays) ends.push(() => relay.close())
  const place: Place = { store: instance => store(relays[instance]!.port), calls: async () => 0 }
  const rows: Row[] = []
  for (const perSecond of [5, 50, 200, 5_000]) {
    for (const [how, lasts, of] of [
      ['cut', 50, 2],
      ['cut', 300, 1],
      ['silent', 50, 1],
      ['silent', 400, 2],
    ] as const) {
      /** Seconds in which it is looked how many wait: before the first loss, and after each. */
      const spans: Span[] = []
      rows.push({
        what: `${perSecond}/s, ${of} of 2, ${how} for ${lasts} ms`,
        ...{
          place,
          perSecond,
          buckets: everyone(perSecond, 100),
          count: 2,
          ms: 1_000,
          routes: [{ name: 'api', maxWait: '1m' }],
        },
        load: perSecond < 1_000 ? ofClients(70) : ofClients(120),
        async meanwhile() {
          const look = async (): Promise<void> => {
            const from = now()
            await sleep(1_000)
            spans.push({ from, to: now(), calls: 0 })
          }
          await sleep(1_500)
          await look()
          for (let loss = 0; loss < 3; loss += 1) {
            await Promise.all(relays.slice(0, of).map(relay => relay.lose(how, lasts)))
            await sleep(2_500)
            await look()
          }
          // Until it is known which of them were rejected.
          await sleep(500)
        },
        more: running => ({ waiting: spans.map(span => waitingIn(running, span)).join(', ') }),
      })
    }
  }
  return rows
}

/** How many wait during a span, the least and the most. Those that are rejected do not wait. */
function waitingIn({ load }: Running, { from, to }: Span): string {
  const counts = [0, 0.2, 0.4, 0.6, 0.8, 1].map(part => {
    const moment = from + part * (to - from)
    return [...load.stays].filter(stay => stay.from <= moment && stay.to > moment).length
  })
  return `${Math.min(...counts)} to ${Math.max(...counts)}`
}

async function lostByRedis(): Promise<Row[]> {
  const redis = await startRedis()
  ends.push(() => redis.stop())
  const store = (port: number): object => {
    return { type: 'redis', url: `redis://127.0.0.1:${port}`, prefix: `row-${prefixes}:` }
  }
  return lostAnswers(store, redis.port)
}

async function lostByPostgres(): Promise<Row[]> {
  const postgres = await startPostgres()
  ends.push(() => postgres.close())
  const store = (port: number): object => {
    return { type: 'postgres', table: `row_${prefixes}`, url: postgres.url.replace(/:\d+\//, `:${port}/`) }
  }
  return lostAnswers(store, postgres.port)
}

const PARTS: Readonly<Record<string, () => Promise<Row[]>>> = {
  'Redis: shares by distance': () => distances(redisAt, [0, 2, 15, 30]),
  'Redis: far away': () => distances(redisAt, [50, 100]),
  'Redis: idle latency': idle,
  'Redis: calls': calls,
  'Redis: classes, stacks, weights': classes,
  'Redis: instances end, bursts': changes,
  'Redis Cluster: one node at 60 ms': distantNode,
  'Redis Cluster: near': nearNodes,
  PostgreSQL: postgres,
  'Lost answers, Redis': lostByRedis,
  'Lost answers, PostgreSQL': lostByPostgres,
}

const wanted = process.argv.slice(2)
for (const [title, rowsOf] of Object.entries(PARTS)) {
  if (wanted.length > 0 && !wanted.some(word => title.includes(word))) continue
  const figures: Cells[] = []
  try {
    for (const row of await rowsOf()) {
      prefixes += 1
      figures.push(await figuresOf(row))
    }
  } finally {
    await endAll()
  }
  printTable(title, figures)
}
