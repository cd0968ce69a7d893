import type { ProxyContext } from '../context.js'
import type { RequestFacts } from '../http/request.js'
import type { Route } from '../routing/route.js'
import type { AnswerCopy, SharedAnswer } from './answer-copy.js'
import type { Follower, Lead, Leader, WaitingPlace } from './groups.js'
import { identityOf } from './identity.js'
import type { AnswerHeadLines } from './shareable.js'

/** The queue in which a request waits. */
export interface FollowerQueue {
  /** Takes it out, as one of many. False: its turn has come already. */
  leaveQueue(): boolean
}

/** The exchange of a request that may be answered with others. */
export interface CoalescedOwner {
  readonly facts: RequestFacts
  /** Those for the upstream, as they would be sent now. Names and values in turn. */
  forwardedHeaders(): readonly string[]
  /** It has left its queue, and this is its answer. Its client may be gone. */
  takeAnswer(answer: SharedAnswer): void
  /** Its client is gone, or was cut, and nobody else gets its answer. */
  giveUp(): void
}

/**
 * The part of one request in its group: it follows while it waits, and leads once it is sent. A request that is sent again does
 * both more than once.
 */
export class CoalescedRequest implements Follower, Leader {
  /** It has got the answer to another one. */
  isAnswered = false
  /** Of its answer, once the head has come. */
  status = 0
  /** Its client is gone, or was cut. It is sent on for those that wait for its answer. */
  isDeserted = false
  readonly #context: ProxyContext
  readonly #route: Route
  readonly #owner: CoalescedOwner
  /** What requests like it have in common. */
  #identity: string | undefined
  /** The routes when that was found. A reload may change what is sent. */
  #identifiedBy: readonly Route[] | undefined
  #queue: FollowerQueue | undefined
  /** Its place among those like it, while it waits. */
  #place: WaitingPlace | undefined
  /** Set while others wait for its answer. */
  #lead: Lead | undefined

  constructor(context: ProxyContext, route: Route, owner: CoalescedOwner) {
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

  /** It begins to wait. */
  follow(queue: FollowerQueue): void {
    const { coalescing, clock } = this.#context
    this.#queue = queue
    this.#place = coalescing.join(this.#route.lane, this.#identify(), this, clock.now())
  }

  /** Its turn has come. */
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

  /**
   * It is sent. Those like it that wait now wait for its answer, too.
   *
   * @param sentAt ms. An armed one was sent before it is known, and some may have come since
   */
  lead(sentAt = Infinity): void {
    this.#lead?.end()
    this.#lead = this.#context.coalescing.lead(this.#route.lane, this.#identify(), this, sentAt)
  }

  /** The head of its answer has come. @returns what copies the body. Undefined: others do not get it */
  copyOf(head: AnswerHeadLines): AnswerCopy | undefined {
    this.status = head.status
    return this.#lead?.begin(head)
  }

  unfollowed(): void {
    this.#lead = undefined
    if (this.isDeserted) this.#owner.giveUp()
  }

  /** Its client is gone, or was cut. @returns whether others wait for its answer */
  desert(): boolean {
    if (this.#lead === undefined) return false
    this.isDeserted = true
    return true
  }

  /** It is over. */
  end(): void {
    this.#lead?.end()
    this.#lead = undefined
    this.#place?.leave()
  }
}
