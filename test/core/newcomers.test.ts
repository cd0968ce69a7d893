/** What newcomers are told that they would wait, against what they wait then, in ten mixes of load. */
import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import { type Arrival, Gate, type LaneRoute, type SharedBucket } from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { shardIn } from '../sharing/shard.js'
import { bursting, finish, limits, random } from './run.js'

type Random = () => number

interface Request {
  /** Name and key of each bucket, from its own to everyone's. */
  stack: [name: string, key: string][]
  route?: string
  upstream?: number
  cost?: number
  weight?: number
  priority?: number
}

interface Mix {
  name: string
  limits: Record<string, BucketLimits>
  /** Requests that come at once, and then in each second, for up to so many seconds. */
  crowd?: number
  load: number
  seconds: number
  next(random: Random): Request
  newcomer?(random: Random): Request
  /** ms. The upstream of the newcomer asks for a pause of up to this. */
  pause?: number
}

const WAITER = { release: () => undefined, expire: () => undefined, reject: () => undefined }

/** So many newcomers are told together, as in a list of keys. One of them comes. */
const TOLD = 20

/** In ms: what one newcomer is told, alone and together with others, and how long it waits then. */
function foretell(mix: Mix, random: Random) {
  const clock = createVirtualClock()
  const shaper = new Shaper({ clock })
  const gates = [new Gate(), new Gate()]
  const routes = new Map<string, LaneRoute>()
  const buckets = new Map<string, SharedBucket>()
  const arrivalOf = (request: Request): Arrival => {
    const { route = 'api', upstream = 0, cost = 1, weight = 1, priority = 3 } = request
    const name = `${route} ${upstream}`
    if (!routes.has(name)) routes.set(name, { name, gate: gates[upstream]! })
    const stack = request.stack.map(([bucket, key]) => {
      const id = `${bucket} ${key}`
      if (!buckets.has(id)) buckets.set(id, new QueuedBucket(mix.limits[bucket]!))
      return buckets.get(id)!
    })
    return { route: routes.get(name)!, stack, cost, weight, priority }
  }
  const { crowd = 0, load, seconds } = mix
  for (let sent = 0; sent < crowd; sent += 1) shaper.admit(arrivalOf(mix.next(random)), WAITER)
  const now = random() * seconds * 1_000
  const gap = (): number => (-Math.log(1 - random()) * 1_000) / load
  for (let at = gap(); at < now; at += gap()) {
    clock.runUntil(at)
    shaper.admit(arrivalOf(mix.next(random)), WAITER)
  }
  clock.runUntil(now)
  const next = mix.newcomer ?? mix.next
  const arrivals = Array.from({ length: TOLD }, () => arrivalOf(next(random)))
  const [arrival] = arrivals as [Arrival]
  const { gate } = arrival.route
  if (mix.pause !== undefined) shaper.engine.pause(gate, mix.pause * random())
  const newcomers = arrivals.map(each => ({ arrival: each, pause: each.route.gate.pausedFor(now) }))
  const [alone] = finish(shaper.exactWaits(newcomers.slice(0, 1)))
  const [together] = finish(shaper.exactWaits(newcomers))
  let slot = now
  shaper.admit(arrival, { ...WAITER, release: released => (slot = released) })
  const waiting = shaper.queued
  clock.runAll()
  return { together: together!, alone: alone!, waited: slot - now, waiting }
}

/** A number from 0 to below `n`, small ones more often. */
const skewed = (random: Random, n: number): number => Math.floor(n * random() ** 3)

const shared = (client: number): [string, string][] => [
  ['client', `c${client}`],
  ['everyone', 'all'],
]

