import fc from 'fast-check'
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import {
  Gate,
  type Lane,
  type LaneRoute,
  type SharedBucket,
  type ShareNode,
  Ticket,
} from '../../src/core/queue/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { runs } from '../runs.js'
import { limits, random } from './run.js'

/** The rounding error of sums of periods. */
const EPSILON = 1e-6

/** A rate so high that it never delays a request. */
const AMPLE = limits(1e9, 1e9)

/** A client: its lane, and the outcomes of its requests. */
interface Client {
  name: string
  route: LaneRoute
  weight: number
  stack: SharedBucket[]
  /** The cost of waiting requests. */
  backlog: number
  sent: number
  released: number
  rejected: number
  dropped: number
  waits: number[]
}

interface Release {
  client: Client
  slot: number
  cost: number
}

interface World {
  clock: VirtualClock
  shaper: Shaper
  clients: Client[]
  /** In order of slots. */
  releases: Release[]
  bucket(limits: BucketLimits): SharedBucket
  join(name: string, stack: SharedBucket[], weight?: number): Client
  send(client: Client, cost?: number): Verdict
  cancel(client: Client, verdict: Verdict | undefined): void
}

/** @param onRelease called before the release is subtracted from the client's backlog */
function createWorld(onRelease: (release: Release) => void = () => {}): World {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const route: LaneRoute = { name: 'route', gate: new Gate() }
  const clients: Client[] = []
  const releases: Release[] = []
  return {
    clock,
    shaper,
    clients,
    releases,
    bucket: limits => new QueuedBucket<ShareNode, Lane>(limits),
    join(name, stack, weight = 1) {
      const client = {
        name,
        route,
        weight,
        stack,
        backlog: 0,
        sent: 0,
        released: 0,
        rejected: 0,
        dropped: 0,
        waits: [],
      }
      clients.push(client)
      return client
    },
    send(client, cost = 1) {
      const arrivedAt = clock.now()
      client.sent += 1
      // Counted before the verdict, because a new lane at a free bucket is served within the call.
      client.backlog += cost
      const release = (slot: number): void => {
        onRelease({ client, slot, cost })
        client.backlog -= cost
        client.released += cost
        client.waits.push(slot - arrivedAt)
        releases.push({ client, slot, cost })
      }
      const reject = (_: Rejection): void => {
        client.backlog -= cost
        client.dropped += 1
      }
      const arrival = { route: client.route, stack: client.stack, cost, weight: client.weight }
      const verdict = shaper.admit(arrival, { release, reject, expire() {} })
      if (verdict === 'released') release(arrivedAt)
      else if ('reason' in verdict) {
        client.backlog -= cost
        client.rejected += 1
      }
      return verdict
    },
    cancel(client, verdict) {
      if (verdict instanceof Ticket && shaper.cancel(verdict)) client.backlog -= verdict.cost
    },
  }
}

/** Keeps `depth` requests of every client waiting until `until`, looking every `step` ms. */
function saturate({ clock, send }: World, clients: Client[], until: number, depth = 20, step = 50): void {
  for (let now = clock.now(); now < until; now += step) {
    clock.runUntil(now)
    for (const client of clients) while (client.backlog < depth) send(client)
  }
  clock.runUntil(until)
}

function percentile(values: readonly number[], rank: number): number {
  return [...values].sort((a, b) => a - b)[Math.ceil(values.length * rank) - 1]!
}

function released(world: World, client: Client, from = 0, until = Infinity): number {
  return world.releases
    .filter(({ client: sender, slot }) => sender === client && slot >= from && slot < until)
    .reduce((sum, { cost }) => sum + cost, 0)
}

function share(world: World, client: Client, from: number): number {
  return released(world, client, from) / world.clients.reduce((sum, other) => sum + released(world, other, from), 0)
}

