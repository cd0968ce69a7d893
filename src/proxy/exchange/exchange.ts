/**
 * One request, from its arrival to its outcome.
 *
 *     arrived --> (measured -->) waiting | buffered --> released --> sent --> over
 *
 * It has `arrived` until its turn on the connection. It is `measured` while its body comes, if what it costs depends on that. It
 * is `waiting` in its queue (queue-visit.ts), where its body is read
 * meanwhile, or `buffered` while its body comes, if it has no queue. It is `released` while it is checked whether its client
 * is still there, and `sent` until the answer has ended. If it has to be sent again, it goes from
 * `sent` back to `waiting`. It may be `over` from any state. Only that step tells the observer, so every request is counted
 * exactly once.
 */
import type { SentRequest } from '../../core/adaptive/adaptive-rate.js'
import { predictedWait } from '../../core/admission/predicted-wait.js'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { Demand, ReleasePlan, SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import type { AnswerNumbers } from '../../http/figures/answer-numbers.js'
import { hasStatus } from '../../http/quota/pause-rule.js'
import { type Fields, followersOf } from '../../http/quota/quota-fields.js'
import type { ProxyContext } from '../context.js'
import type { AnswerOwner, ClientAnswer, ClientRequest } from '../http/client.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import { mayHideHangUp } from '../http/connection/hang-up-check.js'
import { upstreamHeaders } from '../http/headers.js'
import {
  limitHeaders,
  RETRY_SOON_MS,
  type Reply,
  SHUTTING_DOWN,
  TOO_MANY_CONNECTIONS,
  upstreamDown,
} from '../http/reply.js'
import { headerValue, isIdempotent, Refusal, type RequestFacts, readRequest } from '../http/request.js'
import { countUnqueued, isHeldBy } from '../live-limits.js'
import type { GivenUp, Outcome, RejectionCause, RequestFailure, Settled, SettledBy } from '../observe/observer.js'
import { type Expectation, type Explanation, explainHeader } from '../routing/explain-header.js'
import { priorityOf } from '../routing/priority.js'
import { currentUpstream, type Route } from '../routing/route.js'
import type { AdaptiveLimit } from '../upstream/adaptive-limit.js'
import type { Breaker, UpstreamAttempt } from '../upstream/breaker.js'
import { hostTowards, requestEnded } from '../upstream/upstream.js'
import { type Rehearsal, rehearse } from './admit.js'
import { type ArmedOwner, ArmedRequest } from './armed-request.js'
import { ConnectionWait } from './connection-wait.js'
import { type Applicant, addressOfClient, clientKey, findStack } from './find-stack.js'
import { type Failure, type ForwardEnd, Forwarding } from './forwarding.js'
import { type BodyWait, IncomingBody } from './incoming-body.js'
import { deadlineOf, Prospects } from './prospects.js'
import { QueueVisit, type Visitor } from './queue-visit.js'
import { ClientResponse } from './response.js'
import { isUnserved, type SettledRequest, Settlement } from './settlement.js'

const NOTHING: readonly never[] = []

const LATE_BODY: Reply = { status: 408, detail: 'the request body did not come in time', close: true }

const NO_ROUTE = new Refusal(404, 'no route matches')

const PROXY_CHALLENGE = ['Proxy-Authenticate', 'Basic realm="shaper"']

const LOOP = new Refusal(508, 'the request has passed this shaper before: its upstream leads back here')

/** So many requests may wait where the wait of a newcomer is told exactly. Looking ahead of them takes a fraction of a ms. */
const LOOKED_AHEAD = 200

/** A request on its way to the upstream. */
export interface Sending {
  /** It waits for a connection. */
  readonly connecting?: boolean
  abort(): void
  /** The client has all of the answer. */
  flushed?(): void
}

/** What is expected of a request that may wait. */
function expectation(
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

export class Exchange implements PipelinedRequest, Visitor, AnswerOwner, Applicant, SettledRequest {
  protected readonly context: ProxyContext
  protected readonly connection: ClientConnection
  protected readonly req: ClientRequest
  protected readonly res: ClientAnswer
  facts!: RequestFacts
  protected matched: Route | undefined
  stack: readonly SharedBucket[] = NOTHING
  keys: readonly string[] = NOTHING
  cost = 0
  costs: readonly number[] | undefined
  settled: Settled | undefined
  priority = DEFAULT_PRIORITY
  predictedWait: number | undefined
  upstreamTime: number | undefined
  failure: RequestFailure | undefined
  readonly #response: ClientResponse
  prospects: Prospects | undefined
  #state: 'arrived' | 'measured' | 'waiting' | 'buffered' | 'released' | 'sent' | 'over' = 'arrived'
  #visit: QueueVisit | undefined
  #rehearsal: Rehearsal | undefined
  /** Set if its answer may say what it cost. */
  #settlement: Settlement | undefined
  /** ms */
  #sentAt = 0
  /** The `Prefer: wait` that applies, in seconds. */
  #preferredWait: number | undefined
  /** Set if the route has `explain`. */
  #explanation: Explanation | undefined
  #forwarding: Sending | undefined
  readonly #body: IncomingBody
  #address: string | undefined
  #client: string | undefined
  /** The failure after which the request was sent again; undefined once there is an answer. */
  #resentAfter: Failure | undefined
  /** How often it was sent again because a connection broke or could not be opened. `retry.max` does not count these. */
  #resends = 0
  /** Its way to the upstream, of whose end the breaker has not heard. */
  #attempt: UpstreamAttempt | undefined
  /** What the rate of its upstream is found by, while its end has not been told. */
  #measured: { readonly limit: AdaptiveLimit; readonly request: SentRequest } | undefined
  /** Set once there was no connection for it: until when it may wait for one. */
  #connectionWait: ConnectionWait | undefined
  /** It is counted in the context's `inProgress`. */
  #counted = false
  #malformed: Reply | undefined

  constructor(context: ProxyContext, connection: ClientConnection, req: ClientRequest, res: ClientAnswer) {
    this.context = context
    this.connection = connection
    this.req = req
    this.res = res
    this.#response = new ClientResponse(context, connection, res)
    this.#body = new IncomingBody(req, res)
    res.owner = this
  }

  get pooled(): boolean {
    return true
  }

  get route(): string {
    return this.matched?.name ?? ''
  }

  get address(): string {
    this.#address ??= addressOfClient(this.context, this.connection, this.facts)
    return this.#address
  }

  get client(): string {
    this.#client ??= clientKey(this.address, this.connection)
    return this.#client
  }

  get method(): string {
    return this.req.method
  }

  get target(): string {
    return this.req.url
  }

  get wait(): number {
    return this.#visit?.wait ?? 0
  }

  get retries(): number {
    return this.#visit?.retries ?? 0
  }

  get inFlight(): boolean {
    return this.#state === 'sent'
  }

  get givenUp(): GivenUp | undefined {
    return this.#visit?.givenUp
  }

  get rejection(): RejectionCause | undefined {
    // One that is sent again has failed.
    return this.#resentAfter === undefined ? this.#visit?.rejection : undefined
  }

  get isSettling(): boolean {
    return this.#settlement?.isReading === true
  }

  get onTrial(): boolean {
    return this.#visit?.onTrial === true
  }

  header(name: string): string | undefined {
    return headerValue(this.req.rawHeaders, name)
  }

  start(): void {
    this.#counted = true
    this.context.inProgress += 1
    this.context.observer.began?.(this)
    if (this.#malformed !== undefined) return this.#answer('refused', this.#malformed)
    const { egress } = this.context
    const facts = readRequest(this.req, egress && { reader: egress, encrypted: this.connection.encrypted })
    if (facts instanceof Refusal) return this.#refuse(facts)
    this.facts = facts
    this.#body.announced(facts)
    if (this.connection.excess) return this.#answer('refused', TOO_MANY_CONNECTIONS)
    if (this.context.draining) return this.#answer('refused', SHUTTING_DOWN)
    const route = this.context.routes.find(candidate => candidate.matches(this))
    if (route === undefined) return this.#refuse(NO_ROUTE)
    this.matched = route
    route.upstream.requests += 1
    if (facts.via !== undefined && route.upstream.settings.via && this.context.via.isIn(facts.via)) {
      return this.#refuse(LOOP)
    }
    if (route.settings.mode === 'off') return this.#forwardUnqueued()
    if (!route.bucketCosts?.waitsForBody(facts.contentLength)) return this.#pass(route)
    this.#state = 'measured'
    this.#bufferBody('beginning')
    if (this.ready) this.#pass(route)
    else this.awaitBody()
  }

  /** As much of its body as counts has come. A reload may have changed its route. */
  #bodyMeasured(): void {
    const { routes } = this.context
    const before = this.matched!
    if (routes.includes(before)) return this.#pass(before)
    const route = routes.find(candidate => candidate.matches(this))
    if (route === undefined) return this.#refuse(NO_ROUTE)
    this.matched = route
    route.upstream.requests += 1
    requestEnded(before.upstream)
    if (route.settings.mode === 'off') this.#forwardUnqueued()
    else this.#pass(route)
  }

  /** It asks its buckets. */
  #pass(route: Route): void {
    const { facts } = this
    const stack = findStack(this.context, route, this)
    if (stack instanceof Refusal) {
      if (!route.settings.dryRun) return this.#refuse(stack)
      this.context.observer.rehearsed?.(this, 'would_reject', '', 0)
      return this.#forwardUnqueued()
    }
    this.stack = stack.buckets
    this.keys = stack.keys
    this.#reserve(route)
    const { client, cost } = this
    const { buckets, weight } = stack
    const { context, connection } = this
    const priority = priorityOf(route, facts, stack.priority, () => context.trust(connection.peer, 0))
    this.priority = priority
    const prospects = this.#prospectsOn(route)
    const now = context.clock.now()
    const patience = prospects?.longestWait(now) ?? Infinity
    const costs = this.costs?.some(each => each !== cost) ? this.costs : undefined
    const arrival = { route: route.lane, stack: buckets, cost, costs, weight, priority, client, patience }
    if (route.settings.explain) {
      const expected = expectation(route, arrival, prospects, now)
      this.predictedWait = expected?.predicted
      this.#explanation = explainHeader(arrival, now, expected)
    }
    this.context.observer.arrived?.(this)
    if (!route.settings.dryRun) return this.#startVisit(route, arrival)
    this.#rehearsal = rehearse(this.context, route, arrival, this)
    this.#forwardUnqueued()
  }

  /** What it costs. */
  #reserve(route: Route): void {
    const { bucketCosts } = route
    this.cost = route.cost(this.facts)
    if (bucketCosts === undefined) return
    const names = this.stack.map(({ limits }) => limits.name)
    this.costs = bucketCosts.reserve(names, this.#body.measure)
    this.cost = this.costs.at(-1) ?? this.cost
    if (bucketCosts.settles) this.#settlement = new Settlement(this.context, bucketCosts, this)
  }

  correct(differences: Demand): void {
    if (this.#rehearsal === undefined) this.context.shaper.control.settle(differences)
    else this.#rehearsal.settle(differences)
  }

  onSettled(costs: Settled | undefined, by: SettledBy): void {
    this.settled = costs
    this.context.observer.settled?.(this, by)
  }

  /** Undefined: it is not given up for its client's patience. */
  #prospectsOn(route: Route): Prospects | undefined {
    const { mode, patience, dryRun } = route.settings
    if (mode !== 'shape' || patience === 'none') return undefined
    const { context, connection, facts } = this
    const deadline = deadlineOf(facts, route, () => context.trust(connection.peer, 0))
    // Nobody waits in a dry run, so nothing is learnt.
    if (dryRun) return deadline === undefined ? undefined : new Prospects(route, this.client, deadline)
    this.prospects = new Prospects(route, this.client, deadline)
    return this.prospects
  }

  #forwardUnqueued(): void {
    this.admitted()
    if (this.ready) return this.#forwardUnlessDown()
    this.#state = 'buffered'
    this.awaitBody()
  }

  #forwardUnlessDown(): void {
    this.#followUpstream()
    const { breaker, adaptive } = this.matched!.upstream
    if (breaker?.refuses(false)) return this.#answer('failed', upstreamDown(breaker.retryAfter))
    breaker?.passUngated()
    // A dry run counts in its buckets already.
    if (adaptive !== undefined && this.stack.length === 0) countUnqueued(this.context, adaptive, this.#presentCost())
    this.forward()
  }

  admitted(): void {
    this.#bufferBody('short')
  }

  #bufferBody(how: 'short' | 'beginning'): void {
    const { upstream, settings } = this.matched!
    const { bodyLimits: limits, openBodies: open } = this.context
    const wait: BodyWait = {
      client: this.client,
      requestBuffer: upstream.settings.requestBuffer,
      limits,
      open,
      onReady: () => {
        if (this.#state === 'measured') this.#bodyMeasured()
        else if (this.#state === 'buffered') this.#forwardUnlessDown()
        else if (settings.mode !== 'off') this.#visit!.comeBack()
      },
      onLate: () => this.#stop('failed', LATE_BODY),
    }
    this.#body.buffer(wait, how)
  }

  get ready(): boolean {
    return this.#body.ready
  }

  awaitBody(): void {
    this.#body.awaitRest()
  }

  #startVisit(route: Route, arrival: Arrival): void {
    let { maxWait } = route.settings
    const { preferWait } = this.facts
    if (preferWait !== undefined && preferWait * 1_000 <= maxWait && route.settings.mode === 'shape') {
      maxWait = preferWait * 1_000
      this.#preferredWait = preferWait
    }
    this.#state = 'waiting'
    this.#visit = new QueueVisit(this.context, route, this, arrival)
    this.#visit.start(maxWait)
  }

  arm(plan: ReleasePlan, owner: ArmedOwner): ArmedRequest | undefined {
    const { writes } = this.context.clock
    // A body, an answer to Expect, or a search for a hang-up is the main thread's.
    if (writes === undefined || this.#body.expected || this.facts.expectContinue || this.connection.unread)
      return undefined
    this.#followUpstream()
    const { method, target, contentLength } = this.facts
    const request = { method, target, headers: this.upstreamHeaders(plan.slot), body: null, contentLength }
    return ArmedRequest.arm(writes, this.matched!.upstream.pool, request, { plan, owner })
  }

  passed(how: 'at-once' | 'queued' | ArmedRequest): void {
    if (how instanceof ArmedRequest) return this.forward(how)
    const { unread, socket } = this.connection
    const hides = !this.#body.whole && mayHideHangUp(this.facts)
    if (how === 'at-once' || !(hides || unread)) return this.forward()
    this.#state = 'released'
    this.#visit!.hold()
    if (!hides) {
      // An empty write fails if the client has reset the connection. The failure ends this exchange.
      socket.write('', error => {
        if (!error && this.#state === 'released') this.forward()
      })
      return
    }
    this.#body.readAhead(this.client, () => this.#state === 'released' && this.forward())
  }

  turnedAway(outcome: 'rejected' | 'expired' | 'failed', reply: Reply): void {
    // It has been sent, so "still queued" or "too many" would not be the truth.
    if (this.#resentAfter !== undefined && outcome !== 'failed') this.#fail(this.#resentAfter)
    else this.#answer(outcome, reply)
  }

  abandon(): void {
    if (this.#state !== 'over' && !this.res.headersSent) this.#left()
    // First: `settle` may close an upstream that nobody uses any more, and that would fail the request.
    this.#forwarding?.abort()
    this.settle()
    if (this.#state !== 'over') this.#leave('cancelled', 499)
  }

  #left(): void {
    const now = this.context.clock.now()
    if (this.#visit !== undefined) this.prospects?.left(this.#visit.waited(now), now)
  }

  onMalformed(reply: Reply): void {
    if (this.#state === 'arrived') this.#malformed = reply
    else if (this.#state === 'over') this.connection.socket.destroy()
    else this.#stop(this.#state === 'sent' || reply.status === 408 ? 'failed' : 'refused', reply)
  }

  takenTooSlowly(): void {
    // It is counted as forwarded if the upstream was done.
    if (this.#state === 'over') return
    this.failure = { detail: 'the client took too little of the answer in 20 s' }
    this.#leave('failed', this.res.statusCode)
  }

  cutOff(): void {
    if (this.#state === 'over') this.#forwarding?.abort()
    else this.#stop(this.#state === 'sent' ? 'failed' : 'expired', SHUTTING_DOWN)
  }

  /** The head of the upstream's answer has arrived. */
  protected markAnswered(now = this.context.clock.now()): void {
    this.upstreamTime ??= now - this.#sentAt
  }

  /** @param sent set if it has been sent already */
  protected forward(sent?: ArmedRequest): void {
    this.#state = 'sent'
    if (sent === undefined) this.#followUpstream()
    this.#attempt = this.matched!.upstream.breaker?.attempt()
    this.#sentAt = sent?.sentAt ?? this.context.clock.now()
    this.upstreamTime = undefined
    this.failure = undefined
    this.#measure()
    this.context.observer.sent?.(this)
    this.#body.continue()
    const forwarding = this.send(sent)
    this.#forwarding = forwarding
    if (forwarding.connecting) this.#visit?.hold()
    // The hold may have taken back what was armed, and so have brought it a connection.
    if (!forwarding.connecting) this.#visit?.sent()
  }

  connected(): void {
    this.#visit?.sent()
  }

  heard(status: number): void {
    const now = this.context.clock.now()
    if (this.#visit !== undefined) this.prospects?.answered(this.#visit.waited(now), now - this.#sentAt, now)
    this.#endMeasure((limit, request) => limit.answered(request, status))
    this.#tellBreaker((breaker, attempt) => breaker.answered(attempt, status, this.client))
  }

  #presentCost(): number {
    return this.matched!.cost(this.facts)
  }

  /** It is being sent. The rate of its upstream is found by what becomes of it. */
  #measure(): void {
    const { adaptive: limit } = this.matched!.upstream
    if (limit === undefined) return
    // How long an upload takes is up to the client.
    const isTimed = !this.#body.expected || this.#body.whole
    const cost = this.#presentCost()
    const facts = { cost, client: this.client, isTimed, isHeld: isHeldBy(this.context, limit, cost) }
    this.#measured = { limit, request: limit.sent(facts, this.#sentAt) }
  }

  /** The adaptive rate hears once how a request ended. */
  #endMeasure(tell: (limit: AdaptiveLimit, request: SentRequest) => void): void {
    const measured = this.#measured
    this.#measured = undefined
    if (measured !== undefined) tell(measured.limit, measured.request)
  }

  /** The breaker hears once how an attempt ended. */
  #tellBreaker(tell: (breaker: Breaker, attempt: UpstreamAttempt) => void): void {
    const attempt = this.#attempt
    this.#attempt = undefined
    if (attempt !== undefined) tell(this.matched!.upstream.breaker!, attempt)
  }

  /** A reload may have changed the upstream while the request waited. */
  #followUpstream(): void {
    const route = this.matched!
    const upstream = currentUpstream(route, this.context.routes)
    if (upstream === route.upstream) return
    upstream.requests += 1
    this.matched = { ...route, upstream }
    requestEnded(route.upstream)
  }

  /** It has a place in the gate. */
  protected get gated(): boolean {
    return this.#visit !== undefined
  }

  protected send(sent?: ArmedRequest): Sending {
    const { facts, res } = this
    const { upstream } = this.matched!
    const { pool, ungated } = upstream
    const forwarding = new Forwarding({ upstream, facts, body: this.#body.open(this.client), res, owner: this })
    if (sent !== undefined) sent.adopt(forwarding)
    else forwarding.start(this.gated ? pool : ungated, this.upstreamHeaders())
    return forwarding
  }

  /** @param slot of an armed request, in ms */
  protected upstreamHeaders(slot?: number): string[] {
    const { connection, facts, context } = this
    const matched = this.matched!
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: context.trust(address, 0) }
    const { upstream, reads, lookAlikes } = matched
    const host = hostTowards(upstream, facts.host)
    const via = upstream.settings.via ? context.via.value(facts.oldHttp) : undefined
    const rules = { host, via, kept: reads, lookAlikes, forwarded: facts.origin === undefined }
    const headers = upstreamHeaders(facts, peer, rules)
    context.propagate?.(this, headers, { upstream: upstream.url, slot })
    return headers
  }

  /** Headers to add to an answer with this status: names and values in turn. */
  answerHeaders(status: number): string[] {
    const now = this.context.clock.now()
    this.markAnswered(now)
    const headers: string[] = []
    const { settings } = this.matched!
    if (settings.headers && this.stack.length > 0) {
      headers.push(...limitHeaders(this.stack, this.stack, now))
      headers.push('Server-Timing', `shaper;dur=${Math.round(this.wait * 10) / 10}`)
    }
    headers.push(...this.#extraHeaders())
    // The upstream refused in the middle of the upload. Other early answers may continue beside the upload.
    headers.push(...this.#response.closing(status >= 300 && this.#body.hasLongRest))
    return headers
  }

  /**
   * The head of the upstream's answer has arrived.
   *
   * @returns undefined if the answer goes to the client. A function if the request went back into its queue; call it
   *   when the answer has been read to its end
   */
  answered(status: number, fields: Fields): (() => void) | undefined {
    const { quota, settings, breaker } = this.matched!.upstream
    quota?.received(settings, status, fields, settings.learn ? this.#reservedTokens() : undefined)
    const { retry } = settings
    if (retry === undefined || !hasStatus(retry.status, status, fields)) return undefined
    // It would be refused if it came now.
    if (breaker?.refuses(true)) return undefined
    if (this.retries - this.#resends >= retry.max) return undefined
    if (this.#visit === undefined || this.#body.opened || !isIdempotent(this.facts.method)) return undefined
    const forwarding = this.#forwarding
    this.#state = 'waiting'
    this.#forwarding = undefined
    const over = this.#visit.goBack(status)
    if (over !== undefined) {
      if (isUnserved(status)) this.#settlement?.unserved('sent-again')
      this.#resentAfter = undefined
      return over
    }
    this.#state = 'sent'
    this.#forwarding = forwarding
    return undefined
  }

  /** What is reserved for it in the bucket that follows a limit on tokens. Undefined: there is none. */
  #reservedTokens(): number | undefined {
    if (this.costs === undefined) return undefined
    const names = this.stack.map(({ limits }) => limits.name)
    const [bucket] = followersOf('tokens', names)
    return bucket === undefined ? undefined : this.costs[names.indexOf(bucket)]
  }

  numbersIn(fields: readonly string[]): AnswerNumbers | undefined {
    return this.#settlement?.begin(fields)
  }

  forwarded(end: ForwardEnd): void {
    if (end.kind === 'answered') {
      this.over('forwarded', this.res.statusCode)
      return this.#body.linger()
    }
    if (end.kind === 'failed') {
      if (this.#awaitConnection(end) || this.#sendAgain(end)) return
      const isFault = end.status !== 403 && end.status !== 408
      this.#endMeasure((limit, request) => (isFault ? limit.failed(request) : limit.dropped(request)))
      this.#tellBreaker((breaker, attempt) => {
        if (!isFault) breaker.dropped(attempt)
        else breaker.failed(attempt, end.unconnected ? 'unconnected' : 'unanswered', this.client)
      })
      this.#body.drop()
      if (end.unconnected) this.#settlement?.unserved('over')
      this.#fail(end)
      return
    }
    this.failure = end
    this.over('failed', this.res.statusCode)
  }

  /**
   * Sends the request once more if that may help.
   *
   * @returns false if the failure stands
   */
  #sendAgain(end: Failure): boolean {
    if (!end.repeatable || this.#resentAfter !== undefined) return false
    this.#resentAfter = end
    this.failure = end
    this.#endMeasure((limit, request) => limit.dropped(request))
    if (this.#visit === undefined) {
      this.#forwarding = this.send()
      return true
    }
    this.#tellBreaker((breaker, attempt) => breaker.dropped(attempt))
    this.#forwarding = undefined
    return this.#passAgain(end.status)
  }

  /**
   * Puts a request that could not be sent for want of a connection back into its queue, for a limited time.
   *
   * @returns false if the failure stands
   */
  #awaitConnection(end: Failure): boolean {
    const { breaker, clock } = this.matched!.upstream
    if (!end.unconnected || end.status === 403 || breaker === undefined || this.#visit === undefined) return false
    if (this.matched!.settings.mode !== 'shape') return false
    this.failure = end
    this.#endMeasure((limit, request) => limit.failed(request))
    this.#tellBreaker((_breaker, attempt) => breaker.failed(attempt, 'unconnected', this.client))
    this.#connectionWait ??= new ConnectionWait(clock, breaker.settings.hold, () => {
      if (this.#state === 'waiting') this.#stop('failed', upstreamDown(breaker.retryAfter))
    })
    this.#forwarding = undefined
    const isAgain = !this.#connectionWait.isOver && this.#passAgain(end.status)
    this.#settlement?.unserved(isAgain ? 'sent-again' : 'over')
    if (isAgain) this.context.observer.unreachable?.(this.route, end)
    else this.#answer('failed', upstreamDown(breaker.retryAfter))
    return true
  }

  /** @returns false if it is not sent again: its state is as before */
  #passAgain(status: number): boolean {
    this.#state = 'waiting'
    this.#resends += 1
    if (this.#visit!.passAgain(status)) return true
    this.#resends -= 1
    this.#state = 'sent'
    return false
  }

  #fail(failure: Failure): void {
    const { status, detail } = failure
    this.failure = failure
    this.#answer('failed', { status, detail, close: status === 408 })
  }

  #refuse({ status, detail, close }: Refusal): void {
    this.#answer('refused', {
      status,
      detail,
      close,
      ...(status === 503 && { retryAfterMs: RETRY_SOON_MS }),
      ...(status === 407 && { headers: PROXY_CHALLENGE }),
    })
  }

  /** Ends the request wherever it is. Its place becomes free. */
  #leave(outcome: Outcome, status: number): void {
    this.over(outcome, status)
    this.#forwarding?.abort()
  }

  /** Ends the request wherever it is. A client that has part of an answer notices because its connection closes. */
  #stop(outcome: Outcome, reply: Reply): void {
    this.#leave(outcome, reply.status)
    if (this.res.headersSent) this.res.cut()
    else this.#reply(reply)
  }

  #answer(outcome: Outcome, reply: Reply): void {
    this.over(outcome, reply.status)
    this.#reply(reply)
  }

  #reply(reply: Reply): void {
    this.beforeReply()
    const more = this.#extraHeaders()
    more.push(...this.#response.closing(reply.close === true || this.#body.hasLongRest))
    this.#response.reply(reply, more)
    this.#body.linger()
  }

  /** Headers about this request besides the limits: names and values in turn. */
  #extraHeaders(): string[] {
    const headers = this.#preferredWait === undefined ? [] : ['Preference-Applied', `wait=${this.#preferredWait}`]
    if (this.#explanation !== undefined) headers.push('Shaper-Explain', this.#explanation(this.wait, this.givenUp))
    return headers
  }

  /** An answer of our own is about to be sent: a subclass stops watching the socket. */
  protected beforeReply(): void {}

  protected over(outcome: Outcome, status: number): void {
    const state = this.#state
    if (outcome === 'forwarded') this.#settlement?.answered(status)
    else this.#settlement?.end(state === 'sent' ? 'sent' : 'never-sent')
    this.context.observer.finished?.(this, outcome, status)
    this.#state = 'over'
    this.#connectionWait?.end()
    this.#tellBreaker((breaker, attempt) => breaker.dropped(attempt))
    this.#endMeasure((limit, request) => limit.dropped(request))
    this.#body.end()
    if (state === 'released') this.#visit!.endUnsent()
    else this.#visit?.end()
    this.#rehearsal?.end()
    for (const bucket of this.stack) this.context.bucketTable.rest(bucket)
  }

  finished(): void {
    this.#forwarding?.flushed?.()
    this.connection.done()
    this.settle()
  }

  /** The client has its answer, or is gone. */
  protected settle(): void {
    if (!this.#counted) return
    this.#counted = false
    if (this.matched !== undefined) requestEnded(this.matched.upstream)
    this.context.inProgress -= 1
    if (this.context.inProgress === 0) this.context.idle()
  }
}
