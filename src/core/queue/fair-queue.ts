/**
 * Whose turn it is among those that contend for a bucket: deficit round robin over cost (Shreedhar and Varghese, "Efficient
 * Fair Queuing using Deficit Round Robin", SIGCOMM 1995). docs/decisions/fair-queueing.md says why.
 *
 * A contender is in the queue exactly while it could use a slot at once. Those that have had their turn in this round wait in a
 * second part of the list. At the front a contender may send as much cost as its deficit allows, then it gets its quantum and
 * goes to the back. Two rules suit this to contenders that are paced themselves. One that leaves in the middle of its turn,
 * because its own bucket has to drain, resumes the turn when it returns: else a heavier weight would be worth nothing. One that
 * leaves for good takes its deficit with it: idle time is not banked.
 *
 * A contender whose own bucket let it pass late (bucket/queued-bucket.ts) lines up by the moment at which it was ready. If it
 * has had its turn in this round, that is a turn more: it takes one only of those that nobody used while the queue was empty.
 * At 90 % use a client gets 99.4 % of its own rate so, and 98.9 % without (docs/decisions/forfeit.md).
 *
 * The quantum is the smallest of the costs that wait, but at least an eighth of the largest. So turns are short, and a release
 * costs O(1) amortised: eight rounds pay for a request of everyone.
 */
import { LEVEL_TOLERANCE } from '../bucket/meter.js'
import { type Linked, LinkedList } from '../structures/linked-list.js'

const ROUNDS_PER_REQUEST = 8
/** So many turns that nobody used are kept for a contender. */
const MOST_UNUSED = 16
/** A contender that was ready before goes before so many others at the most. */
const MOST_OVERTAKEN = 64
/** A cost or weight seen this many requests ago hardly counts any more. */
const COST_MEMORY = 256

export interface Contender extends Linked<Contender> {
  readonly weight: number
  /** Cost units that it may still send in this turn. */
  deficit: number
  round: number
  /** When it was ready to take part, in ms. */
  since: number
  /** How much of the cost that nobody used it may not use: it came later, or has used it. */
  unused: number
  /** Goes on to its next request and returns the cost; without a change in between the same. Only while it has one. */
  advance(): number
}

interface LateContender {
  /** Where it waits already, or its like. Undefined: nowhere. */
  readonly contender: Contender | undefined
  readonly weight: number
  readonly cost: number
  /** Cost units that the contender sends before. */
  readonly ahead: number
}

/** What a contender may send: `quantum` cost units per turn and weight. */
export interface TurnsBefore {
  readonly quantum: number
  readonly turns: number
  readonly largest: number
  readonly alike: boolean
}

export class FairQueue {
  /** Those that still have their turn in this round, then those of the next. */
  readonly #contenders = new LinkedList<Contender>()
  /** The first of the next round. Undefined: there is none. */
  #later: Contender | undefined = undefined
  #round = 1
  #smallest = 0
  #largest = 0
  #leastWeight = Infinity
  /** The least weight noticed in `learn` and in turns since `#leastWeight` was set. */
  #leastLately = Infinity
  #learned = 0
  #noticed = 0
  /** Cost that could have left while the queue was empty. */
  #unused = 0
  #countedUntil = -Infinity

  get size(): number {
    return this.#contenders.size
  }

  /** Goes on to the contender whose turn it is. Without a change in between it is the same one. */
  advance(): Contender {
    for (;;) {
      const contender = this.#contenders.first!
      if (contender === this.#later) {
        this.#later = undefined
        this.#round += 1
      }
      const cost = contender.advance()
      if (contender.deficit + LEVEL_TOLERANCE >= cost) {
        contender.round = this.#round
        return contender
      }
      // Still here, so not forgotten.
      this.#largest = Math.max(this.#largest, cost)
      this.#notice(contender.weight)
      contender.deficit += this.#grant(contender)
      this.leave(contender)
      contender.round = this.#round
      // Behind all that are here.
      contender.since = this.#contenders.last?.since ?? contender.since
      this.#pushLater(contender)
    }
  }