t.test(
  'long: a flood of 1000/s on a shared 100/s leaves nine clients of 5/s their latency and all their requests',
  async t => {
    for (const aligned of [true, false]) {
      const world = createWorld()
      const { clock, bucket, join, send, releases } = world
      const everyone = bucket({ ...limits(100, 200, 'everyone'), overflow: 'fair' })
      const own = limits(2_000, 4_000)
      const flood = join('flood', [bucket(own), everyone])
      const nine = Array.from({ length: 9 }, (_, index) => join(`${index}`, [bucket(own), everyone]))
      const next = random(1)
      const arrivals = Array.from({ length: 60_000 }, (_, index) => ({ at: index, client: flood }))
      for (const client of nine) {
        const phase = aligned ? 0 : next() * 200
        for (let index = 0; index < 300; index += 1) arrivals.push({ at: phase + index * 200, client })
      }
      // Of what comes at the same time, the flood is first.
      arrivals.sort((a, b) => a.at - b.at)
      for (const { at, client } of arrivals) {
        clock.runUntil(at)
        send(client)
      }
      clock.runUntil(60_000)
      const rows = releases.map(({ slot }) => slot).filter(slot => slot < 60_000)
      t.ok(Math.abs(rows.length / 60 - 100) <= 0.1, `${rows.length / 60}/s`)
      t.ok(
        rows.every((slot, index) => Math.abs(slot - 10 * index) < EPSILON),
        'gaps of 10 ms, exactly',
      )
      clock.runAll()
      const waits = nine.flatMap(client => client.waits)
      t.same(
        nine.map(({ sent, released, rejected, dropped }) => [sent, released, rejected, dropped]),
        nine.map(() => [300, 300, 0, 0]),
      )
      t.ok(percentile(waits, 0.99) < 250, `p99 ${percentile(waits, 0.99)} ms, aligned: ${aligned}`)
      t.comment(
        `aligned ${aligned}: p50 ${percentile(waits, 0.5)}, p99 ${percentile(waits, 0.99)}, most ${Math.max(...waits)} ms`,
      )
      t.equal(flood.sent, flood.released + flood.rejected + flood.dropped)
    }
  },
)

t.test('weights of 3:1 give 75:25, also behind own buckets of at least the shared rate', async t => {
  for (const [heavy, light] of [
    [1e6, 1e6],
    [100, 100],
    [150, 100],
    [100, 150],
    [300, 150],
    [150, 300],
    [300, 300],
    [1e6, 100],
  ] as const) {
    const world = createWorld()
    const { bucket, join } = world
    const everyone = bucket(limits(100, 1e6, 'everyone'))
    const a = join('heavy', [bucket(limits(heavy, 1e6)), everyone], 3)
    const b = join('light', [bucket(limits(light, 1e6)), everyone], 1)
    saturate(world, [a, b], 60_000)
    const part = 100 * share(world, a, 1_000)
    t.ok(Math.abs(part - 75) <= 1, `own buckets of ${heavy}/s and ${light}/s: ${part.toFixed(2)}`)
    t.ok(
      world.releases.every(({ slot }, index) => Math.abs(slot - 10 * index) < EPSILON),
      'no slot is left empty',
    )
  }
})

t.test('weights among many lanes', async t => {
  const world = createWorld()
  const { bucket, join } = world
  const everyone = bucket(limits(100, 1e6, 'everyone'))
  const weights = [1, 2, 3, 0.5, 10, 1]
  const clients = weights.map((weight, index) => join(`${index}`, [bucket(AMPLE), everyone], weight))
  saturate(world, clients, 60_000, 40)
  const all = weights.reduce((sum, weight) => sum + weight)
  for (const client of clients) {
    const expected = (100 * client.weight) / all
    const part = 100 * share(world, client, 0)
    t.ok(Math.abs(part - expected) <= 1, `weight ${client.weight}: ${part.toFixed(2)} of ${expected.toFixed(2)}`)
  }
})

t.test('a lane that is paced by its own bucket gets at least half of its rate, and no slot stays empty', async t => {
  // While its own bucket drains, the lane is not in the queue. That time counts from the slot of the shared bucket, so the
  // lane misses the slots between (80/s is free every 12.5 ms: of three slots in a row it takes every second one). It
  // comes back behind the lanes that had their turn meanwhile. Lanes that wait all the time get the rest.
  for (const weight of [1, 3]) {
    for (const rate of [99, 80, 75, 60, 52, 40, 20]) {
      const world = createWorld()
      const { bucket, join } = world
      const everyone = bucket(limits(100, 1e6, 'everyone'))
      const paced = join('paced', [bucket(limits(rate, 1e6)), everyone], weight)
      const other = join('other', [bucket(AMPLE), everyone])
      saturate(world, [paced, other], 60_000)
      const part = 100 * share(world, paced, 1_000)
      const could = Math.min(rate, (100 * weight) / (weight + 1))
      t.ok(part >= could / 2 && part <= could + 0.5, `weight ${weight}, own ${rate}/s: ${part.toFixed(2)} of ${could}`)
      t.ok(
        world.releases.every(({ slot }, index) => Math.abs(slot - 10 * index) < EPSILON),
        'no slot is left empty',
      )
    }
  }
})

