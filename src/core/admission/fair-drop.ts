/**
 * Which requests make room for a newcomer in full buckets: the newest of the classes behind its own, the last class first.
 * Where that is not enough and `overflow` is `fair`, those of the heaviest lane of its own class, if the newcomer has less
 * than its share. A dry run displaces dry runs only: where it would be the turn of another request, it stays rejected.
 *
 * Lanes of a class are compared by the cost that they have queued, divided by their weight, requests that are set aside
 * included. One whose requests all claim slots has none to give and comes last. A bucket keeps the lanes of a class in a heap
 * once it was asked for the heaviest, or for the one with the newest request.
 */
import { slackOf } from '../../decider/costs.js'
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { allSources, Ranking } from '../bucket/waiting.js'
import { DEFAULT_PRIORITY, LAST_PRIORITY } from '../priority.js'
import { type Arrival, costIn, type Lane, reservedFrom, type SharedBucket, type Ticket } from '../queue/lane.js'
import { findLane, lanesBelow } from '../queue/tree.js'
import { NONE, withEntry } from '../structures/compact-list.js'
import { predictedWait, timeToLeave } from './predicted-wait.js'

export function updateRank(lane: Lane): void {
  for (const bucket of lane.stack) {
    for (const among of bucket.extras?.rankings ?? NONE) {
      if (among.priority === lane.priority && !lane.ranks.some(rank => rank.among === among)) rank(lane, among)
    }
  }
  for (const rank of lane.ranks) rank.among.move(rank, rankOf(lane, rank.among))
}

/** The lowest is the first to make room. */
function rankOf(lane: Lane, { by }: Ranking<Lane>): number {
  const newest = newestOf(lane)
  if (newest === undefined) return Infinity
  return by === 'age' ? -newest.arrivedAt : -lane.queued / lane.weight
}

export function dropRank(lane: Lane): void {
  for (const rank of lane.ranks) rank.among.remove(rank)
}

export interface Circumstances {
  /** ms. How long it may wait. */
  readonly maxWait: number
  /** ms. How long its upstream pauses. */
  readonly pause: number
  /** A request that gives up its place in any case. */
  readonly leaving?: Ticket
}

/** The requests that make room for a newcomer in its full buckets. Undefined: it would not be admitted even so. */
export function makeRoom(
  arrival: Arrival,
  full: readonly SharedBucket[],
  { maxWait, pause, leaving }: Circumstances,
  now: number,
): readonly Ticket[] | undefined {
  const victims: Ticket[] = leaving === undefined ? [] : [leaving]
  for (const bucket of full) {
    const cost = costIn(arrival, bucket) + reservedFrom(arrival, bucket, now)
    const excess = bucket.excess(cost, now) - costOf(bucket, victims)
    if (excess <= LEVEL_TOLERANCE) continue
    const behind = findBehind(bucket, arrival, excess, victims)
    victims.push(...behind)
    const rest = excess - costOf(bucket, behind)
    if (rest <= LEVEL_TOLERANCE) continue
    const heavier = bucket.limits.overflow === 'fair' ? findHeavier(bucket, arrival, rest, victims) : undefined
    if (heavier === undefined) return undefined
    victims.push(...heavier)
  }
  const isLate = arrival.stack.some(bucket => {
    const freed = costOf(bucket, victims)
    const slack = slackOf(bucket.limits, costIn(arrival, bucket))
    const queued = bucket.queued - freed - slack
    // A store's level may be lower than what is queued here.
    const level = Math.max(queued, bucket.level(now) - freed - slack)
    return timeToLeave(bucket.limits, { level, now, pause }, queued) > maxWait
  })
  const goes = !isLate || predictedWait(arrival, now, pause) <= maxWait
  return !goes ? undefined : victims.filter(ticket => ticket !== leaving)
}

function costOf(bucket: SharedBucket, tickets: readonly Ticket[]): number {
  return tickets.reduce((sum, ticket) => sum + costIn(ticket, bucket), 0)
}

