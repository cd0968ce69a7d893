import t from 'tap'
import { type BucketLimits, QueuedBucket } from '../../src/core/bucket/queued-bucket.js'
import { createVirtualClock } from '../../src/core/clock.js'
import {
  type Arrival,
  Gate,
  type Lane,
  type LaneRoute,
  type Rejection,
  type SharedBucket,
  type ShareNode,
  Ticket,
} from '../../src/core/queue/lane.js'
import { Shaper } from '../../src/core/shaper.js'
import { limits, mostHeld } from './run.js'

/** A client that comes back when it was told to, mostly. */
interface Client {
  readonly name: string
  /** How often it came, and when it was admitted: at which visit. */
  visits: number
  admittedAt: number | undefined
  told: number[]
  booking: number | undefined
}

interface Plan {
  readonly limits: BucketLimits
  readonly mode?: 'shape' | 'meter'
  readonly books?: boolean
  readonly maxWait?: number
}

/** A bucket for all and what becomes of each request, on the virtual clock. */
class World {
  readonly clock = createVirtualClock()
  readonly shaper = new Shaper({ clock: this.clock })
  readonly bucket: SharedBucket
  readonly route: LaneRoute = { name: 'api', gate: new Gate() }
  /** Who left, and when. */
  readonly left: { readonly name: string; readonly at: number; readonly cost: number }[] = []
  readonly waiting = new Set<Ticket>()
  readonly mode: 'shape' | 'meter'
  readonly books: boolean
  readonly maxWait: number
  readonly stack: SharedBucket[]

  constructor({ limits: allowed, mode = 'shape', books = false, maxWait = Infinity }: Plan) {
    this.bucket = new QueuedBucket<Lane | ShareNode, Lane>(allowed)
    this.stack = [this.bucket]
    this.mode = mode
    this.books = books
    this.maxWait = maxWait
  }

  ask(name: string, claim?: number, cost = 1): 'admitted' | Rejection {
    const arrival: Arrival = {
      ...{ route: this.route, stack: this.stack, cost, client: name },
      ...(this.books && { appointment: { redeems: claim } }),
    }
    const left = (slot: number): void => {
      if (ticket !== undefined) this.waiting.delete(ticket)
      this.left.push({ name, at: slot, cost })
    }
    const waiter = { release: left, expire: () => undefined, reject: () => undefined }
    let ticket: Ticket | undefined
    const verdict =
      this.mode === 'meter' ? this.shaper.meter(arrival) : this.shaper.admit(arrival, waiter, this.maxWait)
    if (verdict === 'released') left(this.clock.now())
    if (verdict === 'released') return 'admitted'
    if (verdict instanceof Ticket) {
      ticket = verdict
      this.waiting.add(verdict)
      if (verdict.slot !== undefined) this.shaper.wake()
      return 'admitted'
    }
    return this.shaper.promise(arrival, verdict, this.maxWait)
  }

  /** A client comes, and comes again when it is told to. */
  visit(client: Client, late: () => number = () => 0): void {
    client.visits += 1
    const answer = this.ask(client.name, client.booking)
    if (answer === 'admitted') {
      client.admittedAt = client.visits
      return
    }
    const wait = Math.ceil(answer.retryAfterMs!)
    client.told.push(wait)
    client.booking = answer.booking
    if (client.visits < 20) this.clock.at(this.clock.now() + wait + late(), () => this.visit(client, late))
  }

  /** Lets this many ms pass. */
  pass(time: number): void {
    this.clock.runUntil(this.clock.now() + time)
  }

  /** So often, `gap` ms apart. */
  often(count: number, gap: number, run: (at: number) => void, at = 0): void {
    if (at === count) return
    this.clock.at(this.clock.now() + (at === 0 ? 0 : gap), () => {
      run(at)
      this.often(count, gap, run, at + 1)
    })
  }

  /** The most that a leaky bucket of this rate would have held of what left. */
  excess(): number {
    return mostHeld(this.bucket.limits, this.left)
  }
}

function crowd(count: number, prefix = 'client'): Client[] {
  return Array.from({ length: count }, (_, at) => ({
    ...{ name: `${prefix}-${at}`, visits: 0, admittedAt: undefined, told: [], booking: undefined },
  }))
}

function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
}

