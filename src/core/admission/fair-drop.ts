/**
 * Which lane of a shared bucket is the heaviest, and who has to leave for a newcomer with less than its share.
 *
 * Lanes are compared by what they have queued, divided by their weight. The comparison is kept in a heap only for
 * buckets that were ever asked for it (`overflow: "fair"`).
 */

import type { LaneRank } from '../bucket/waiting.js'
import { type Arrival, findLane, type Lane, type SharedBucket, type ShareNode, type Ticket } from '../queue/lane.js'
import { childrenOf } from '../queue/share-tree.js'
import { withEntry } from '../structures/compact-list.js'
import { DueHeap } from '../structures/due-heap.js'

const TOLERANCE = 1e-9

/** Brings a lane's standing up to date after its queue has changed. */
export function updateRank(lane: Lane): void {
  for (const bucket of lane.stack) {
    const among = bucket.waitingState?.heaviest
    if (among !== undefined && !lane.ranks.some(standing => standing.among === among)) stand(lane, among)
  }
  for (const standing of lane.ranks) standing.among.move(standing, -lane.queued / lane.weight)
}

/** A lane is no more. */
export function dropRank(lane: Lane): void {
  for (const standing of lane.ranks) standing.among.remove(standing)
}

/**
 * Whose requests make room for a newcomer in its full buckets; undefined: nobody's, or it would not be admitted even so.
 */
export function makeRoom(
  { route, stack, cost, weight = 1 }: Arrival,
  full: readonly SharedBucket[],
  maxWait: number,
  now: number,
): readonly Ticket[] | undefined {
  const victims: Ticket[] = []
  for (const bucket of stack) {
    const { overflow, capacity, rate } = bucket.limits
    const level = full.includes(bucket) ? capacity - cost : bucket.level(now)
    if (level / rate > maxWait) return undefined
    if (!full.includes(bucket)) continue
    if (overflow !== 'fair') return undefined
    const freed = victims.reduce((sum, { lane, cost }) => sum + (lane.stack.includes(bucket) ? cost : 0), 0)
    const excess = bucket.excess(cost, now) - freed
    if (excess <= TOLERANCE) continue
    const found = findVictims(bucket, [route, stack], weight, cost, excess, victims)
    if (found === undefined) return undefined
    victims.push(...found)
  }
  return victims
}

/**
 * Whose requests make room for `excess` cost units of a newcomer in a full bucket, newest first. Undefined: nobody's;
 * the newcomer's lane has its share already, or no other has more than it would have.
 */
function findVictims(
  bucket: SharedBucket,
  newcomer: Parameters<typeof findLane>,
  weight: number,
  cost: number,
  excess: number,
  already: readonly Ticket[],
): readonly Ticket[] | undefined {
  if (bucket.waitingState === undefined || bucket.waiting === 0) return undefined
  const lane = findLane(...newcomer)
  const queued = lane?.queued ?? 0
  let weights = lane === undefined ? weight : 0
  for (const junction of bucket.waitingState.shareNodes) weights += junction.weight
  if (queued / weight >= bucket.limits.capacity / weights) return undefined
  const heaviest = ranked(bucket).next?.lane
  if (heaviest === undefined) return undefined
  const victims: Ticket[] = []
  let gone = 0
  let freed = 0
  for (let ticket = heaviest.tickets.last; ticket !== undefined; ticket = ticket.previous) {
    if ((heaviest.queued - gone) / heaviest.weight <= (queued + cost) / weight + TOLERANCE) return undefined
    gone += ticket.cost
    if (already.includes(ticket)) continue
    victims.push(ticket)
    freed += ticket.cost
    if (freed + TOLERANCE >= excess) return victims
  }
  return undefined
}

function ranked(bucket: SharedBucket): DueHeap<LaneRank<Lane>> {
  const outlet = bucket.waitingState!
  if (outlet.heaviest === undefined) {
    outlet.heaviest = new DueHeap()
    for (const junction of outlet.shareNodes) standAll(junction, outlet.heaviest)
  }
  return outlet.heaviest
}

function standAll(junction: ShareNode, among: DueHeap<LaneRank<Lane>>): void {
  for (const lane of junction.lanes) stand(lane, among)
  for (const below of childrenOf(junction)) standAll(below, among)
}

function stand(lane: Lane, among: DueHeap<LaneRank<Lane>>): void {
  const standing = { lane, among, due: -lane.queued / lane.weight, place: -1 }
  lane.ranks = withEntry(lane.ranks, standing)
  among.add(standing)
}
