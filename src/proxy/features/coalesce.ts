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

import type { Clock } from '../../core/clock.js'
import type { LaneRoute } from '../../core/queue/lane.js'
import type { ByteBudget } from '../http/byte-budget.js'
import type { RequestFacts } from '../http/request.js'
import type { Route } from '../routing/route.js'
import type { ResponseHead } from '../upstream/response-parser.js'
import { identityOf, isShareable } from './alike.js'
import { AnswerCopy, type CopyOwner, LONGEST_SHARED, type SharedAnswer } from './shared-answer.js'

/** So many get their answer in one turn of the event loop, which takes less than a ms. Releases of others go between. */
const AT_A_TIME = 8

interface Follower {
  /** Takes it out of its queue, which is woken after the last of them. False: its turn has come already. */
  leaveQueue(): boolean
  /** It has left its queue, and this is its answer. Its client may be gone. */
  takeAnswer(answer: SharedAnswer): void
}

interface Leader {
  /** Nobody else waits for its answer any more, or gets it. */
  unfollowed(): void
}

export class Coalescing {
  readonly #budget: ByteBudget
  readonly #wake: () => void
  readonly #routes = new WeakMap<LaneRoute, Map<string, Group>>()

  /** @param budget for the bytes of answers @param wake releases what is possible once requests have left their queues */
  constructor(budget: ByteBudget, wake: () => void) {
    this.#budget = budget
    this.#wake = wake
  }

