/** The tree of lanes and share nodes (lane.ts): finding, opening and closing lanes. */
import { addSource, dropSource, replaceSource, sourceBefore } from '../bucket/waiting.js'
import { DEFAULT_PRIORITY } from '../priority.js'
import { type Arrival, type Gate, Lane, type SharedBucket, ShareNode, type Source } from './lane.js'

/** Of whom a lane is. Requests of one lane have all this in common. */
export type LaneOwner = Pick<Arrival, 'route' | 'stack' | 'priority'>

export function findLane({ route, stack, priority }: LaneOwner): Lane | undefined {
  let node = route.gate.rootOf(priority ?? DEFAULT_PRIORITY)
  for (let at = stack.length - 1; at >= 0; at -= 1) {
    const source = sourceBefore(stack[at]!, node)
    if (source === undefined) return undefined
    if (source instanceof Lane) return at === 0 && source.route === route ? source : undefined
    node = source
  }
  for (let at = node.first; at instanceof Lane && at.bucket === undefined; at = at.after) {
    if (at.route === route) return at
  }
  return undefined
}

/** The lane of an arrival, made when new. It has this weight from now on. */
export function openLane(arrival: Arrival): Lane {
  const { weight = 1 } = arrival
  const lane = findLane(arrival) ?? newLane(arrival)
  if (lane.weight !== weight) addWeight(lane, weight - lane.weight)
  return lane
}

/** Forgets a lane in which nobody waits, and every node on its way that no other lane passes. */
export function closeLane(lane: Lane): void {
  addWeight(lane, -lane.weight)
  detach(lane)
  for (let at: ShareNode | undefined = lane.parent; at?.parent !== undefined && at.count === 0; at = at.parent) {
    detach(at)
  }
}

/** One more request waits in a lane, or one less. `cost` is negative then. */
export function countQueued(lane: Lane, cost: number): void {
  lane.queued += cost
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) {
    at.waiting += Math.sign(cost)
    at.queued = at.waiting === 0 ? 0 : at.queued + cost
  }
}

export function lanesOf(gate: Gate): Lane[] {
  return gate.roots.flatMap(lanesBelow)
}

export function lanesBelow(source: Source): Lane[] {
  return source instanceof Lane ? [source] : sourcesBelow(source).flatMap(lanesBelow)
}

/** What meets at a node: first the lanes without a bucket, the newest first, then the others, the oldest first. */
export function sourcesBelow({ first }: ShareNode): Source[] {
  const found: Source[] = []
  for (let at = first; at !== undefined; at = at.after) found.push(at)
  return found
}

function newLane({ route, stack, priority }: LaneOwner): Lane {
  let node = route.gate.rootOf(priority ?? DEFAULT_PRIORITY)
  for (let at = stack.length - 1; at > 0; at -= 1) node = openNode(stack[at]!, node)
  const bucket = stack[0]
  const isAlone = bucket !== undefined && sourceBefore(bucket, node) === undefined
  const lane =
    bucket === undefined || isAlone
      ? new Lane(route, stack, node, bucket)
      : new Lane(route, stack, openNode(bucket, node))
  attach(lane)
  return lane
}

function addWeight(lane: Lane, difference: number): void {
  lane.weight += difference
  for (let at: ShareNode | undefined = lane.parent; at !== undefined; at = at.parent) at.weight += difference
}

function openNode(bucket: SharedBucket, parent: ShareNode): ShareNode {
  const known = sourceBefore(bucket, parent)
  if (known instanceof ShareNode) return known
  const node = new ShareNode(parent.gate, parent.priority, parent, bucket)
  if (known === undefined) attach(node)
  else takePlace(node, known)
  return node
}

/** Puts a new node where a lane was alone. The lane, with its requests, meets others there from now on. */
function takePlace(node: ShareNode, lane: Lane): void {
  const { parent, bucket, before, after } = lane
  replaceSource(bucket!, lane, node)
  node.before = before
  node.after = after
  if (before === undefined) parent.first = node
  else before.after = node
  if (after === undefined) parent.last = node
  else after.before = node
  parent.fairQueue.replace(lane, node)
  node.weight = lane.weight
  node.queued = lane.queued
  node.waiting = lane.waiting
  lane.bucket = undefined
  lane.parent = node
  lane.deficit = 0
  lane.round = 0
  addFirst(node, lane)
  for (const { cost } of lane.tickets) node.fairQueue.learn(cost, lane.weight)
  if (lane.awaited) node.fairQueue.enter(lane, node.since)
}

function attach(source: Source): void {
  const { bucket } = source
  if (bucket === undefined) return addFirst(source.parent!, source)
  addSource(bucket, source)
  addLast(source.parent!, source)
}

function detach(source: Source): void {
  const { bucket, before, after } = source
  const node = source.parent!
  if (bucket !== undefined) dropSource(bucket, source)
  if (before === undefined) node.first = after
  else before.after = after
  if (after === undefined) node.last = before
  else after.before = before
  node.count -= 1
}

function addFirst(node: ShareNode, source: Source): void {
  const { first } = node
  source.before = undefined
  source.after = first
  if (first === undefined) node.last = source
  else first.before = source
  node.first = source
  node.count += 1
}

export function addLast(node: ShareNode, source: Source): void {
  const { last } = node
  source.before = last
  if (last === undefined) node.first = source
  else last.after = source
  node.last = source
  node.count += 1
}
