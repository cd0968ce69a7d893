/**
 * Whether the client of a request will still be there for its answer: by the time that it has named, by its route's
 * `patience`, or by what is learnt of clients (core/patience).
 */
import { timeUntilFit } from '../../core/admission/decide.js'
import { predictedWait } from '../../core/admission/predicted-wait.js'
import { ONE_IN } from '../../core/patience/patience.js'
import type { Arrival } from '../../core/shaper.js'
import type { RequestFacts } from '../http/request.js'
import type { Outlook } from '../observe/observer.js'
import type { Expectation } from '../routing/explain-header.js'
import type { Route } from '../routing/route.js'

/** So many requests may wait where the wait of a newcomer is told exactly. Looking ahead of them takes a fraction of a ms. */
const LOOKED_AHEAD = 200

export class Prospects {
  readonly #route: Route
  readonly #client: string
  /** ms. How long its client waits for the answer. Undefined: that is learnt. */
  readonly #deadline: number | undefined
  /** It would have been sent away, and waits on to see whether its client does. */
  #trial: 'none' | 'waits' | 'proven' = 'none'
  /** It is sent to see how long answers take now. */
  #isSentToLook = false

  /** @param deadline ms since its arrival. Undefined: that is learnt */
  constructor(route: Route, client: string, deadline: number | undefined) {
    this.#route = route
    this.#client = client
    this.#deadline = deadline
  }

  /** ms from its release to the head of its answer, as far as is known. */
  get serviceTime(): number {
    return this.#route.waits.service.of(this.#client)
  }

  /** What is known of its client and of its answer. @param waited ms */
  outlook(waited: number, now: number): Outlook {
    const { serviceTime: service } = this
    if (this.#deadline !== undefined) return { patience: this.#deadline, source: 'known', service }
    return { patience: this.#route.waits.patience.longest(this.#client, now, waited), source: 'learnt', service }
  }

  /** ms. After a longer wait for its release most of its like have left before the answer. */
  longestWait(now: number): number {
    const { patience } = this.#route.waits
    const longest = this.#deadline ?? patience.longest(this.#client, now)
    return longest === Infinity ? longest : longest - this.serviceTime
  }

  /** ms. Its client has said that it has no use for an answer to a later release. Infinity: it has not. */
  get knownWait(): number {
    return this.#deadline === undefined || this.#isSentToLook ? Infinity : this.#deadline - this.serviceTime
  }

  /** @param waited ms */
  isLost(waited: number, now: number): boolean {
    if (this.#isSentToLook || this.#trial === 'proven') return false
    if (this.#deadline !== undefined) return waited + this.serviceTime > this.#deadline
    const { patience } = this.#route.waits
    return patience.isLost(this.#client, waited, () => waited + this.serviceTime, now)
  }

  /**
   * It is to be sent away. True: it is sent all the same, because answers alone take longer than its client waits and there was
   * none for a while.
   */
  sendToLook(now: number): boolean {
    this.#isSentToLook = this.longestWait(now) < 0 && this.#route.waits.service.look(now)
    return this.#isSentToLook
  }

  /** It is to be sent away. After `trial` it waits on. */
  sendAway(waited: number, now: number): 'lost' | 'trial' {
    if (this.#deadline !== undefined) return 'lost'
    if (this.#trial === 'waits' || this.#route.waits.patience.sendAway(this.#client, waited, now) === 'trial') {
      this.#trial = 'waits'
      return 'trial'
    }
    return 'lost'
  }

  /** How long a trial waits before it is sent, in ms since its arrival. */
  trialUntil(waited: number): number {
    return this.#route.waits.patience.trialUntil(waited + this.serviceTime)
  }

  /** Its client has waited on. */
  proven(): void {
    this.#trial = 'proven'
  }

  /** Its client has left before an answer. */
  left(waited: number, now: number): void {
    if (this.#deadline === undefined) this.#route.waits.patience.left(this.#client, waited, now, this.#weight)
  }

  /**
   * The head of its answer has come.
   *
   * @param service ms since its release
   * @returns whether answers take longer now, so that requests like it are lost earlier
   */
  answered(waited: number, service: number, now: number): boolean {
    const { patience, service: times } = this.#route.waits
    if (this.#isSentToLook && service <= (this.#deadline ?? patience.longest(this.#client, now))) times.forget()
    times.add(this.#client, service, now)
    if (this.#deadline !== undefined) return times.hasGrown()
    patience.answered(this.#client, waited, now, this.#weight)
    return false
  }

  /** It has got the answer to another request. That tells nothing of how long answers take. */
  answeredByAnother(waited: number, now: number): void {
    const { patience } = this.#route.waits
    if (this.#deadline === undefined) patience.answered(this.#client, waited, now, this.#weight)
  }

  /** ms until a request like this one would be admitted if nobody else came. */
  retryAfter(arrival: Arrival, now: number): number {
    const { gate } = this.#route.lane
    const fit = timeUntilFit(arrival, Math.max(0, this.longestWait(now)), now, gate.pausedFor(now))
    return Math.max(fit, this.untilLook(now))
  }

  /** ms until a request may be sent to look. 0: none is needed, or one may be sent now. */
  untilLook(now: number): number {
    return this.longestWait(now) < 0 ? this.#route.waits.service.untilLook(now) : 0
  }

  get #weight(): number {
    return this.#trial === 'none' ? 1 : ONE_IN
  }
}

/** A request that may wait. */
interface WaitingRequest {
  readonly facts: RequestFacts
  readonly client: string
}

/** Undefined: a request on this route is not given up for its client's patience. */
export function prospectsOf(
  { facts, client }: WaitingRequest,
  route: Route,
  isTrusted: () => boolean,
): Prospects | undefined {
  const { mode, patience, dryRun } = route.settings
  if (mode !== 'shape' || patience === 'none') return undefined
  const deadline = deadlineOf(facts, patience, isTrusted)
  // Nobody waits in a dry run, so nothing is learnt.
  return dryRun && deadline === undefined ? undefined : new Prospects(route, client, deadline)
}

/** How long the client of a request waits for its answer, in ms. Undefined: nobody has said so. */
function deadlineOf(
  { preferWait, grpcTimeout, expectedTimeout }: RequestFacts,
  patience: Route['settings']['patience'],
  isTrusted: () => boolean,
): number | undefined {
  let deadline = Infinity
  if (preferWait !== undefined) deadline = Math.min(deadline, preferWait * 1_000)
  if (grpcTimeout !== undefined) deadline = Math.min(deadline, grpcTimeout)
  if (expectedTimeout !== undefined && isTrusted()) deadline = Math.min(deadline, expectedTimeout)
  if (deadline < Infinity) return deadline
  return typeof patience === 'number' ? patience : undefined
}

/** What is expected of a request. Undefined: it does not wait. */
export function expectationOf(
  { settings, lane }: Route,
  arrival: Arrival,
  prospects: Prospects | undefined,
  now: number,
): Expectation | undefined {
  if (settings.mode !== 'shape') return undefined
  return {
    predicted: Math.max(0, predictedWait(arrival, now, lane.gate.pausedFor(now), LOOKED_AHEAD)),
    outlook: prospects?.outlook(0, now),
  }
}