  #pushLater(contender: Contender): void {
    this.#contenders.push(contender)
    this.#later ??= contender
  }

  /** A contender takes part from now on, and was ready at `since` in ms: it goes before those that were ready later. */
  enter(contender: Contender, since: number): void {
    if (contender.list !== undefined) return
    contender.since = since
    this.#notice(contender.weight)
    const grant = this.#grant(contender)
    // The weight of a group may have shrunk since it was granted.
    contender.deficit = Math.min(contender.deficit, grant + this.#largest)
    if (contender.deficit + LEVEL_TOLERANCE >= contender.advance()) {
      this.#contenders.unshift(contender)
    } else {
      contender.deficit += grant
      this.#lineUp(contender)
    }
  }

  /** The queue was empty while cost could have left, between these moments in ms. @param rate cost units per ms */
  idled(from: number, now: number, rate: number): void {
    this.#unused += Math.max(0, now - Math.max(from, this.#countedUntil)) * rate
    this.#countedUntil = now
  }

  /** A turn of this round that it missed because its own bucket had to drain is still its own. A newcomer waits for the next round. */
  #lineUp(contender: Contender): void {
    const isNew = contender.round === 0
    const before = isNew ? undefined : this.#firstSince(contender.since)
    contender.unused = isNew ? this.#unused : Math.max(contender.unused, this.#unused - MOST_UNUSED * this.#largest)
    if (!isNew && contender.round < this.#round) {
      const isBefore = before !== undefined && before.since < (this.#later?.since ?? Infinity)
      this.#insert(contender, isBefore ? before : this.#later)
    } else if (before !== undefined && this.#unused - contender.unused >= this.#largest) {
      contender.unused += this.#largest
      if (before === this.#later) this.#later = contender
      this.#insert(contender, before)
    } else this.#pushLater(contender)
  }

  #insert(contender: Contender, before: Contender | undefined): void {
    if (before === undefined) this.#contenders.push(contender)
    else this.#contenders.insert(contender, before)
  }

  /** The first of the last contenders that were not ready before. Undefined: there is none. */
  #firstSince(since: number): Contender | undefined {
    let found: Contender | undefined
    let at = this.#contenders.last
    for (let steps = 0; at !== undefined && at.since > since && steps < MOST_OVERTAKEN; steps += 1) {
      found = at
      at = at.previous
    }
    return found
  }

  /** Takes a contender out. No effect on one that is not in. */
  leave(contender: Contender): void {
    const { next } = contender
    if (this.#contenders.remove(contender) && contender === this.#later) this.#later = next
  }

  /** Puts a contender that is not in yet where another one is or would be. */
  replace(contender: Contender, by: Contender): void {
    by.since = contender.since
    by.unused = contender.unused
    by.deficit = contender.deficit
    by.round = contender.round
    if (contender.list === undefined) return
    this.#contenders.insert(by, contender)
    if (this.#later === contender) this.#later = by
    this.#contenders.remove(contender)
  }

  /** Becomes as another queue is now. `copyOf` maps its contenders. Undefined: that one is left out. */
  copyFrom(other: FairQueue, copyOf: (contender: Contender) => Contender | undefined): void {
    this.#round = other.#round
    this.#smallest = other.#smallest
    this.#largest = other.#largest
    this.#leastWeight = other.#leastWeight
    this.#leastLately = other.#leastLately
    this.#learned = other.#learned
    this.#noticed = other.#noticed
    this.#unused = other.#unused
    this.#countedUntil = other.#countedUntil
    let isLater = false
    for (const contender of other.#contenders) {
      isLater ||= contender === other.#later
      const copy = copyOf(contender)
      if (copy === undefined) continue
      this.#contenders.push(copy)
      if (isLater) this.#later ??= copy
    }
  }

  /** Lets the quantum follow the costs and weights of the requests that wait. */
  learn(cost: number, weight: number): void {
    if (this.#largest === 0) this.#smallest = cost
    this.#smallest = Math.min(cost, this.#smallest + (cost - this.#smallest) / COST_MEMORY)
    this.#largest = Math.max(cost, this.#largest + (cost - this.#largest) / COST_MEMORY)
    this.#notice(weight)
    this.#learned += 1
    if (this.#learned < COST_MEMORY || this.#noticed < this.#learned + 2 * this.size) return
    // In one step, once all have had turns: a quantum that drifts would give one lane more than another in a round.
    this.#leastWeight = this.#leastLately
    this.#leastLately = Infinity
    this.#learned = 0
    this.#noticed = 0
  }

  /** Upper bound of what others send before a contender has sent `requests`, of `cost` units without the rest of the last. */
  longestWait(contender: Contender, others: { count: number; weight: number }, requests: number, cost: number): number {
    if (others.count === 0) return 0
    const alike = this.#smallest === this.#largest
    const rounds = alike ? requests : requests + (cost + this.#largest) / this.#grant(contender)
    return rounds * this.#quantum * others.weight + (alike ? 0 : requests * others.count * this.#largest)
  }

  /** What others may send before a newcomer has had its turns. */
  turnsBefore({ contender, weight, cost, ahead }: LateContender): TurnsBefore {
    const largest = Math.max(cost, this.#largest)
    const smallest = this.#largest === 0 ? cost : Math.min(cost, this.#smallest)
    const quantum = Math.max(smallest, largest / ROUNDS_PER_REQUEST) / Math.min(weight, this.#leastWeight)
    const rest = Math.ceil((ahead + cost - (contender?.deficit ?? 0) - LEVEL_TOLERANCE) / (quantum * weight))
    // Those in the queue have been granted already what they send in their next turn.
    const turns = contender?.list === undefined ? Math.max(1, rest) : 1 + Math.max(0, rest)
    return { quantum, turns, largest, alike: smallest === largest }
  }

  /** The most cost units that each contender in the queue sends before the newcomer. */
  allowances(contender: Contender | undefined, turns: TurnsBefore): Map<Contender, number> {
    const allowances = new Map<Contender, number>()
    let left = turns.turns
    for (const other of this.#contenders) {
      if (other === contender) left -= 1
      else allowances.set(other, left === 0 ? 0 : sentIn(left - 1, other, turns))
    }
    return allowances
  }

  #notice(weight: number): void {
    this.#leastWeight = Math.min(weight, this.#leastWeight)
    this.#leastLately = Math.min(weight, this.#leastLately)
    this.#noticed += 1
  }

  get #quantum(): number {
    return Math.max(this.#smallest, this.#largest / ROUNDS_PER_REQUEST) / this.#leastWeight
  }

  #grant(contender: Contender): number {
    return this.#quantum * contender.weight
  }
}

/** The most cost units that a contender sends with its deficit and so many grants. */
export function sentIn(
  grants: number,
  { deficit, weight }: Pick<Contender, 'deficit' | 'weight'>,
  { quantum, alike, largest }: TurnsBefore,
): number {
  const allowed = deficit + grants * quantum * weight
  return alike ? Math.floor(allowed / largest + LEVEL_TOLERANCE) * largest : allowed
}
