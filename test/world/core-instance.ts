/** An instance of core and sharing, without a proxy around it: the real ones, as server.ts puts them together. */
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import type { Clock } from '../../src/core/clock.js'
import {
  type Arrival,
  Gate,
  type LaneRoute,
  type Rejection,
  type SharedBucket,
  Ticket,
} from '../../src/core/queue/lane.js'
import { Shaper, type Verdict } from '../../src/core/shaper.js'
import { Sharing } from '../../src/sharing/sharing.js'
import type { StoredBucket } from '../../src/sharing/stored-bucket.js'
import type { Connection } from '../instances/store-at-distance.js'
import type { EndEntry, RestEntry } from './history.js'
import type { Ask, Ending, Instance, World } from './instance.js'
import type { BucketPlan } from './scenario.js'

/** A request that has not ended. */
interface Open {
  readonly ask: Ask
  readonly arrival: Arrival
  readonly ended: (ending: Ending) => void
  ticket: Ticket | undefined
  isOver: boolean
  isReleased: boolean
}

/** How much longer a slow client takes. */
const SLOW = 20

export class CoreInstance implements Instance {
  readonly number: number
  readonly connection: Connection | undefined
  isUp = false
  readonly #world: World
  readonly #clock: Clock
  readonly #sharing: Sharing | undefined
  readonly #shaper: Shaper
  readonly #table: BucketTable
  readonly #gate: Gate
  readonly #routes = new Map<string, LaneRoute>()
  readonly #open = new Set<Open>()
  /** Requests that it has not taken yet, by what to do if it never does. */
  readonly #coming = new Set<() => void>()
  /** By name and key. */
  readonly #overrides = new Map<string, number>()
  readonly #limits = new Map<string, BucketLimits>()
  #buckets: readonly BucketPlan[]
  #isGone = false
  #isLeaving = false

