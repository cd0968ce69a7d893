/**
 * Which request can leave, and when. It keeps the fair queues of all share nodes true as buckets become busy and free, and
 * a heap of the moments at which they become free.
 *
 * Between two calls every fair queue is as lane.ts says: it has the lanes with waiters, and the nodes whose own queue has
 * someone and whose bucket is free. A bucket that is busy and has waiters is in the heap, once.
 */

import type { WaitingState } from '../bucket/waiting.js'
import { DueHeap } from '../structures/due-heap.js'
import { closeLane, type Gate, type Lane, type SharedBucket, ShareNode, type Ticket } from './lane.js'

/** ms. Times closer than this are one: the rounding of sums of periods. */
export const SAME_TIME = 1e-6

export function isFree(bucket: SharedBucket, now: number): boolean {
  return bucket.freeAt <= now + SAME_TIME
}

export class ReadyLanes {
  readonly #frees = new DueHeap<WaitingState<ShareNode, Lane>>()
  /** Gates before which a request may be ready. */
  readonly #ready: Gate[] = []

  /** When the next bucket becomes free, in ms. Infinity: none is waited for. */
  get due(): number {
    return this.#frees.next?.due ?? Infinity
  }

  /** The first waiter of a lane has come. */
  opened(lane: Lane, now: number): void {
    this.#activate(lane, now)
  }

  /** All waiters of a lane are claiming slots. */
  rest(lane: Lane): void {
    this.#deactivate(lane)
  }

  /** The last waiter of a lane has left. */
  closed(lane: Lane): void {
    this.#deactivate(lane)
    closeLane(lane)
    for (const bucket of lane.stack) {
      if (bucket.waitingState === undefined || bucket.waitingState.shareNodes.length > 0) continue
      this.#frees.remove(bucket.waitingState)
      bucket.closeWaitingState()
    }
  }

  /** A request has passed a bucket. The nodes that wait for it leave the queues until it is free. */
  occupied(bucket: SharedBucket): void {
    const { waitingState } = bucket
    if (waitingState === undefined) return
    // Also when the bucket is in the heap: a slot that was given back is in it before any node has entered for it.
    for (const node of waitingState.shareNodes) this.#deactivate(node)
    this.plan(bucket)
  }

  /** Puts the moment at which a bucket becomes free into the heap. */
  plan({ waitingState, freeAt }: SharedBucket): void {
    if (waitingState === undefined || waitingState.shareNodes.length === 0) return
    if (waitingState.place >= 0) {
      this.#frees.move(waitingState, freeAt)
    } else {
      waitingState.due = freeAt
      this.#frees.add(waitingState)
    }
  }

  /** A gate may have opened. */
  gateOpened(gate: Gate): void {
    this.#ready.push(gate)
  }

  /** Lets all buckets that become free at `due` be free. Returns that time. */
  free(due: number): number {
    let slot = due
    let waitingState = this.#frees.next
    while (waitingState !== undefined && waitingState.due <= due + SAME_TIME) {
      this.#frees.remove(waitingState)
      slot = waitingState.due
      for (const node of waitingState.shareNodes) if (node.fairQueue.size > 0) this.#activate(node, slot)
      waitingState = this.#frees.next
    }
    return slot
  }

  /** Takes the request that leaves next, if any can: the walk down the queues. Its turn is charged. */
  next(): Ticket | undefined {
    for (let gate = this.#ready.at(-1); gate !== undefined; gate = this.#ready.at(-1)) {
      if (gate.open && gate.awaited) return take(gate.root)
      this.#ready.pop()
    }
    return undefined
  }

  /** Lets a contender that can use a slot into the queues, as far up as buckets are free. */
  #activate(contender: Lane | ShareNode, now: number): void {
    for (let at = contender; at.list === undefined; ) {
      const { parent } = at
      if (parent === undefined) {
        this.#ready.push((at as ShareNode).gate)
        return
      }
      parent.fairQueue.enter(at)
      if (parent.bucket !== undefined && !isFree(parent.bucket, now)) {
        this.plan(parent.bucket)
        return
      }
      at = parent
    }
  }

  /** Takes a contender that can no longer use a slot out of the queues, and each node that was there for it only. */
  #deactivate(contender: Lane | ShareNode): void {
    for (let at = contender; at.parent !== undefined && at.list !== undefined; at = at.parent) {
      at.parent.fairQueue.leave(at)
      if (at.parent.fairQueue.size > 0) return
    }
  }
}

function take(root: ShareNode): Ticket {
  let next: Lane | ShareNode = root
  while (next instanceof ShareNode) next = next.fairQueue.advance() as Lane | ShareNode
  const ticket = next.tickets.first!
  for (let at: Lane | ShareNode = next; at.parent !== undefined; at = at.parent) {
    at.deficit -= ticket.cost
    yieldTurn(at.parent)
  }
  return ticket
}

/** A bucket with several nodes, as before two gates, lets them take turns: the last to be let in is picked. */
function yieldTurn(node: ShareNode): void {
  const waitingState = node.bucket?.waitingState
  if (waitingState === undefined || waitingState.shareNodes.length < 2) return
  waitingState.shareNodes = [node, ...waitingState.shareNodes.filter(other => other !== node)]
}