function fill(world: World, count: number): void {
  for (let at = 0; at < count; at += 1) world.ask(`first-${at}`)
}

function share(clients: readonly Client[], visit: number): number {
  return clients.filter(({ admittedAt }) => admittedAt === visit).length / clients.length
}

for (const mode of ['shape', 'meter'] as const) {
  for (const books of [false, true])
    t.test(
      `${mode}, ${books ? 'booked' : 'told'}: each further client is told one slot later, and the same again`,
      async t => {
        const world = new World({ limits: limits(10, 5), mode, books })
        fill(world, 5)
        const told = (name: string): number => (world.ask(name) as Rejection).retryAfterMs!
        const near = (value: number, expected: number): void => {
          t.ok(Math.abs(value - expected) < 1e-6, `${value} is ${expected}`)
        }
        near(told('a'), 100)
        near(told('b'), 200)
        near(told('c'), 300)
        for (let more = 0; more < 50; more += 1) near(told('b'), 200)
        near(told('d'), 400)
        near(told('e'), 500)
        near(told('f'), 500)
        near(told('g'), 500)
        world.pass(50)
        near(told('a'), 50)
        near(told('c'), 250)
      },
    )

  for (const books of [false, true]) {
    t.test(`${mode}, ${books ? 'booked' : 'told'}: 1,000 of 1,000 rejected at once come at their moments`, async t => {
      const world = new World({ limits: limits(100, 1_000), mode, books })
      fill(world, 1_000)
      const clients = crowd(1_000)
      for (const client of clients) world.visit(client)
      t.ok(clients.every(({ visits, admittedAt }) => visits === 1 && admittedAt === undefined))
      world.pass(60_000)
      const first = share(clients, 2)
      t.ok(books ? first === 1 : first >= 0.95, `admitted at their first return: ${first}`)
      if (mode === 'shape') t.ok(world.excess() < 1 + 1e-6, `released like live traffic: ${world.excess()}`)
      t.equal(world.left.length, 2_000)
    })
  }

  t.test(`${mode}, booked: all come up to a second late, among live traffic of twice the rate`, async t => {
    const next = random(7)
    const world = new World({ limits: limits(100, 1_000), mode, books: true })
    fill(world, 1_000)
    const clients = crowd(1_000)
    for (const client of clients) world.visit(client, () => 1_000 * next())
    let live = 0
    world.often(4_000, 5, at => {
      if (world.ask(`live-${at}`) === 'admitted') live += 1
    })
    world.pass(60_000)
    t.equal(share(clients, 2), 1)
    t.ok(live > 0, `${live} of the others were admitted`)
    const most = mode === 'shape' ? 1 : 1_000
    t.ok(world.excess() < most + 1e-6, `${world.excess()}`)
  })
}

t.test('who obeys Retry-After comes with all others of its second, and comes in', async t => {
  const world = new World({ limits: limits(100, 1_000) })
  fill(world, 1_000)
  let admitted = 0
  for (let at = 0; at < 1_000; at += 1) {
    const { retryAfterMs } = world.ask(`client-${at}`) as Rejection
    world.clock.at(1_000 * Math.ceil(retryAfterMs! / 1_000), () => {
      if (world.ask(`client-${at}`) === 'admitted') admitted += 1
    })
  }
  world.pass(11_000)
  t.equal(admitted, 1_000)
})

t.test('what is booked leaves in its order, before those that came later', async t => {
  const world = new World({ limits: limits(10, 10), books: true })
  fill(world, 10)
  const [a, b] = crowd(2) as [Client, Client]
  world.visit(a, () => 250)
  world.visit(b)
  world.pass(2_500)
  const order = world.left.map(({ name }) => name).filter(name => !name.startsWith('first'))
  t.same(order, ['client-0', 'client-1'], 'though the second came first')
})

t.test('a booking is claimed once, and only with its number', async t => {
  const world = new World({ limits: limits(10, 10), books: true })
  fill(world, 10)
  const { booking } = world.ask('a') as Rejection
  t.type(booking, 'number')
  t.equal((world.ask('a', booking) as Rejection).booking, booking, 'too early: told again')
  world.pass(100)
  t.not(world.ask('b'), 'admitted', 'its room is kept')
  t.not(world.ask('b', booking), 'admitted', 'also from another client that knows the number')
  t.equal(world.ask('a', booking), 'admitted')
  t.not(world.ask('a', booking), 'admitted')
})