/** The newest requests of the classes behind a newcomer, up to `excess` cost units or as many as there are. */
function findBehind(bucket: SharedBucket, arrival: Arrival, excess: number, already: readonly Ticket[]): Ticket[] {
  const { priority = DEFAULT_PRIORITY } = arrival
  const victims: Ticket[] = []
  const sources = allSources(bucket).filter(source => source.priority > priority)
  if (sources.length === 0) return victims
  let left = excess
  for (let behind = LAST_PRIORITY; behind > priority && left > LEVEL_TOLERANCE; behind -= 1) {
    if (!sources.some(source => source.priority === behind)) continue
    for (const ticket of displaceable(newestOfAll(ranked(bucket, behind, 'age')), arrival)) {
      if (already.includes(ticket)) continue
      victims.push(ticket)
      left -= costIn(ticket, bucket)
      if (left <= LEVEL_TOLERANCE) break
    }
  }
  return victims
}

/** The newest requests that make room for `excess` cost units. Undefined: the newcomer has its share, or nobody has more. */
function findHeavier(
  bucket: SharedBucket,
  arrival: Arrival,
  excess: number,
  already: readonly Ticket[],
): readonly Ticket[] | undefined {
  if (bucket.waiting === 0) return undefined
  const { cost, weight = 1, priority = DEFAULT_PRIORITY } = arrival
  const lane = findLane(arrival)
  const queued = lane?.queued ?? 0
  let weights = lane === undefined ? weight : 0
  for (const source of allSources(bucket)) if (source.priority === priority) weights += source.weight
  if (queued / weight >= comparable(bucket, bucket.limits.capacity) / weights) return undefined
  const heaviest = ranked(bucket, priority, 'weight').next?.lane
  if (heaviest === undefined) return undefined
  const victims: Ticket[] = []
  let gone = 0
  let freed = 0
  for (const ticket of displaceable(newestFirst(heaviest), arrival)) {
    if ((heaviest.queued - gone) / heaviest.weight <= (queued + cost) / weight + LEVEL_TOLERANCE) return undefined
    gone += ticket.cost
    if (already.includes(ticket)) continue
    victims.push(ticket)
    freed += costIn(ticket, bucket)
    if (freed + LEVEL_TOLERANCE >= excess) return victims
  }
  return undefined
}

/** A cost in a bucket, in the units in which lanes are compared: those of the last bucket of their stacks. */
function comparable(bucket: SharedBucket, cost: number): number {
  if (!bucket.isMixed) return cost
  const queued = allSources(bucket).reduce((sum, source) => sum + source.queued, 0)
  return (cost * queued) / bucket.queued
}

/** As many of these as a newcomer may displace. A dry run changes no answers. */
function* displaceable(tickets: Iterable<Ticket>, { shadow = false }: Arrival): Generator<Ticket> {
  for (const ticket of tickets) {
    if (shadow && !ticket.shadow) return
    yield ticket
  }
}

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

function newestOf({ tickets, aside }: Lane): Ticket | undefined {
  const queued = tickets.last
  const other = aside?.last
  if (queued === undefined || other === undefined) return queued ?? other
  return queued.arrivedAt >= other.arrivedAt ? queued : other
}

function* newestOfAll(ranking: Ranking<Lane>): Generator<Ticket> {
  const begun = new Map<Lane, { next: Ticket | undefined; readonly rest: Iterator<Ticket> }>()
  try {
    for (let rank = ranking.next; rank !== undefined && ranking.nextDue < Infinity; rank = ranking.next) {
      const { lane } = rank
      let lines = begun.get(lane)
      if (lines === undefined) {
        const rest = newestFirst(lane)
        lines = { next: rest.next().value, rest }
        begun.set(lane, lines)
      }
      const ticket = lines.next!
      lines.next = lines.rest.next().value
      ranking.move(rank, lines.next === undefined ? Infinity : -lines.next.arrivedAt)
      yield ticket
    }
  } finally {
    for (const lane of begun.keys()) updateRank(lane)
  }
}

function ranked(bucket: SharedBucket, priority: number, by: Ranking<Lane>['by']): Ranking<Lane> {
  const extras = bucket.openExtras()
  const known = extras.rankings.find(ranking => ranking.priority === priority && ranking.by === by)
  if (known !== undefined) return known
  const ranking = new Ranking<Lane>(priority, by)
  extras.rankings = withEntry(extras.rankings, ranking)
  for (const source of allSources(bucket)) {
    if (source.priority === priority) for (const lane of lanesBelow(source)) rank(lane, ranking)
  }
  return ranking
}

function rank(lane: Lane, among: Ranking<Lane>): void {
  const place = { lane, among, place: -1 }
  lane.ranks = withEntry(lane.ranks, place)
  among.add(place, rankOf(lane, among))
}
