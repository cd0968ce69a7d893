import fc from 'fast-check'
import t from 'tap'
import { Bucket, type BucketLimits } from '../../src/core/bucket.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import { Gate, type LaneRoute, type Outlet, type SharedBucket, Ticket } from '../../src/core/lane.js'
import { type Rejection, Shaper, type Verdict } from '../../src/core/shaper.js'
import { limits, random } from './run.js'

/** Rounding of sums of periods. */
const EPSILON = 1e-6

/** So fast that it never holds anybody. */
const AMPLE = limits(1e9, 1e9)

/** A client: its lane, and what became of its requests. */
interface Client {
  name: string
  weight: number
  stack: SharedBucket[]
  /** Cost of those who wait. */
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
  /** In order of their slots. */
  releases: Release[]
  bucket(limits: BucketLimits): SharedBucket
  join(name: string, stack: SharedBucket[], weight?: number): Client
  send(client: Client, cost?: number): Verdict
  cancel(client: Client, verdict: Verdict | undefined): void
}

/** @param onRelease called before the release is taken off the client's backlog */
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
    bucket: limits => new Bucket<Outlet>(limits),
    join(name, stack, weight = 1) {
      const client = { name, weight, stack, backlog: 0, sent: 0, released: 0, rejected: 0, dropped: 0, waits: [] }
      clients.push(client)
      return client
    },
    send(client, cost = 1) {
      const arrivedAt = clock.now()
      client.sent += 1
      // Counted before the verdict: a lane that opens while its bucket is free is served within the call.
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
      const arrival = { route, stack: client.stack, cost, weight: client.weight }
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

t.test('a flood of 1000/s on a shared 100/s leaves nine clients of 5/s their latency and all their requests', async t => {
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
})

t.test('3:1 weights are 75:25, whatever own buckets of at least the shared rate', async t => {
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
