/**
 * Whether the client of a request will still be there for its answer: by the time that it has named, by its route's
 * `patience`, or by what is learnt of clients (core/patience).
 */

import { timeUntilFit } from '../../core/admission/decide.js'
import { predictedWait } from '../../core/admission/predicted-wait.js'
import { ONE_IN } from '../../core/patience/patience.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { costAt } from '../../core/queue/lane.js'
import { findLane } from '../../core/queue/tree.js'
import type { Arrival } from '../../core/shaper.js'
import { slackOf } from '../../decider/costs.js'
import type { ClientRequest } from '../http/client.js'
import type { RequestFacts } from '../http/request.js'
import type { GivenUp, Outlook } from '../observe/observer.js'
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

  constructor(route: Route, client: string, deadline: number | undefined) {
    this.#route = route
    this.#client = client
    this.#deadline = deadline
  }

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

  isLost(waited: number, now: number): boolean {
    if (this.#isSentToLook || this.#trial === 'proven') return false
    if (this.#deadline !== undefined) return waited + this.serviceTime > this.#deadline
    const { patience } = this.#route.waits
    return patience.isLost(this.#client, waited, () => waited + this.serviceTime, now)
  }

  /** True: it is sent although it is lost, to see how long answers take now. There was none for a while. */
  sendToLook(now: number): boolean {
    this.#isSentToLook = this.longestWait(now) < 0 && this.#route.waits.service.look(now)
    return this.#isSentToLook
  }

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

  proven(): void {
    this.#trial = 'proven'
  }

  left(waited: number, now: number): void {
    if (this.#deadline === undefined) this.#route.waits.patience.left(this.#client, waited, now, this.#weight)
  }

  /** The head of its answer has come, `service` ms after its release. @returns whether answers take longer now */
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

interface WaitingRequest {
  readonly facts: RequestFacts
  readonly client: string
  readonly req?: Pick<ClientRequest, 'stored'>
}

/** Undefined: a request on this route is not given up for its client's patience. */
export function prospectsOf(
  { facts, client, req }: WaitingRequest,
  route: Route,
  isTrusted: () => boolean,
): Prospects | undefined {
  const { mode, patience, dryRun } = route.settings
  // Nobody waits for the answer to a stored request.
  if (mode !== 'shape' || patience === 'none' || req?.stored !== undefined) return undefined
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

/** @param wait in ms, in the end @returns the value of `Shaper-Explain` */
export type Explanation = (wait: number, givenUp?: GivenUp) => string

export interface Expectation {
  /** How long it would wait, in ms. */
  readonly predicted: number
  /** Undefined: no request of its route is given up. */
  readonly outlook: Outlook | undefined
}

/**
 * Why a request is delayed or rejected, seen at its arrival, as a structured field (RFC 9651):
 * `"client";position=3;wait=412.5;cost=1;predicted=400.0;service=80.0;patience=2000.0;source=learnt`. It names the bucket that takes
 * longest to drain, how many are ahead in its lane, the wait in ms and the cost in that bucket. Where it may wait: the predicted
 * wait, the upstream's time to answer and the client's patience. What is not known is left out, and so is the usual priority.
 */
export function explainHeader(arrival: Arrival, now: number, expected?: Expectation): Explanation {
  const { stack, priority } = arrival
  const position = findLane(arrival)?.tickets.size ?? 0
  let decides = stack[0]
  let decisive = costAt(arrival, 0)
  let longest = 0
  for (const [place, bucket] of stack.entries()) {
    const { limits } = bucket
    const cost = costAt(arrival, place)
    const before = bucket.level(now) + cost - Math.min(cost, limits.capacity) - slackOf(limits, cost)
    const wait = before / limits.rate
    const full = bucket.excess(cost, now) > 0 ? Infinity : wait
    if (full <= longest) continue
    longest = full
    decides = bucket
    decisive = cost
  }
  const predicted = expected === undefined ? '' : `;predicted=${expected.predicted.toFixed(1)}`
  return (wait, givenUp) =>
    `"${decides?.limits.name ?? ''}";position=${position};wait=${wait.toFixed(1)};cost=${Number(decisive.toFixed(3))}` +
    (priority === undefined || priority === DEFAULT_PRIORITY ? '' : `;priority=${priority}`) +
    predicted +
    textOf(givenUp ?? expected?.outlook) +
    (givenUp === undefined ? '' : `;given-up=${givenUp.at}`)
}

function textOf(outlook: Outlook | undefined): string {
  if (outlook === undefined) return ''
  const { patience, source, service } = outlook
  return (
    (service > 0 ? `;service=${service.toFixed(1)}` : '') +
    (Number.isFinite(patience) ? `;patience=${patience.toFixed(1)};source=${source}` : '')
  )
}
