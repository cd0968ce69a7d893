/**
 * When clients that a bucket rejected were told to come back, and the room that it keeps for some of them.
 *
 * A *promise* is a moment, told to one client; the next client is told a later one. It keeps nothing, and is over when it has
 * come.
 *
 * A *booking* is a promise that keeps room, from its moment on for a window. It takes no slot: the requests that wait leave as
 * if there were none, so one that nobody claims costs nothing. Newcomers are admitted if the bucket has room for them besides
 *
 *     reserved(now) = R + max(0, c1 - rate * (at1 - now))
 *
 * R is the room of all bookings whose moment has come, and the next one has cost c1 and moment at1. Bookings are as far apart
 * as the cost of the later one takes to drain, so newcomers need to leave room for the next one only. Then level + R <=
 * capacity holds when one comes, and stays so whether it is claimed (its cost moves from R to the level) or not. It fails if
 * the level does not drain as expected: another bucket or a pause keeps the requests, costs turn out higher, the rate falls.
 * Then a claim does not fit, and its client is promised a new moment.
 *
 * A window is shorter than half the capacity takes to drain. So R is at most half the capacity: newcomers find the other half.
 */
import { type Linked, LinkedList } from '../structures/linked-list.js'
import type { BucketLimits } from './limits.js'
import { LEVEL_TOLERANCE } from './meter.js'

/** Promises of one bucket. It is a bound on memory: further clients are told the last moment. */
const MOST_PROMISES = 10_000
/** Times are in ms, costs in cost units. */
export class PromisedMoment implements Linked<PromisedMoment> {
  list: object | undefined = undefined
  previous: PromisedMoment | undefined = undefined
  next: PromisedMoment | undefined = undefined

  /** @param booked of a booking: its number, and how long it keeps room */
  constructor(
    readonly client: string,
    readonly cost: number,
    readonly at: number,
    readonly booked: { readonly id: number; readonly until: number } | undefined,
  ) {}
}

export class Promises {
  readonly #byClient = new Map<string, PromisedMoment>()
  readonly #plain = new LinkedList<PromisedMoment>()
  readonly #booked = new LinkedList<PromisedMoment>()
  readonly #due = new LinkedList<PromisedMoment>()
  /** Cost of all of them, of all bookings, and of those that are due. */
  #cost = 0
  bookedCost = 0
  #dueCost = 0

  isOver(now: number): boolean {
    this.#advance(now)
    return this.#byClient.size === 0
  }

  /** The room that is kept from newcomers. */
  reserved(now: number, { rate }: BucketLimits): number {
    if (this.bookedCost === 0) return 0
    this.#advance(now)
    const { first } = this.#booked
    return this.#dueCost + (first === undefined ? 0 : Math.max(0, first.cost - rate * (first.at - now)))
  }

  of(client: string, now: number): PromisedMoment | undefined {
    this.#advance(now)
    return this.#byClient.get(client)
  }

  /** The last moment that has been promised. -Infinity: none. */
  get last(): number {
    return Math.max(
      this.#plain.last?.at ?? -Infinity,
      this.#booked.last?.at ?? -Infinity,
      this.#due.last?.at ?? -Infinity,
    )
  }

  get isFull(): boolean {
    return this.#byClient.size >= MOST_PROMISES
  }

  hasPlace(cost: number, { capacity }: BucketLimits): boolean {
    return !this.isFull && this.#cost + cost <= capacity + LEVEL_TOLERANCE
  }

  /** Its moment is not before `last`. Its client has no other. */
  add(promise: PromisedMoment): void {
    const { client, cost, booked } = promise
    this.#byClient.set(client, promise)
    this.#cost += cost
    if (booked !== undefined) this.bookedCost += cost
    const list = booked === undefined ? this.#plain : this.#booked
    list.push(promise)
  }

  drop(promise: PromisedMoment): void {
    const { client, cost, booked } = promise
    if (this.#due.remove(promise)) this.#dueCost -= cost
    else if (!this.#plain.remove(promise) && !this.#booked.remove(promise)) return
    this.#byClient.delete(client)
    this.#cost -= cost
    if (booked !== undefined) this.bookedCost -= cost
    // Sums of fractions do not come back to 0.
    if (this.#byClient.size === 0) this.#cost = 0
    if (this.#due.size === 0) this.#dueCost = 0
    if (this.#due.size + this.#booked.size === 0) this.bookedCost = 0
  }

  #advance(now: number): void {
    for (let { first } = this.#plain; first !== undefined && first.at <= now; first = this.#plain.first)
      this.drop(first)
    for (let { first } = this.#booked; first !== undefined && first.at <= now; first = this.#booked.first) {
      this.#booked.remove(first)
      this.#due.push(first)
      this.#dueCost += first.cost
    }
    for (let { first } = this.#due; first !== undefined && first.booked!.until < now; first = this.#due.first) {
      this.drop(first)
    }
  }
}
