/**
 * Which request can leave, and when: the rings of all junctions, kept true as buckets become busy and free, and the
 * timeline of the moments at which they become free.
 *
 * Between two calls every ring is as lane.ts says: it has a lane that has waiters, or a junction whose own ring has
 * someone and whose bucket is free. A bucket that is busy and has waiters is on the timeline, once.
 */

import type { WaitingState } from '../bucket/waiting.js'
import { DueHeap } from '../structures/due-heap.js'
import { closeLane, type Gate, type Lane, type SharedBucket, ShareNode, type Ticket } from './lane.js'

/** Times closer than this, in ms, are one: the rounding of sums of periods. */
export const SAME_TIME = 1e-6

export function isFree(bucket: SharedBucket, now: number): boolean {
  return bucket.freeAt <= now + SAME_TIME
}

export class ReadyLanes {
  readonly #frees = new DueHeap<WaitingState<ShareNode, Lane>>()
  /** Gates before which someone may stand. */
  readonly #ready: Gate[] = []

  /** When the next bucket becomes free, in ms; Infinity: none is waited for. */
  get due(): number {
    return this.#frees.next?.due ?? Infinity
  }

  /** The first waiter of a lane has come. */
  opened(lane: Lane, now: number): void {
    this.#activate(lane, now)
  }

  /** All waiters of a lane have their slots claimed. */
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

  /** Somebody has passed a bucket: who waits for it leaves the rings until it is free. */
  occupied(bucket: SharedBucket): void {
    const { waitingState: outlet } = bucket
    if (outlet === undefined) return
    // On the timeline or not: a slot that was given back is on it before anybody has been let in for it.
    for (const junction of outlet.shareNodes) this.#deactivate(junction)
    this.plan(bucket)
  }

  /** Puts the moment at which a bucket becomes free on the timeline. */
  plan({ waitingState: outlet, freeAt }: SharedBucket): void {
    if (outlet === undefined || outlet.shareNodes.length === 0) return
    if (outlet.place >= 0) {
      this.#frees.move(outlet, freeAt)
    } else {
      outlet.due = freeAt
      this.#frees.add(outlet)
    }
  }

  /** A gate may have opened. */
  gateOpened(gate: Gate): void {
    this.#ready.push(gate)
  }

  /** Lets all buckets that become free at `due` be free; returns that time. */
  free(due: number): number {
    let slot = due
    let outlet = this.#frees.next
    while (outlet !== undefined && outlet.due <= due + SAME_TIME) {
      this.#frees.remove(outlet)
      slot = outlet.due
      for (const junction of outlet.shareNodes) if (junction.ring.size > 0) this.#activate(junction, slot)
      outlet = this.#frees.next
    }
    return slot
  }

  /** Who leaves next, if anybody can: the walk down the rings. Its turn is charged. */
  next(): Ticket | undefined {
    for (let gate = this.#ready.at(-1); gate !== undefined; gate = this.#ready.at(-1)) {
      if (gate.open && gate.awaited) return pick(gate.junction)
      this.#ready.pop()
    }
    return undefined
  }

  /** Lets a contender that can use a slot into the rings, as far up as buckets are free. */
  #activate(contender: Lane | ShareNode, now: number): void {
    for (let at = contender; at.list === undefined; ) {
      const { parent } = at
      if (parent === undefined) {
        this.#ready.push((at as ShareNode).gate)
        return
      }
      parent.ring.enter(at)
      if (parent.bucket !== undefined && !isFree(parent.bucket, now)) {
        this.plan(parent.bucket)
        return
      }
      at = parent
    }
  }

  /** Puts a contender that can no longer use a slot out of the rings, and whoever was there for its sake only. */
  #deactivate(contender: Lane | ShareNode): void {
    for (let at = contender; at.parent !== undefined && at.list !== undefined; at = at.parent) {
      at.parent.ring.leave(at)
      if (at.parent.ring.size > 0) return
    }
  }
}

function pick(root: ShareNode): Ticket {
  let next: Lane | ShareNode = root
  while (next instanceof ShareNode) next = next.ring.pick() as Lane | ShareNode
  const ticket = next.tickets.first!
  for (let at: Lane | ShareNode = next; at.parent !== undefined; at = at.parent) {
    at.deficit -= ticket.cost
    yieldTurn(at.parent)
  }
  return ticket
}

/** Where one bucket has several junctions, as before two gates, they take turns: the last to be let in is picked. */
function yieldTurn(junction: ShareNode): void {
  const outlet = junction.bucket?.waitingState
  if (outlet === undefined || outlet.shareNodes.length < 2) return
  outlet.shareNodes = [junction, ...outlet.shareNodes.filter(other => other !== junction)]
}
