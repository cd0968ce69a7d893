/**
 * Which lane of a shared bucket is the heaviest, and who has to leave for a newcomer with less than its share.
 *
 * Lanes are compared by what they have queued, divided by their weight. The comparison is kept in a heap only for
 * buckets that were ever asked for it (`overflow: "fair"`).
 */

import { childrenOf } from './children.js'
import { withEntry } from './few.js'
import { type Arrival, findLane, type Junction, type Lane, type SharedBucket, type Ticket } from './lane.js'
import type { Standing } from './outlet.js'
import { Timeline } from './timeline.js'

const TOLERANCE = 1e-9

/** Brings a lane's standing up to date after its queue has changed. */
export function updateStanding(lane: Lane): void {
  for (const bucket of lane.stack) {
    const among = bucket.outlet?.heaviest
    if (among !== undefined && !lane.standings.some(standing => standing.among === among)) stand(lane, among)
  }
  for (const standing of lane.standings) standing.among.move(standing, -lane.queued / lane.weight)
}

/** A lane is no more. */
export function dropStanding(lane: Lane): void {
  for (const standing of lane.standings) standing.among.remove(standing)
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
  if (bucket.outlet === undefined || bucket.waiting === 0) return undefined
  const lane = findLane(...newcomer)
  const queued = lane?.queued ?? 0
  let weights = lane === undefined ? weight : 0
  for (const junction of bucket.outlet.junctions) weights += junction.weight
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

function ranked(bucket: SharedBucket): Timeline<Standing<Lane>> {
  const outlet = bucket.outlet!
  if (outlet.heaviest === undefined) {
    outlet.heaviest = new Timeline()
    for (const junction of outlet.junctions) standAll(junction, outlet.heaviest)
  }
  return outlet.heaviest
}

function standAll(junction: Junction, among: Timeline<Standing<Lane>>): void {
  for (const lane of junction.lanes) stand(lane, among)
  for (const below of childrenOf(junction)) standAll(below, among)
}

function stand(lane: Lane, among: Timeline<Standing<Lane>>): void {
  const standing = { lane, among, due: -lane.queued / lane.weight, place: -1 }
  lane.standings = withEntry(lane.standings, standing)
  among.add(standing)
}