  constructor(world: World, number: number) {
    const { scenario } = world
    this.#world = world
    this.number = number
    this.#buckets = world.buckets()
    this.#gate = new Gate(scenario.maxInFlight)
    const clock = world.clockOf(number, () => this.#isGone)
    this.#clock = clock
    this.connection = world.connect(number, clock)
    const store = this.connection?.store
    const sharing = store && new Sharing({ store, onOutage: 'local', clock, id: String(number) })
    this.#sharing = sharing
    this.#shaper = new Shaper({ clock, ...(sharing && { share: sharing.shareBy(clock) }) })
    this.#table = new BucketTable(1e9, sharing && ((limits, key) => sharing.createBucket(limits, key)))
    sharing?.group(new Map(), lanesMeet(world) ? new Set(scenario.buckets.map(({ name }) => name)) : new Set())
    if (sharing === undefined) this.isUp = true
    else void this.#join(sharing)
  }

  async #join(sharing: Sharing): Promise<void> {
    await sharing.join({
      shaper: this.#shaper,
      clock: this.#clock,
      buckets: () => this.#table.all(),
      peek: (name, key) => this.#table.peek(name, key),
      gates: () => [this.#gate],
    })
    this.isUp = !this.#isGone
  }

  ask(ask: Ask, ended: (ending: Ending) => void): () => void {
    let open: Open | undefined
    const lost = (): void => ended({ how: 'gone' })
    this.#coming.add(lost)
    // It may stand still.
    const cancel = this.#clock.at(this.#clock.now(), () => {
      this.#coming.delete(lost)
      open = this.#take(ask, ended)
    })
    return () => {
      if (cancel()) this.#coming.delete(lost)
      this.#clock.at(this.#clock.now(), () => {
        if (open !== undefined) this.#hangUp(open)
      })
    }
  }

  #take(ask: Ask, ended: (ending: Ending) => void): Open {
    const { client, request, booking, isBack, visitor } = ask
    const { scenario, record } = this.#world
    const keys = this.#buckets.map(({ isOwn }) => (isOwn ? client.name : 'all'))
    const stack = this.#buckets.map((bucket, place) => this.#find(bucket, keys[place]!))
    for (const bucket of stack) this.#table.hold(bucket)
    const { priority, weight, cost, maxWait } = client
    const arrival: Arrival = {
      ...{ route: this.#routeOf(client.route), stack, cost, priority, weight, client: visitor },
      ...(scenario.books && { appointment: { redeems: booking as number | undefined } }),
    }
    record({
      ...{ what: 'arrive', at: this.#clock.now(), request, client: client.name, kind: client.kind },
      ...{ instance: this.number, keys, cost, priority, route: client.route, maxWait },
      ...{ hasBooking: booking !== undefined, isBack },
    })
    const open: Open = { ask, arrival, ended, ticket: undefined, isOver: false, isReleased: false }
    this.#open.add(open)
    const release = (): void => this.#released(open)
    this.#shaper.arrive(
      arrival,
      {
        decided: verdict => this.#decided(open, verdict),
        release,
        expire: () => this.#end(open, 'expired', { how: 'gone' }),
        reject: rejection => this.#end(open, 'evicted', { how: 'rejected', retryAfterMs: rejection.retryAfterMs }),
      },
      scenario.mode,
      maxWait,
    )
    return open
  }

  #decided(open: Open, verdict: Verdict): void {
    const { record } = this.#world
    const { request } = open.ask
    const at = this.#clock.now()
    // One that is cancelled here may have had its turn, and is released all the same.
    if (verdict instanceof Ticket) open.ticket = verdict
    if (open.isOver) {
      // It has hung up while the store was asked.
      if (verdict instanceof Ticket) this.#shaper.cancel(verdict)
      else if (verdict === 'released') this.#shaper.leave(this.#gate, open.arrival.stack)
      return
    }
    if (verdict === 'released') {
      record({ what: 'decide', at, request, verdict })
      return this.#released(open)
    }
    if (verdict instanceof Ticket) {
      return record({ what: 'decide', at, request, verdict: 'queued' })
    }
    const { reason, retryAfterMs } = verdict
    record({ what: 'decide', at, request, verdict: 'rejected', reason, retryAfterMs })
    this.#shaper.tell({
      ...{ arrival: open.arrival, rejection: verdict, maxWait: open.ask.client.maxWait },
      atOnce: this.#world.scenario.mode === 'meter',
      tell: (told: Rejection) => {
        this.#end(open, 'rejected', { how: 'rejected', retryAfterMs: told.retryAfterMs, booking: told.booking })
      },
    })
  }

  #released(open: Open): void {
    if (open.isOver) {
      // As a visit does that ended while its release was on the way.
      this.#shaper.leaveQuietly(this.#gate, open.arrival.stack, NOBODY)
      return this.#shaper.giveBack(open.ticket!)
    }
    open.isReleased = true
    const { record, scenario, chance } = this.#world
    record({ what: 'release', at: this.#clock.now(), request: open.ask.request })
    const { service } = scenario
    const takes = service * (open.ask.client.kind === 'slow' ? SLOW : 2 * chance())
    if (takes === 0) return this.#answered(open)
    this.#clock.at(this.#clock.now() + takes, () => this.#answered(open))
  }

  #answered(open: Open): void {
    if (open.isOver) return
    this.#end(open, 'done', { how: 'done' })
    this.#shaper.leave(this.#gate, open.arrival.stack)
  }

  #hangUp(open: Open): void {
    if (open.isOver || this.#isGone) return
    this.#end(open, 'hung-up', undefined)
    const { ticket } = open
    if (open.isReleased) this.#shaper.leave(this.#gate, open.arrival.stack)
    else if (ticket !== undefined) this.#shaper.cancel(ticket)
  }

  #end(open: Open, how: EndEntry['how'], ending: Ending | undefined): void {
    if (open.isOver) return
    open.isOver = true
    this.#open.delete(open)
    this.#world.record({ what: 'end', at: this.#clock.now(), request: open.ask.request, how })
    for (const bucket of open.arrival.stack) this.#table.rest(bucket)
    if (this.#isLeaving && this.#open.size + this.#coming.size === 0) void this.close()
    if (ending !== undefined) open.ended(ending)
  }

  crash(): void {
    if (this.#isGone) return
    this.isUp = false
    for (const open of [...this.#open]) this.#end(open, 'lost', { how: 'gone' })
    this.#isGone = true
    if (this.connection !== undefined) this.connection.gone = true
    for (const lost of this.#coming) this.#world.clock.at(this.#world.clock.now(), lost)
  }

  leave(): void {
    this.isUp = false
    this.#isLeaving = true
    if (this.#open.size + this.#coming.size === 0) void this.close()
  }

  async close(): Promise<void> {
    if (this.#isGone) return
    this.#shaper.engine.close()
    await this.#sharing?.close()
    this.#isGone = true
  }

  reload(buckets: readonly BucketPlan[]): void {
    this.#buckets = buckets
    this.#limits.clear()
    for (const bucket of buckets)
      for (const [key, instance] of this.#table.entries(bucket.name))
        this.#shaper.engine.setLimits(instance, this.#limitsOf(bucket, key))
    this.#shaper.engine.replan([this.#gate], () => Infinity)
  }

  override(bucket: BucketPlan, key: string, rate: number | undefined): void {
    const name = `${bucket.name} ${key}`
    if (rate === undefined) this.#overrides.delete(name)
    else this.#overrides.set(name, rate)
    const instance = this.#table.peek(bucket.name, key)
    if (instance === undefined) return
    this.#table.hold(instance)
    this.#shaper.engine.setLimits(instance, this.#limitsOf(this.#planOf(bucket.name), key))
    if (instance.waiting > 0) this.#shaper.engine.replanBucket(instance, () => Infinity)
    this.#table.rest(instance)
  }

  reset(bucket: BucketPlan, key: string): void {
    const instance = this.#table.peek(bucket.name, key)
    if (instance === undefined) return
    if (this.#sharing === undefined) this.#shaper.engine.reset(instance)
    else void this.#sharing.reset(instance as StoredBucket).catch(() => undefined)
  }

  pause(ms: number): void {
    this.#shaper.engine.pause(this.#gate, ms)
  }

  upstreamIs(): void {}

  counts(): ReadonlyMap<EndEntry['how'], number> {
    return new Map()
  }

  left(): RestEntry['left'] {
    const now = this.#clock.now()
    const buckets = [...this.#table.all()]
    const sumOf = (of: (bucket: SharedBucket) => number): number => buckets.reduce((sum, each) => sum + of(each), 0)
    return {
      open: this.#open.size,
      waiting: this.#shaper.queued,
      'in flight': this.#gate.inFlight,
      'waiting in buckets': sumOf(bucket => bucket.waiting),
      'queued in buckets': sumOf(bucket => bucket.queued),
      'in flight in buckets': sumOf(bucket => bucket.inFlight),
      level: sumOf(bucket => bucket.level(now)),
    }
  }

  #planOf(name: string): BucketPlan {
    return this.#buckets.find(bucket => bucket.name === name)!
  }

  #find(bucket: BucketPlan, key: string): SharedBucket {
    return this.#table.find(this.#limitsOf(bucket, key), key, this.#clock.now()) as SharedBucket
  }

  #limitsOf(bucket: BucketPlan, key: string): BucketLimits {
    const { name, perSecond, capacity, burst } = bucket
    const rate = this.#overrides.get(`${name} ${key}`) ?? perSecond / 1_000
    const id = `${name} ${rate}`
    const known = this.#limits.get(id) ?? { name, rate, capacity, ...(burst !== undefined && { burst }) }
    this.#limits.set(id, known)
    return this.#sharing === undefined ? known : this.#sharing.limitsOf(known, key)
  }

  #routeOf(name: string): LaneRoute {
    const route = this.#routes.get(name) ?? { name, gate: this.#gate }
    this.#routes.set(name, route)
    return route
  }
}

const NOBODY = { release: () => undefined, expire: () => undefined, reject: () => undefined }

/** Whether requests of several routes or classes come, which may meet in a bucket. */
function lanesMeet({ scenario: { clients } }: World): boolean {
  return new Set(clients.map(({ route, priority }) => `${route} ${priority}`)).size > 1
}