t.test('mixed costs of 1 and 5: each key releases cost at its rate', async t => {
  for (const stacked of [false, true]) {
    const world = createWorld()
    const { bucket, join, clock, send } = world
    const everyone = bucket(limits(1_000, 1e6, 'everyone'))
    const rates = [5, 7, 20, 33]
    const clients = rates.map(rate => {
      const own = bucket(limits(rate, 1e6))
      return join(`${rate}`, stacked ? [own, everyone] : [own])
    })
    const next = random(3)
    for (let second = 0; second < 1_200; second += 1) {
      clock.runUntil(second * 1_000)
      for (const client of clients) while (client.backlog < 100) send(client, next() < 0.5 ? 1 : 5)
    }
    clock.runUntil(1_200_000)
    for (const [index, client] of clients.entries()) {
      const mine = world.releases.filter(({ client: sender }) => sender === client)
      // From the first slot to the last. The cost of the last request has not drained yet.
      const rate = (mine.reduce((sum, { cost }) => sum + cost, 0) - mine.at(-1)!.cost) / (mine.at(-1)!.slot / 1_000)
      t.ok(Math.abs(rate / rates[index]! - 1) <= 0.001, `${rate} of ${rates[index]}/s, stacked: ${stacked}`)
    }
  }
})

t.test('mixed costs of 1 and 5 on a shared bucket: equal shares by cost', async t => {
  const world = createWorld()
  const { bucket, join, clock, send } = world
  const everyone = bucket(limits(100, 1e6, 'everyone'))
  const next = random(4)
  const mixes = [() => 1, () => 5, () => (next() < 0.5 ? 1 : 5), () => (next() < 0.9 ? 1 : 5)]
  const clients = mixes.map((_, index) => join(`${index}`, [bucket(AMPLE), everyone]))
  for (let now = 0; now < 600_000; now += 500) {
    clock.runUntil(now)
    for (const [index, client] of clients.entries()) while (client.backlog < 100) send(client, mixes[index]!())
  }
  clock.runUntil(600_000)
  const sums = clients.map(client => released(world, client))
  t.ok(Math.max(...sums) - Math.min(...sums) <= 10, `${sums}`)
  const { slot, cost } = world.releases.at(-1)!
  const all = sums.reduce((sum, one) => sum + one) - cost
  t.ok(Math.abs(all / (slot / 1_000) / 100 - 1) <= 1e-9, 'and the shared bucket releases exactly r')
})

/**
 * The bound of deficit round robin.
 *
 * Take a span in which lane i waits all the time and has n turns. Q is the quantum per weight, m the largest cost.
 * - Lane i sends at least (n - 1) * Q * weight(i) - m: what it carries over from a turn is less than the cost of its head.
 * - Another lane j has at most n turns, or n + 1 with turns granted before. It sends at most n * Q * weight(j) + m.
 *
 * So, with `sent` as the sent cost divided by the weight,
 *
 *     sent(j) - sent(i) <= Q + m / weight(i) + m / weight(j)                                             (1)
 *
 * Summed over all lanes by weight, lane i lags behind its share of the released cost by at most
 *
 *     Q * weight(i) + m + m * (lanes * weight(i) / weights)
 *
 * With equal weights that is one quantum and twice the largest cost. In a tree, (1) holds at each level, for share nodes in
 * place of lanes.
 *
 * Q is max(smallest, largest / 8) / (least weight) of recent costs, so at most m / (least weight).
 */
interface Pair {
  difference: number
  least: number
}

interface Contest {
  depth: 2 | 3
  lanes: number
  costs: readonly number[]
  weights: readonly number[]
  /** Whether every lane waits all the time. If not, every third one does, and the others come and go. */
  steady: boolean
  seed: number
}

