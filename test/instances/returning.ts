/**
 * Instances on one store, on a virtual clock, and clients that come back when they were told to: to any instance.
 */
import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { type Arrival, Gate, type LaneRoute, type Rejection, type SharedBucket } from '../../src/core/queue/lane.js'
import { Shaper, type Verdict } from '../../src/core/shaper.js'
import { Sharing } from '../../src/sharing/sharing.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { mostHeld, random } from '../core/run.js'
import { createHeapClock } from './heap-clock.js'
import { type Connection, connect } from './store-at-distance.js'

export interface ReturningOptions {
  readonly limits: BucketLimits
  readonly count: number
  readonly mode?: 'shape' | 'meter'
  readonly books?: boolean
  /** ms that a message to or from the store takes; default 0.25. */
  readonly distance?: (instance: number) => number
  readonly seed?: number
}

/** A client that comes back when it was told to. Times in ms from the start. */
export interface Returning {
  readonly name: string
  visits: number
  /** At which visit it was admitted. */
  admittedAt: number | undefined
  readonly toldAt: number[]
  booking: number | undefined
  readonly cost?: number
}

interface Process {
  readonly connection: Connection
  /** When it has asked the store for promises, in ms. */
  readonly promisesAskedAt: readonly number[]
  /** How long each rejected client waited for its moment, in ms. */
  readonly tellingTook: readonly number[]
  ask(
    arrival: Pick<Arrival, 'client' | 'appointment' | 'cost'>,
    answered: (answer: 'admitted' | Rejection) => void,
  ): void
  readonly bucket: SharedBucket
}

export class ReturningWorld {
  readonly clock = createHeapClock()
  readonly chance: () => number
  /** When each request left, and its cost. */
  readonly left: { readonly at: number; readonly cost: number; readonly instance: number }[] = []
  readonly processes: Process[] = []
  readonly options: ReturningOptions
  #hasAnswers = false

  constructor(options: ReturningOptions) {
    this.options = options
    this.chance = random(options.seed ?? 1)
  }

  static async start(options: ReturningOptions): Promise<ReturningWorld> {
    const world = new ReturningWorld(options)
    const reach = { horizon: 0, back: 0 }
    const inner = createMemoryStore({ clock: world.clock, reach })
    for (let instance = 0; instance < options.count; instance += 1)
      world.processes.push(world.#create(instance, () => ({ inner, reach })))
    await world.pass(100)
    return world
  }

  #create(instance: number, storeOf: () => Pick<Parameters<typeof connect>[0], 'inner' | 'reach'>): Process {
    const { clock } = this
    const { distance = () => 0.25, limits, mode = 'shape' } = this.options
    const way = (): number => distance(instance)
    const connection = connect({
      ...{ ...storeOf(), clock, distance: { there: way, back: way } },
      answered: () => {
        this.#hasAnswers = true
      },
    })
    const { store } = connection
    const { appoint } = store
    const promisesAskedAt: number[] = []
    const tellingTook: number[] = []
    store.appoint = request => {
      promisesAskedAt.push(clock.now())
      return appoint!(request)
    }
    const sharing = new Sharing({ store, onOutage: 'local', clock, id: String(instance) })
    const shaper = new Shaper({ clock, share: sharing.shareBy(clock) })
    const table = new BucketTable(1e9, (limits, key) => sharing.createBucket(limits, key))
    const gate = new Gate()
    void sharing.join({
      ...{ shaper, clock, buckets: () => table.all(), peek: () => undefined },
      gates: () => [gate],
    })
    const route: LaneRoute = { name: 'route', gate }
    const { left } = this
    const find = (): SharedBucket => table.find(sharing.limitsOf(limits, ''), '', clock.now()) as SharedBucket
    return {
      connection,
      promisesAskedAt,
      tellingTook,
      get bucket() {
        return find()
      },
      ask(asked, answered) {
        const bucket = find()
        table.hold(bucket)
        const arrival: Arrival = { ...asked, route, stack: [bucket] }
        const leave = (): void => {
          left.push({ at: clock.now(), cost: asked.cost, instance })
          gate.leave()
          bucket.leave()
          table.rest(bucket)
        }
        let rejectedAt = 0
        const tell = (rejection: Rejection): void => {
          tellingTook.push(clock.now() - rejectedAt)
          table.rest(bucket)
          answered(rejection)
        }
        const callbacks = {
          decided(verdict: Verdict) {
            rejectedAt = clock.now()
            if (verdict !== 'released' && 'reason' in verdict)
              return shaper.tell({ arrival, rejection: verdict, maxWait: Infinity, atOnce: mode === 'meter', tell })
            answered('admitted')
            if (verdict === 'released') leave()
          },
          release: leave,
          expire: () => undefined,
          reject: () => undefined,
        }
        shaper.arrive(arrival, callbacks, mode, Infinity)
      },
    }
  }

