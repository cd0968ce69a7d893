/**
 * Which lane of a shared bucket is the heaviest, and which requests make room for a newcomer with less than its share.
 *
 * Lanes are compared by the cost that they have queued, divided by their weight, requests that are set aside included. One
 * whose requests all claim slots has none to give and comes last. A bucket keeps them in a heap once it was asked for the
 * heaviest (`overflow: "fair"`).
 */

import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources, type LaneRank } from '../bucket/waiting.js'
import type { Arrival, Lane, SharedBucket, Ticket } from '../queue/lane.js'
import { findLane, lanesBelow } from '../queue/tree.js'
import { withEntry } from '../structures/compact-list.js'
import { DueHeap } from '../structures/due-heap.js'
import { levelWait, predictedWait } from './predicted-wait.js'

/** Updates a lane's ranks after its queue has changed. */
export function updateRank(lane: Lane): void {
  for (const bucket of lane.stack) {
    const among = bucket.extras?.heaviest
    if (among !== undefined && !lane.ranks.some(rank => rank.among === among)) rank(lane, among)
  }
  for (const rank of lane.ranks) rank.among.move(rank, rankOf(lane))
}

/** The heaviest is the lowest. */
function rankOf({ tickets, hasAside, queued, weight }: Lane): number {
  return tickets.size === 0 && !hasAside ? 0 : -queued / weight
}

/** A lane is gone. */
export function dropRank(lane: Lane): void {
  for (const rank of lane.ranks) rank.among.remove(rank)
}

/** What a newcomer finds. */
export interface Circumstances {
  /** ms. How long it may wait. */
  readonly maxWait: number
  /** ms. How long its upstream pauses. */
  readonly pause: number
  /** A request that gives up its place in any case. */
  readonly leaving?: Ticket
}

/**
 * The requests that make room for a newcomer in its full buckets. Undefined: there are none, or it would not be admitted
 * even so.
 */
export function makeRoom(
  arrival: Arrival,
  full: readonly SharedBucket[],
  { maxWait, pause, leaving }: Circumstances,
  now: number,
): readonly Ticket[] | undefined {
  const victims: Ticket[] = leaving === undefined ? [] : [leaving]
  for (const bucket of full) {
    const freed = costIn(bucket, victims)
    const isFair = bucket.limits.overflow === 'fair'
    if (!isFair && freed === 0) return undefined
    const excess = bucket.excess(arrival.cost, now) - freed
    if (excess <= LEVEL_TOLERANCE) continue
    const found = isFair ? findVictims(bucket, arrival, excess, victims) : undefined
    if (found === undefined) return undefined
    victims.push(...found)
  }
  const isLate = arrival.stack.some(bucket => {
    const freed = costIn(bucket, victims)
    const queued = bucket.queued - freed
    // A store's level may be lower than what is queued here.
    return levelWait(bucket, Math.max(queued, bucket.level(now) - freed), pause, queued) > maxWait
  })
  const goes = !isLate || predictedWait(arrival, now, pause) <= maxWait
  return !goes ? undefined : victims.filter(ticket => ticket !== leaving)
}

/** What these requests cost a bucket, in cost units. */
function costIn(bucket: SharedBucket, tickets: readonly Ticket[]): number {
  return tickets.reduce((sum, { lane, cost }) => sum + (lane.stack.includes(bucket) ? cost : 0), 0)
}

/**
 * The requests that make room for `excess` cost units of a newcomer in a full bucket, newest first. Undefined: the
 * newcomer's lane has its share already, or no other lane has more than it would have.
 */
function findVictims(
  bucket: SharedBucket,
  { route, stack, cost, weight = 1 }: Arrival,
  excess: number,
  already: readonly Ticket[],
): readonly Ticket[] | undefined {
  if (bucket.waiting === 0) return undefined
  const lane = findLane(route, stack)
  const queued = lane?.queued ?? 0
  let weights = lane === undefined ? weight : 0
  for (const source of allSources(bucket)) weights += source.weight
  if (queued / weight >= bucket.limits.capacity / weights) return undefined
  const heaviest = ranked(bucket).next?.lane
  if (heaviest === undefined) return undefined
  const victims: Ticket[] = []
  let gone = 0
  let freed = 0
  for (const ticket of newestFirst(heaviest)) {
    if ((heaviest.queued - gone) / heaviest.weight <= (queued + cost) / weight + LEVEL_TOLERANCE) return undefined
    gone += ticket.cost
    if (already.includes(ticket)) continue
    victims.push(ticket)
    freed += ticket.cost
    if (freed + LEVEL_TOLERANCE >= excess) return victims
  }
  return undefined
}

/** The requests of a lane that can make room. */
function* newestFirst({ tickets, aside }: Lane): Generator<Ticket> {
  let queued = tickets.last
  let other = aside?.last
  while (queued !== undefined || other !== undefined) {
    if (other === undefined || (queued !== undefined && queued.arrivedAt >= other.arrivedAt)) {
      yield queued!
      queued = queued!.previous
    } else {
      yield other
      other = other.previous
    }
  }
}

function ranked(bucket: SharedBucket): DueHeap<LaneRank<Lane>> {
  const extras = bucket.openExtras()
  if (extras.heaviest === undefined) {
    extras.heaviest = new DueHeap()
    for (const lane of allSources(bucket).flatMap(lanesBelow)) rank(lane, extras.heaviest)
  }
  return extras.heaviest
}

function rank(lane: Lane, among: DueHeap<LaneRank<Lane>>): void {
  const place = { lane, among, place: -1 }
  lane.ranks = withEntry(lane.ranks, place)
  among.add(place, rankOf(lane))
}