  hasWaiting(route: LaneRoute): boolean {
    return (this.#routes.get(route)?.size ?? 0) > 0
  }

  /** A request begins to wait. @param now ms */
  join(route: LaneRoute, identity: string, follower: Follower, now: number): WaitingPlace {
    let groups = this.#routes.get(route)
    if (groups === undefined) {
      groups = new Map()
      this.#routes.set(route, groups)
    }
    let group = groups.get(identity)
    if (group === undefined) {
      const all = groups
      group = new Group(this.#budget, this.#wake, () => all.delete(identity))
      groups.set(identity, group)
    }
    return group.join(follower, now)
  }

  lead(route: LaneRoute, identity: string, leader: Leader, sentAt: number): Lead | undefined {
    return this.#routes.get(route)?.get(identity)?.lead(leader, sentAt)
  }
}

class Group {
  readonly budget: ByteBudget
  readonly #waiting = new Set<WaitingPlace>()
  readonly #leads = new Set<Lead>()
  readonly #wake: () => void
  readonly #onEmpty: () => void
  #count = 0

  constructor(budget: ByteBudget, wake: () => void, onEmpty: () => void) {
    this.budget = budget
    this.#wake = wake
    this.#onEmpty = onEmpty
  }

  join(follower: Follower, now: number): WaitingPlace {
    this.#count += 1
    const place = new WaitingPlace(this, follower, this.#count, now)
    this.#waiting.add(place)
    return place
  }

  leave(place: WaitingPlace): void {
    if (this.#waiting.delete(place)) this.#checkLeads()
  }

  lead(leader: Leader, sentAt: number): Lead | undefined {
    const lead = new Lead(this, leader, this.#count, sentAt)
    if (!this.isFollowed(lead)) return undefined
    this.#leads.add(lead)
    return lead
  }

  /** The first has waited longest. */
  isFollowed(lead: Lead): boolean {
    for (const place of this.#waiting) return lead.leads(place)
    return false
  }

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

class WaitingPlace {
  readonly follower: Follower
  readonly number: number
  readonly since: number
  readonly #group: Group

  constructor(group: Group, follower: Follower, number: number, since: number) {
    this.#group = group
    this.follower = follower
    this.number = number
    this.since = since
  }

  leave(): void {
    this.#group.leave(this)
  }
}

class Lead implements CopyOwner {
  readonly #group: Group
  readonly #leader: Leader
  readonly #number: number
  readonly #sentAt: number
  #copy: AnswerCopy | undefined

  constructor(group: Group, leader: Leader, number: number, sentAt: number) {
    this.#group = group
    this.#leader = leader
    this.#number = number
    this.#sentAt = sentAt
  }

  leads({ number, since }: WaitingPlace): boolean {
    return number <= this.#number && since <= this.#sentAt
  }

  /** The head of its answer has come. @returns what is to read the body. Undefined: others do not get it */
  begin(head: ResponseHead): AnswerCopy | undefined {
    if (isShareable(head) && (head.length ?? 0) <= LONGEST_SHARED) {
      this.#copy = new AnswerCopy(head, this.#group.budget, this)
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

  end(): void {
    this.#group.end(this)
    this.#copy?.drop()
  }
}

export type FollowerQueue = Pick<Follower, 'leaveQueue'>

/** The part of the ProxyContext that it needs. */
interface CoalescingContext {
  readonly coalescing: Coalescing
  readonly clock: Pick<Clock, 'now'>
  readonly routes: readonly Route[]
}

export interface CoalescedOwner {
  readonly facts: RequestFacts
  /** Those for the upstream, as they would be sent now. Names and values in turn. */
  forwardedHeaders(): readonly string[]
  takeAnswer(answer: SharedAnswer): void
  /** Its client is gone, or was cut, and nobody else gets its answer. */
  end(why: 'hang-up'): void
}

/** The part of one request in its group: it follows while it waits, and leads once it is sent. It may do both again. */
export class CoalescedRequest implements Follower, Leader {
  isAnswered = false
  status = 0
  /** Its client is gone, or was cut. It is sent on for those that wait for its answer. */
  isDeserted = false
  readonly #context: CoalescingContext
  readonly #route: Route
  readonly #owner: CoalescedOwner
  #identity: string | undefined
  /** The routes when that was found. A reload may change what is sent. */
  #identifiedBy: readonly Route[] | undefined
  #queue: FollowerQueue | undefined
  #place: WaitingPlace | undefined
  #lead: Lead | undefined

  constructor(context: CoalescingContext, route: Route, owner: CoalescedOwner) {
    this.#context = context
    this.#route = route
    this.#owner = owner
  }

  #identify(): string {
    const { routes } = this.#context
    if (this.#identity === undefined || this.#identifiedBy !== routes)
      this.#identity = identityOf(this.#owner.facts.target, this.#owner.forwardedHeaders())
    this.#identifiedBy = routes
    return this.#identity
  }

  follow(queue: FollowerQueue): void {
    const { coalescing, clock } = this.#context
    this.#queue = queue
    this.#place = coalescing.join(this.#route.lane, this.#identify(), this, clock.now())
  }

  followNoMore(): void {
    this.#place?.leave()
  }

  leaveQueue(): boolean {
    return this.#queue!.leaveQueue()
  }

  takeAnswer(answer: SharedAnswer): void {
    this.isAnswered = true
    this.#owner.takeAnswer(answer)
  }

  /** It is sent. Those like it that wait then wait for its answer, too. @param sentAt ms. Of an armed one it is told later */
  lead(sentAt = Infinity): void {
    this.#lead?.end()
    this.#lead = this.#context.coalescing.lead(this.#route.lane, this.#identify(), this, sentAt)
  }

  /** The head of its answer has come. @returns what copies the body. Undefined: others do not get it */
  copyOf(head: ResponseHead): AnswerCopy | undefined {
    this.status = head.status
    return this.#lead?.begin(head)
  }

  unfollowed(): void {
    this.#lead = undefined
    if (this.isDeserted) this.#owner.end('hang-up')
  }

  /** Its client is gone, or was cut. @returns whether others wait for its answer */
  desert(): boolean {
    if (this.#lead === undefined) return false
    this.isDeserted = true
    return true
  }

  end(): void {
    this.#lead?.end()
    this.#lead = undefined
    this.#place?.leave()
  }
}