/** Drives random arrivals and hang-ups. Returns the largest lead as a share of the bound (1). */
function contest({ depth, lanes, costs, weights, steady, seed }: Contest): number {
  const next = random(seed)
  const any = <T>(values: readonly T[]): T => values[Math.floor(next() * values.length)]!
  const largest = Math.max(...costs)
  let worst = 0
  const pairs = new Map<Client, Map<Client, Pair>>()
  const world = createWorld(({ client: sender, cost }) => {
    for (const client of world.clients) {
      if (client.backlog <= EPSILON) continue
      for (const other of world.clients) {
        if (other === client) continue
        const pair = pairs.get(client)!.get(other)!
        if (other === sender) pair.difference += cost / other.weight
        if (client === sender) pair.difference -= cost / client.weight
        pair.least = Math.min(pair.least, pair.difference)
        worst = Math.max(worst, (pair.difference - pair.least) / bound(client, other))
      }
    }
  })
  const { clock, bucket, clients, join, send, cancel } = world
  const everyone = bucket(limits(100, 1e9, 'everyone'))
  const tenants = [bucket(AMPLE), bucket(AMPLE)]
  for (let lane = 0; lane < lanes; lane += 1) {
    const middle = depth === 3 ? [tenants[lane % 2]!] : []
    join(`${lane}`, [bucket(AMPLE), ...middle, everyone], any(weights))
  }
  for (const client of clients) {
    pairs.set(client, new Map(clients.map(other => [other, { difference: 0, least: 0 }])))
  }
  const lightest = Math.min(...clients.map(({ weight }) => weight))

  function bound(a: Client, b: Client): number {
    const quantum = largest / lightest
    const direct = quantum + largest / a.weight + largest / b.weight
    if (depth === 2 || a.stack[1] === b.stack[1]) return direct
    // Lanes are compared within their tenant, and tenants with each other.
    const mates = (of: Client): Client[] => clients.filter(({ stack }) => stack[1] === of.stack[1])
    const weigh = (those: Client[]): number => those.reduce((sum, { weight }) => sum + weight, 0)
    const [mine, theirs] = [mates(a), mates(b)]
    return (
      direct +
      2 * quantum +
      (largest * (mine.length + 1)) / weigh(mine) +
      (largest * (theirs.length + 1)) / weigh(theirs)
    )
  }

  const tickets: { client: Client; verdict: Verdict }[] = []
  for (let now = 0; now < 5_000; now += 10) {
    clock.runUntil(now)
    for (const [index, client] of clients.entries()) {
      const always = steady || index % 3 === 0
      const burst = next() < 0.02 ? Math.floor(next() * 20) : 0
      for (let sent = 0; always ? client.backlog < 30 * largest : sent < burst; sent += 1) {
        if (client.backlog <= EPSILON) for (const pair of pairs.get(client)!.values()) pair.least = pair.difference
        const verdict = send(client, any(costs))
        if (next() < 0.3) tickets.push({ client, verdict })
      }
    }
    while (tickets.length > 20) {
      const [gone] = tickets.splice(Math.floor(next() * tickets.length), 1)
      const index = clients.indexOf(gone!.client)
      // A lane that has to wait all the time keeps at least one request.
      if ((!steady && index % 3 > 0) || gone!.client.backlog > 5 * largest) cancel(gone!.client, gone!.verdict)
    }
  }
  return worst
}

const costs = fc.constantFrom<number[][]>([1], [5], [1, 5], [1, 2, 0.5], [1, 5, 10, 0.1], [0.3, 0.7])
const weights = fc.constantFrom<number[][]>([1], [1, 2], [1, 3], [0.5, 1, 2, 3], [1, 10], [0.1, 1, 4])
const lanes = fc.integer({ min: 2, max: 9 })

t.test('property: a waiting lane falls behind another by at most a quantum and the largest cost of each', async t => {
  let worst = 0
  fc.assert(
    fc.property(lanes, costs, weights, fc.boolean(), fc.integer(), (lanes, costs, weights, steady, seed) => {
      const part = contest({ depth: 2, lanes, costs, weights, steady, seed })
      worst = Math.max(worst, part)
      return part <= 1 + EPSILON
    }),
    { seed: 51, numRuns: runs(150) },
  )
  t.comment(`at most ${(100 * worst).toFixed(1)} % of the bound`)
  t.ok(worst > 0.4, 'the bound says something')
})

t.test('property: the same holds for lanes below tenants', async t => {
  let worst = 0
  fc.assert(
    fc.property(lanes, costs, weights, fc.integer(), (lanes, costs, weights, seed) => {
      const part = contest({ depth: 3, lanes, costs, weights, steady: true, seed })
      worst = Math.max(worst, part)
      return part <= 1 + EPSILON
    }),
    { seed: 52, numRuns: runs(100) },
  )
  t.comment(`at most ${(100 * worst).toFixed(1)} % of the bound`)
})