t.test('bookings that nobody claims cost no slot', async t => {
  for (const [rate, capacity] of [
    [100, 20],
    [100, 1_000],
    [1_000, 50],
  ] as const) {
    const next = random(3)
    const world = new World({ limits: limits(rate, capacity), books: true })
    // Half as much again as the rate, from ever new clients of which none comes back.
    world.often(30 * rate, 1_000 / (1.5 * rate), at => {
      if (at % 2 === 0)
        world.clock.at(world.clock.now() + 1_000 * (next() / rate), () => void world.ask(`client-${at}`))
      else world.ask(`client-${at}`)
    })
    world.pass(20_000)
    const used = world.left.length / (20 * rate)
    t.ok(used > 0.99, `${rate}/s, b = ${capacity}: ${used} of the rate`)
    t.ok(world.excess() < 1 + 1e-6)
  }
})

t.test('a flood of rejections from ever new clients books nobody out', async t => {
  const world = new World({ limits: limits(100, 100), books: true })
  fill(world, 100)
  // A hundred times the rate for ten seconds.
  const clients = crowd(50)
  for (const client of clients) world.visit(client)
  world.often(100_000, 0.1, at => void world.ask(`flood-${at}`))
  world.pass(20_000)
  t.equal(share(clients, 2), 1, 'those that booked before it come in')
  const during = world.left.filter(({ at }) => at <= 10_000).length
  t.ok(during >= 1_000, `${during} left in ten seconds`)
})

t.test('any bookings, kept, late or lost: the level stays below the capacity, and r is exact', async t => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const next = random(seed)
    const rate = [5, 50, 500][seed % 3]!
    const capacity = [8, 20, 100][seed % 4 === 3 ? 0 : seed % 4]!
    const mode = seed % 2 === 0 ? 'shape' : 'meter'
    const world = new World({ limits: limits(rate, capacity), mode, books: true })
    let worst = 0
    let claims = 0
    let kept = 0
    const visit = (name: string, cost: number, claim?: number): void => {
      const answer = world.ask(name, claim, cost)
      worst = Math.max(worst, world.bucket.level(world.clock.now()))
      if (claim !== undefined) {
        claims += 1
        if (answer === 'admitted') kept += 1
      }
      if (answer === 'admitted' || answer.booking === undefined) return
      const { booking, retryAfterMs } = answer
      const again = world.clock.now() + Math.ceil(retryAfterMs!) + lateness(cost)
      if (next() < 0.7) world.clock.at(again, () => visit(name, cost, booking))
    }
    const lateness = (cost: number): number => {
      const window = (1_000 * (capacity / 2 - cost)) / rate
      return next() < 0.5 ? 0 : Math.max(0, next() * (Math.min(window, 10_000) - 1))
    }
    const gap = 1_000 / rate / 2
    world.often(1_500, gap, at => {
      visit(`client-${at}`, [0.5, 1, 1.25, 2][Math.floor(4 * next())]!)
      // A client hangs up.
      const [ticket] = world.waiting
      if (ticket !== undefined && next() < 0.05 && world.shaper.cancel(ticket)) world.waiting.delete(ticket)
    })
    world.pass(1_500 * gap + 1)
    t.ok(worst <= capacity + 1e-6, `seed ${seed}: ${worst} of ${capacity}`)
    t.ok(claims > 10 && kept === claims, `seed ${seed}: ${kept} of ${claims} claims`)
    t.ok(world.excess() <= (mode === 'shape' ? 2 : capacity) + 1e-6, `seed ${seed}: ${world.excess()}`)
  }
})

t.test('several buckets: each that rejected keeps room', async t => {
  const world = new World({ limits: limits(10, 10), books: true })
  const slower = new World({ limits: limits(5, 10) }).bucket
  world.stack.push(slower)
  fill(world, 10)
  const answer = world.ask('a') as Rejection
  t.equal(Math.round(answer.retryAfterMs!), 200)
  t.equal(Math.round((world.ask('b') as Rejection).retryAfterMs!), 400)
  world.pass(Math.ceil(answer.retryAfterMs!))
  t.not(world.ask('c'), 'admitted')
  t.equal(world.ask('a', answer.booking), 'admitted')
})

