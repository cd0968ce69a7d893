/**
 * Who is next among those that contend for a bucket: deficit round robin over cost (Shreedhar and Varghese, "Efficient
 * Fair Queuing using Deficit Round Robin", SIGCOMM 1995).
 *
 * A contender is in the ring exactly while it could use a slot at once. It has a turn when it comes to the front: it
 * may send as much cost as its deficit allows, then is granted its quantum anew and goes to the back. Two rules suit
 * this to contenders that are paced themselves. One that leaves in the middle of its turn, because its own bucket has
 * to drain, resumes the turn when it returns; else a heavier weight would be worth nothing to it. One that leaves for
 * good takes its deficit with it: idle time is not banked.
 *
 * The quantum follows the costs that wait: the smallest of them, but at least an eighth of the largest. So turns are
 * short, and a release costs O(1) amortised: eight rounds pay for a request of everyone.
 */

import { Fifo, type Linked } from './fifo.js'

const ROUNDS_PER_REQUEST = 8

/** A cost seen this many requests ago hardly counts any more. */
const COST_MEMORY = 256

const TOLERANCE = 1e-9

export interface Contender extends Linked<Contender> {
  readonly weight: number
  /** Cost units it may still send in this turn. */
  deficit: number
  /** The cost of the request it would send next; only asked while it has one. */
  headCost(): number
}

export class Ring {
  readonly #contenders = new Fifo<Contender>()
  #smallest = 0
  #largest = 0
  #leastWeight = Infinity

  get size(): number {
    return this.#contenders.size
  }

  /** Whose turn it is: its deficit covers its head. Asked again without a change, it answers the same. */
  pick(): Contender {
    for (;;) {
      const contender = this.#contenders.first!
      const cost = contender.headCost()
      if (contender.deficit + TOLERANCE >= cost) return contender
      // Still here, so not forgotten.
      this.#largest = Math.max(this.#largest, cost)
      contender.deficit += this.#grant(contender)
      this.#contenders.remove(contender)
      this.#contenders.push(contender)
    }
  }

  /** Lets a contender take part, at the front if it is in the middle of its turn. No effect on one that is in. */
  enter(contender: Contender): void {
    if (contender.list !== undefined) return
    // The weight of a group may have shrunk since it was granted.
    contender.deficit = Math.min(contender.deficit, this.#grant(contender) + this.#largest)
    if (contender.deficit + TOLERANCE >= contender.headCost()) {
      this.#contenders.unshift(contender)
    } else {
      contender.deficit += this.#grant(contender)
      this.#contenders.push(contender)
    }
  }

  /** Takes a contender out. No effect on one that is not in. */
  leave(contender: Contender): void {
    this.#contenders.remove(contender)
  }

  /** Lets the quantum follow the costs and weights of those who wait. */
  learn(cost: number, weight: number): void {
    if (this.#largest === 0) this.#smallest = cost
    this.#smallest = Math.min(cost, this.#smallest + (cost - this.#smallest) / COST_MEMORY)
    this.#largest = Math.max(cost, this.#largest + (cost - this.#largest) / COST_MEMORY)
    this.#leastWeight = Math.min(weight, this.#leastWeight)
  }

  /**
   * The most cost that the others send before a contender has sent `requests` of its requests, `cost` units in all but
   * for the rest of the last.
   */
  longestWait(contender: Contender, others: { count: number; weight: number }, requests: number, cost: number): number {
    if (others.count === 0) return 0
    const alike = this.#smallest === this.#largest
    const rounds = alike ? requests : requests + (cost + this.#largest) / this.#grant(contender)
    return rounds * this.#quantum * others.weight + (alike ? 0 : requests * others.count * this.#largest)
  }

  /** Cost units per turn and weight. */
  get #quantum(): number {
    return Math.max(this.#smallest, this.#largest / ROUNDS_PER_REQUEST) / this.#leastWeight
  }

  #grant(contender: Contender): number {
    return this.#quantum * contender.weight
  }
}