t.test('tenants share by their lanes: three users of one and one of another make four shares', async t => {
  const world = createWorld()
  const { bucket, join } = world
  const [a, b, everyone] = [bucket(AMPLE), bucket(AMPLE), bucket(limits(100, 1e9, 'everyone'))]
  const users = [a, a, a, b].map((tenant, index) => join(`${index}`, [bucket(AMPLE), tenant, everyone]))
  saturate(world, users, 60_000)
  for (const user of users) t.ok(Math.abs(100 * share(world, user, 0) - 25) <= 0.5)
})

t.test('a client with one request at a time does not take the turns of those that queue', async t => {
  for (const depth of [1, 2, 3]) {
    const again: (() => void)[] = []
    const world = createWorld(({ client }) => {
      // Its next request comes at once.
      if (client.name === 'single') again.push(() => send(client))
    })
    const { bucket, join, clock, send } = world
    const everyone = bucket(limits(100, 1e6, 'everyone'))
    const tenant = bucket(AMPLE)
    const above = depth === 3 ? [tenant, everyone] : [everyone]
    const gate = new Gate()
    const clients = ['a', 'b', 'single'].map(name => {
      const client = join(name, depth === 1 ? above : [bucket(AMPLE), ...above])
      // Without a bucket of its own a lane is that of a route.
      client.route = { name, gate }
      return client
    })
    for (const client of clients.slice(0, 2)) for (let sent = 0; sent < 1_000; sent += 1) send(client)
    send(clients[2]!)
    for (let now = 0; now < 6_000; now += 1) {
      clock.runUntil(now)
      for (const next of again.splice(0)) next()
    }
    const sums = clients.map(client => released(world, client))
    t.ok(Math.max(...sums) - Math.min(...sums) <= 2, `${sums}`)
  }
})

t.test('idle time earns no credit', async t => {
  for (const depth of [2, 3]) {
    const world = createWorld()
    const { bucket, join, clock, send, releases } = world
    const everyone = bucket(limits(100, 1e6, 'everyone'))
    const tenants = [bucket(AMPLE), bucket(AMPLE)]
    const [busy, idle] = [0, 1].map(index =>
      join(`${index}`, [bucket(AMPLE), ...(depth === 3 ? [tenants[index]!] : []), everyone]),
    ) as [Client, Client]
    for (let sent = 0; sent < 3_000; sent += 1) send(busy)
    // Occasional requests, so that the lane comes and goes.
    for (const at of [100, 1_000, 5_000]) {
      clock.runUntil(at)
      send(idle)
    }
    clock.runUntil(10_000)
    const before = releases.length
    for (let sent = 0; sent < 50; sent += 1) send(idle)
    clock.runUntil(10_990)
    const order = releases.slice(before).map(({ client }) => (client === idle ? 'i' : 'b'))
    t.match(order.join(''), /^i?(?:bi)+b?$/, 'it alternates from its return')
  }
})

t.test('an idle shared bucket earns no credit: after a pause it goes on at its rate', async t => {
  const world = createWorld()
  const { bucket, join, clock, send, releases } = world
  const everyone = bucket(limits(100, 1e6, 'everyone'))
  const clients = ['a', 'b', 'c'].map(name => join(name, [bucket(AMPLE), everyone]))
  for (const client of clients) send(client)
  clock.runUntil(60_000)
  for (const client of clients) for (let sent = 0; sent < 10; sent += 1) send(client)
  clock.runAll()
  t.ok(releases.slice(3).every(({ slot }, index) => Math.abs(slot - 60_000 - 10 * index) < EPSILON))
})

t.test('a light lane that left long ago does not lengthen turns', async t => {
  const world = createWorld()
  const { bucket, join, clock, send, releases } = world
  const everyone = bucket(limits(100, 1e6, 'everyone'))
  const [a, b] = ['a', 'b'].map(name => join(name, [bucket(AMPLE), everyone])) as [Client, Client]
  const light = join('light', [bucket(AMPLE), everyone], 0.01)
  for (const client of [a, a, light, b]) send(client)
  // The bucket is never idle, so its queue has existed all the time.
  saturate(world, [a, b], 20_000)
  clock.runUntil(20_000)
  const order = releases.slice(-200).map(({ client }) => client.name)
  const longest = Math.max(
    ...order
      .join('')
      .match(/(.)\1*/g)!
      .map(({ length }) => length),
  )
  t.ok(longest <= 4, `${longest} in a row`)
})