const MIXES: Mix[] = [
  {
    name: 'one client floods what all share',
    limits: { client: limits(200, 1e9), everyone: limits(100, 1e9) },
    load: 300,
    seconds: 8,
    next: random => ({ stack: shared(random() < 0.9 ? 0 : skewed(random, 50)) }),
    newcomer: random => ({ stack: shared(1 + skewed(random, 50)) }),
  },
  {
    name: 'thousands wait',
    limits: { client: limits(50, 1e9), everyone: limits(200, 1e9) },
    crowd: 1_500,
    load: 200,
    seconds: 2,
    next: random => ({ stack: shared(skewed(random, 600)) }),
  },
  {
    name: 'each for its own bucket',
    limits: { client: limits(5, 1e9) },
    load: 60,
    seconds: 8,
    next: random => ({ stack: [['client', `c${skewed(random, 30)}`]] }),
  },
  {
    name: 'for their own bucket and for the shared one',
    limits: { client: limits(10, 1e9), everyone: limits(100, 1e9) },
    load: 150,
    seconds: 8,
    next: random => ({ stack: shared(skewed(random, 40)) }),
  },
  {
    name: 'users of tenants',
    limits: { user: limits(10, 1e9), tenant: limits(30, 1e9), everyone: limits(100, 1e9) },
    load: 150,
    seconds: 8,
    next: random => {
      const user = skewed(random, 60)
      const stack: [string, string][] = [
        ['user', `u${user}`],
        ['tenant', `t${user % 7}`],
        ['everyone', 'all'],
      ]
      return { stack }
    },
  },
  {
    name: 'weights',
    limits: { everyone: limits(100, 1e9) },
    load: 150,
    seconds: 8,
    next: random => {
      const route = skewed(random, 12)
      return { stack: [['everyone', 'all']], route: `r${route}`, weight: [1, 2, 5][route % 3]! }
    },
  },
  {
    name: 'classes',
    limits: { client: limits(50, 1e9), everyone: limits(100, 1e9) },
    load: 130,
    seconds: 8,
    next: random => ({ stack: shared(skewed(random, 30)), priority: [0, 3, 3, 3, 6][Math.floor(5 * random())]! }),
  },
  {
    name: 'bursts',
    limits: { client: bursting(10, 1e9, 5), everyone: bursting(100, 1e9, 20) },
    load: 140,
    seconds: 8,
    next: random => ({ stack: shared(skewed(random, 40)) }),
  },
  {
    name: 'two upstreams, and a pause',
    limits: { client: limits(20, 1e9), everyone: limits(100, 1e9) },
    load: 130,
    seconds: 8,
    next: random => ({ stack: shared(skewed(random, 30)), upstream: random() < 0.2 ? 1 : 0 }),
    pause: 5_000,
  },
  {
    name: 'different costs',
    limits: { client: limits(40, 1e9), everyone: limits(200, 1e9) },
    load: 130,
    seconds: 8,
    next: random => ({ stack: shared(skewed(random, 30)), cost: [1, 1, 1, 2, 5][Math.floor(5 * random())]! }),
  },
]

const NEWCOMERS = 100

const quantile = (list: readonly number[], part: number): number =>
  list.toSorted((a, b) => a - b)[Math.ceil(part * list.length) - 1]!

for (const mix of MIXES) {
  t.test(mix.name, async t => {
    const source = random(7)
    const rates = Object.values(mix.limits).map(({ rate }) => rate)
    // That of the bucket which all share, or of the only one.
    const period = 1 / (mix.limits.everyone?.rate ?? rates[0]!)
    const runs = Array.from({ length: NEWCOMERS }, () => foretell(mix, source))
    const waits = runs.map(({ waited }) => waited)
    t.comment(`${Math.max(...runs.map(run => run.waiting))} waiting, waits of ${Math.round(quantile(waits, 0.5))} ms`)
    t.ok(quantile(waits, 0.5) > 0, 'most have to wait')
    for (const way of ['alone', 'together'] as const) {
      const offs = runs.map(run => Math.abs(run[way] - run.waited))
      const parts = runs.map((run, index) => (offs[index]! < 1e-3 ? 0 : offs[index]! / run.waited))
      const median = quantile(parts, 0.5)
      const p99 = quantile(offs, 0.99) / period
      t.ok(median < 0.02, `${way}: the median error is ${(100 * median).toFixed(3)} %`)
      t.ok(
        p99 < 1,
        `${way}: 99 % are off by at most ${p99.toFixed(3)} periods, all by ${(Math.max(...offs) / period).toFixed(2)}`,
      )
    }
  })
}

t.test('where only other instances have requests that wait, a newcomer gets a slot between them', async t => {
  const shaper = new Shaper({ clock: createVirtualClock() })
  const bucket = new StoredBucket(limits(5, 100), 'key', () => 'group', shardIn('claimed'))
  const arrival: Arrival = { route: { name: 'api', gate: new Gate() }, stack: [bucket], cost: 1 }
  const told = (pause = 0): number => finish(shaper.exactWaits([{ arrival, pause }]))[0]!
  t.equal(told(), 0, 'nothing is known')
  bucket.levelReported(0.5, 0)
  t.equal(told(), 100, 'what has passed has to drain')
  bucket.levelReported(40, 0)
  t.equal(told(), 260, 'half a frame and a period, not the 8 s of the level')
  t.equal(told(1_000), 1_000, 'a pause comes first')
})