  /** Lets this many ms pass. */
  async pass(time: number): Promise<void> {
    const until = this.clock.now() + time
    while (this.clock.step(until)) {
      if (!this.#hasAnswers) continue
      this.#hasAnswers = false
      await new Promise(resolve => setImmediate(resolve))
    }
    this.clock.runUntil(until)
  }

  /** Any instance, by chance. */
  any(): number {
    return Math.floor(this.chance() * this.processes.length)
  }

  ask(
    name: string,
    answered: (answer: 'admitted' | Rejection) => void = () => undefined,
    more: {
      readonly claim?: number | undefined
      readonly cost?: number
      readonly instance?: number
    } = {},
  ): void {
    const { claim, cost = 1, instance = this.any() } = more
    const appointment = this.options.books ? { redeems: claim } : undefined
    this.processes[instance]!.ask({ client: name, cost, appointment }, answered)
  }

  /** A client comes, and comes again when it is told to, late by this. */
  visit(client: Returning, late: () => number = () => 0, instance?: number): void {
    client.visits += 1
    const { booking: claim, cost = 1 } = client
    const more = { claim, cost, ...(instance !== undefined && { instance }) }
    this.ask(
      client.name,
      answer => {
        if (answer === 'admitted') {
          client.admittedAt = client.visits
          return
        }
        const wait = Math.ceil(answer.retryAfterMs!)
        client.toldAt.push(this.clock.now() + answer.retryAfterMs!)
        client.booking = answer.booking
        if (client.visits < 20) this.clock.at(this.clock.now() + wait + late(), () => this.visit(client, late))
      },
      more,
    )
  }

  /** New clients ask, so many in a second, each once. */
  live(perSecond: number, forMs: number, admitted: () => void = () => undefined): void {
    const end = this.clock.now() + forMs
    let count = 0
    const come = (): void => {
      if (this.clock.now() >= end) return
      count += 1
      this.ask(`live-${count}`, answer => {
        if (answer === 'admitted') admitted()
      })
      this.clock.at(this.clock.now() + 1_000 / perSecond, come)
    }
    come()
  }

  /** As many requests as fit, spread over all instances. */
  async fill(count: number): Promise<number> {
    let admitted = 0
    for (let at = 0; at < count; at += 1) {
      this.ask(
        `first-${at}`,
        answer => {
          if (answer === 'admitted') admitted += 1
        },
        { instance: at % this.processes.length },
      )
    }
    await this.pass(150)
    return admitted
  }

  /** The most that left in any window beyond r times its length, in cost units. */
  excess(): number {
    return mostHeld(this.options.limits, this.left)
  }
}

export function crowdOf(count: number): Returning[] {
  return Array.from({ length: count }, (_, at) => ({
    ...{ name: `client-${at}`, visits: 0, admittedAt: undefined, toldAt: [], booking: undefined },
  }))
}

export function shareAt(clients: readonly Returning[], visit: number): number {
  return clients.filter(({ admittedAt }) => admittedAt === visit).length / clients.length
}

/** The most of these moments, in ms, that lie in one second. */
export function mostInSecond(moments: readonly number[]): number {
  let first = 0
  let most = 0
  for (const [place, at] of moments.entries()) {
    while (moments[first]! < at - 1_000) first += 1
    most = Math.max(most, place - first + 1)
  }
  return most
}
