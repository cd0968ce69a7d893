/**
 * Who says when requests may leave whose buckets are not only here: a store that instances share (src/sharing). Without one the
 * buckets themselves say it.
 */
import type { BucketLimits } from '../bucket/limits.js'
import type { MaybePromise } from '../maybe-promise.js'
import type { Demand, Gate, Lane, SharedBucket, Ticket, Waiter } from '../queue/lane.js'

/** How requests pass: at once, after claiming a slot from the source, or not at all, while nobody knows whether it answers. */
export type ReleaseMode = 'direct' | 'claimed' | 'none'

export interface SlotSource {
  /** When the next slot is due that it has, in ms. */
  readonly due: number
  /** One shut bucket shuts the whole stack. Else one that is away lets it pass without the source. */
  modeOf(stack: readonly SharedBucket[]): ReleaseMode
  createTicket(lane: Lane, cost: number, arrivedAt: number, waiter: Waiter): Ticket
  /** A ticket stands in its lane, behind those that came before it. It goes before later ones that claim. */
  linedUp(ticket: Ticket): void
  /** Claims a slot for the first ticket of a lane, whose turn it is. */
  ask(ticket: Ticket, now: number): void
  /** Gives the slot that is due to its lane. */
  advance(now: number): void
  /** Takes out a claiming ticket. The next in its lane takes its place. False: it is not claiming. */
  remove(ticket: Ticket): boolean
  /** Gives back what it counts for a ticket, and its slot. */
  giveBack(ticket: Ticket): void
  /** Closes a lane in which nobody waits any more, unless some claim or are set aside. */
  closeLane(lane: Lane): void
  /** Nothing leaves through a gate: its slots go back. */
  recall(gate: Gate): void
  reset(bucket: SharedBucket): void
  /** The limits of a bucket are about to become these. What it returns is called once they are. */
  limitsChange(bucket: SharedBucket, limits: BucketLimits, now: number): (() => void) | undefined
  /** What requests cost that have passed is known better. @param changes of the buckets here @returns its own where those count */
  settle(demand: Demand, changes: readonly number[]): MaybePromise<readonly number[]>
  /** A request was sent later than it passed. Whether its bucket waits for that. Undefined: that is up to the bucket. */
  postpone(bucket: SharedBucket, cost: number, passedAt: number, sentAt: number): boolean | undefined
  /** A request has passed without the source. */
  passed(demand: Demand, slot: number): void
  /** These waited in another process, and have lined up. */
  takenOver(tickets: readonly Ticket[]): void
  /** What waits here is to leave elsewhere: what is leased goes back, of these buckets at once. Until `resume` nothing is leased. */
  retire(buckets: Iterable<SharedBucket>): void
  resume(): void
  close(): void
}
