/**
 * Alike requests that wait at the same time, of which one is sent and answers all.
 *
 * Each of them has been admitted by its own buckets and waits in its own queue, as without the others. The one whose turn comes
 * first is sent, and leads those that wait then. They stay where they are until its answer is here, whole, and may be shared. Then they
 * leave their queues as if their clients had hung up, and get it. So whatever becomes of the leader, nobody loses its place: if it fails, or
 * is slow, or its answer is for its own client, the next one is sent when its turn comes, and leads the rest.
 *
 * A leader answers nobody who came after it was sent. So no answer is older than the request that gets it.
 */
import type { LaneRoute } from '../../core/queue/lane.js'
import type { ByteBudget } from '../http/connection/byte-budget.js'
import { AnswerCopy, type CopyOwner, LONGEST_SHARED, type SharedAnswer } from './answer-copy.js'
import { type AnswerHeadLines, isShareable } from './shareable.js'

/** So many get their answer in one turn of the event loop, which takes less than a ms. Releases of others go between. */
const AT_A_TIME = 8

/** A request that waits in its queue. */
export interface Follower {
  /** Takes it out of its queue, which is woken after the last of them. False: its turn has come already. */
  leaveQueue(): boolean
  /** It has left its queue, and this is its answer. Its client may be gone. */
  takeAnswer(answer: SharedAnswer): void
}

/** A request that has been sent. */
export interface Leader {
  /** Nobody else waits for its answer any more, or gets it. */
  unfollowed(): void
}

/** The groups of all routes of a proxy. */
export class Coalescing {
  readonly #budget: ByteBudget
  readonly #wake: () => void
  readonly #routes = new WeakMap<LaneRoute, Map<string, Group>>()

  /**
   * @param budget the bytes of answers count in it
   * @param wake releases what is possible once requests have left their queues
   */
  constructor(budget: ByteBudget, wake: () => void) {
    this.#budget = budget
    this.#wake = wake
  }

  /** Whether requests wait on this route. */
  hasWaiting(route: LaneRoute): boolean {
    return (this.#routes.get(route)?.size ?? 0) > 0
  }

  /**
   * A request begins to wait.
   *
   * @param now ms
   */
  join(route: LaneRoute, identity: string, follower: Follower, now: number): WaitingPlace {
    let groups = this.#routes.get(route)
    if (groups === undefined) {
      groups = new Map()
      this.#routes.set(route, groups)
    }
    let group = groups.get(identity)
    if (group === undefined) {
      const all = groups
      group = new Group(this.#wake, () => all.delete(identity))
      groups.set(identity, group)
    }
    return group.join(follower, now)
  }

  /**
   * A request is sent.
   *
   * @param sentAt ms
   * @returns undefined if none like it waits
   */
  lead(route: LaneRoute, identity: string, leader: Leader, sentAt: number): Lead | undefined {
    return this.#routes.get(route)?.get(identity)?.lead(leader, sentAt, this.#budget)
  }
}

/** Alike requests that wait, and those that were sent while they did. */
class Group {
  /** In the order in which they came. */
  readonly #waiting = new Set<WaitingPlace>()
  readonly #leads = new Set<Lead>()
  readonly #wake: () => void
  readonly #onEmpty: () => void
  /** How many have come. */
  #count = 0

  constructor(wake: () => void, onEmpty: () => void) {
    this.#wake = wake
    this.#onEmpty = onEmpty
  }

  join(follower: Follower, now: number): WaitingPlace {
    this.#count += 1
    const place = new WaitingPlace(this, follower, { number: this.#count, since: now })
    this.#waiting.add(place)
    return place
  }

  leave(place: WaitingPlace): void {
    if (this.#waiting.delete(place)) this.#checkLeads()
  }

  lead(leader: Leader, sentAt: number, budget: ByteBudget): Lead | undefined {
    const lead = new Lead(this, leader, { number: this.#count, sentAt, budget })
    if (!this.isFollowed(lead)) return undefined
    this.#leads.add(lead)
    return lead
  }

  /** The first has waited longest. */
  isFollowed(lead: Lead): boolean {
    for (const place of this.#waiting) return lead.leads(place)
    return false
  }

  /** It is over. */
  end(lead: Lead): void {
    this.#leads.delete(lead)
  }

  share(lead: Lead, answer: SharedAnswer): void {
    const followers: WaitingPlace[] = []
    for (const place of this.#waiting) {
      if (!lead.leads(place)) break
      followers.push(place)
    }
    // The last first: then none of them becomes the first of its lane meanwhile.
    const free = followers
      .reverse()
      .filter(({ follower }) => follower.leaveQueue())
      .reverse()
    for (const place of free) this.#waiting.delete(place)
    answer.hold()
    handOut(answer, free, 0)
    this.#checkLeads()
    this.#wake()
  }

  #checkLeads(): void {
    const unfollowed = [...this.#leads].filter(lead => !this.isFollowed(lead))
    for (const lead of unfollowed) this.#leads.delete(lead)
    if (this.#waiting.size === 0) this.#onEmpty()
    for (const lead of unfollowed) lead.unfollowed()
  }
}

/** Gives an answer to some of those from this one on, and to the next ones later. */
function handOut(answer: SharedAnswer, places: readonly WaitingPlace[], from: number): void {
  const to = Math.min(places.length, from + AT_A_TIME)
  for (let at = from; at < to; at += 1) places[at]!.follower.takeAnswer(answer)
  if (to < places.length) setImmediate(handOut, answer, places, to)
  else answer.drop()
}

/** The place of a request in its group while it waits. */
export class WaitingPlace {
  readonly follower: Follower
  readonly number: number
  /** ms */
  readonly since: number
  readonly #group: Group

  constructor(
    group: Group,
    follower: Follower,
    { number, since }: { readonly number: number; readonly since: number },
  ) {
    this.#group = group
    this.follower = follower
    this.number = number
    this.since = since
  }

  /** It waits no longer. */
  leave(): void {
    this.#group.leave(this)
  }
}

/** A request that has been sent while others like it waited. */
export class Lead implements CopyOwner {
  readonly #group: Group
  readonly #leader: Leader
  readonly #number: number
  readonly #sentAt: number
  readonly #budget: ByteBudget
  #copy: AnswerCopy | undefined

  constructor(
    group: Group,
    leader: Leader,
    facts: { readonly number: number; readonly sentAt: number; readonly budget: ByteBudget },
  ) {
    this.#group = group
    this.#leader = leader
    this.#number = facts.number
    this.#sentAt = facts.sentAt
    this.#budget = facts.budget
  }

  /** Whether a request waited when this one was sent. */
  leads({ number, since }: WaitingPlace): boolean {
    return number <= this.#number && since <= this.#sentAt
  }

  /** The head of its answer has come. @returns what is to read the body. Undefined: others do not get it */
  begin(head: AnswerHeadLines): AnswerCopy | undefined {
    if (isShareable(head) && (head.length ?? 0) <= LONGEST_SHARED) {
      this.#copy = new AnswerCopy(head, this.#budget, this)
      return this.#copy
    }
    this.unshared()
    return undefined
  }

  whole(answer: SharedAnswer): void {
    this.#group.end(this)
    this.#group.share(this, answer)
  }

  unshared(): void {
    this.end()
    this.#leader.unfollowed()
  }

  unfollowed(): void {
    this.#copy?.drop()
    this.#leader.unfollowed()
  }

  /** There will be no answer, or none for others. */
  end(): void {
    this.#group.end(this)
    this.#copy?.drop()
  }
}