t.test('a client that its own bucket keeps for long does not push out the promises of a shared one', async t => {
  for (const books of [false, true]) {
    const world = new World({ limits: limits(10, 10), books })
    fill(world, 10)
    const shared = [...world.stack]
    const own = new World({ limits: limits(0.01, 4) }).bucket
    own.fill(4, 0)
    world.stack.unshift(own)
    const { retryAfterMs, buckets } = world.ask('slow') as Rejection
    t.equal(buckets.length, 2)
    t.equal(Math.round(retryAfterMs!), 100_000)
    world.pass(50)
    t.equal(Math.round((world.ask('slow') as Rejection).retryAfterMs!), 99_950, 'told again')
    world.stack.splice(0, 2, ...shared)
    t.equal(Math.round((world.ask('b') as Rejection).retryAfterMs!), 150)
  }
})

t.test('a claim takes no room that another bucket keeps for others', async t => {
  const world = new World({ limits: limits(10, 10), books: true })
  const [shared] = world.stack as [SharedBucket]
  const other = new World({ limits: limits(10, 10) }).bucket
  // The other one rejects b, the shared one a.
  fill(world, 10)
  const { booking } = world.ask('a') as Rejection
  world.stack[0] = other
  fill(world, 10)
  const { booking: elsewhere } = world.ask('b') as Rejection
  world.stack.push(shared)
  world.pass(100)
  t.not(world.ask('b', elsewhere), 'admitted', 'the room in the shared one is kept for a')
  world.stack.shift()
  t.equal(world.ask('a', booking), 'admitted')
})

t.test('maxWait: what is booked waits no longer than that', async t => {
  const world = new World({ limits: limits(10, 100), books: true, maxWait: 2_000 })
  for (let at = 0; at < 21; at += 1) t.equal(world.ask(`first-${at}`), 'admitted')
  const clients = crowd(20)
  for (const client of clients) world.visit(client)
  world.often(100, 50, at => void world.ask(`live-${at}`))
  world.pass(10_000)
  t.equal(share(clients, 2), 1)
})

t.test('during a pause nothing is booked, and afterwards what was booked before has its turn', async t => {
  const world = new World({ limits: limits(10, 10), books: true })
  fill(world, 10)
  const [first, second] = ['a', 'b'].map(name => (world.ask(name) as Rejection).booking)
  world.shaper.engine.pause(world.route.gate, 1_000)
  t.match(world.ask('c'), { booking: undefined })
  world.pass(200)
  t.equal(world.ask('a', first), 'admitted', 'what had passed has drained')
  const again = world.ask('b', second)
  t.not(again, 'admitted', 'what waits has not')
  world.pass(1_000)
  t.equal(world.ask('b', second), 'admitted', 'it is in time')
  world.pass(5_000)
  t.ok(world.excess() < 1 + 1e-6)
})

t.test('a reset forgets promises', async t => {
  const world = new World({ limits: limits(10, 10), mode: 'meter', books: true })
  fill(world, 10)
  for (const name of ['a', 'b']) world.ask(name)
  world.shaper.engine.reset(world.bucket)
  fill(world, 10)
  t.equal(Math.round((world.ask('c') as Rejection).retryAfterMs!), 100)
})

t.test('instances that promise alike leave each other slots', async t => {
  const world = new World({ limits: limits(10, 4) })
  fill(world, 4)
  const told = ['a', 'b', 'c'].map(client => {
    const arrival = { route: world.route, stack: world.stack, cost: 1, client }
    const waiter = { release: () => undefined, expire: () => undefined, reject: () => undefined }
    return Math.round(
      world.shaper.promise(arrival, world.shaper.admit(arrival, waiter) as Rejection, Infinity, 3).retryAfterMs!,
    )
  })
  t.same(told, [100, 400, 700])
})

t.test('a bucket that is too small books nothing, and tells moments', async t => {
  const world = new World({ limits: limits(10, 3), books: true })
  fill(world, 3)
  const told = ['a', 'b'].map(name => world.ask(name) as Rejection)
  t.same(
    told.map(({ booking, retryAfterMs }) => [booking, Math.round(retryAfterMs!)]),
    [
      [undefined, 100],
      [undefined, 200],
    ],
  )
})
