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
import type { GateSettings } from '../../config/settings.js'
import type { Demand, ReleasePlan } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import type { AnswerNumbers } from '../../http/figures/answer-numbers.js'
import { hasStatus } from '../../http/quota/pause-rule.js'
import type { Fields } from '../../http/quota/quota-fields.js'
import type { AnswerCopy, SharedAnswer } from '../coalescing/answer-copy.js'
import { type CoalescedOwner, CoalescedRequest, type FollowerQueue } from '../coalescing/coalesced-request.js'
import { Delivery } from '../coalescing/delivery.js'
import { isCoalescable } from '../coalescing/identity.js'
import type { AnswerHeadLines } from '../coalescing/shareable.js'
import type { ProxyContext } from '../context.js'
import type { AnswerOwner, ClientAnswer, ClientRequest } from '../http/client.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import { mayHideHangUp } from '../http/connection/hang-up-check.js'
import {
  MAYBE_SERVED,
  NO_ROOM,
  type Reply,
  refused,
  SHUTTING_DOWN,
  TOO_MANY_CONNECTIONS,
  upstreamDown,
} from '../http/reply.js'
import { isIdempotent, Refusal, readRequest } from '../http/request.js'
import { ConnectionPool } from '../http1/connection-pool.js'
import { countUnqueued, isHeldBy } from '../live-limits.js'
import type { GivenUp, Outcome, RejectionCause, RequestFailure, Settled, SettledBy } from '../observe/observer.js'
import type { BodyMeasure } from '../routing/bucket-costs.js'
import { explainHeader } from '../routing/explain-header.js'
import type { Route } from '../routing/route.js'
import { requestEnded } from '../upstream/upstream.js'
import { isMisconfigured } from '../upstream/upstream-error.js'
import { UpstreamReport } from '../upstream/upstream-report.js'
import { type Rehearsal, rehearse } from './admit.js'
import { type ArmedOwner, ArmedRequest } from './armed-request.js'
import { type BodyWait, IncomingBody } from './body/incoming-body.js'
import { ConnectionWait } from './connection-wait.js'
import { type Failure, type ForwardEnd, Forwarding } from './forwarding.js'
import { IncomingRequest } from './incoming-request.js'
import { expectationOf } from './prospects.js'
import { QueueVisit, type Visitor } from './queue-visit.js'
import { ClientResponse } from './response.js'
import { isUnserved, type SettledRequest, Settlement } from './settlement.js'

const LATE_BODY: Reply = { status: 408, detail: 'the request body did not come in time', close: true }

const LOOP = new Refusal(508, 'the request has passed this shaper before: its upstream leads back here')

/** The answer of a gate. */
const PASS = 204
const NO_GATE: GateSettings = {}

/** How often a request is sent again that its upstream has not taken: it takes no stream more, or no connection's. */
const MOST_UNTAKEN = 10

/** The status of a request whose client is gone. */
const GONE = 499

const TOO_SLOW: RequestFailure = { detail: 'the client took too little of the answer in 20 s' }

/** A request on its way to the upstream. */
export interface Sending {
  /** It waits for a connection. */
  readonly connecting?: boolean
  /** The request is over, and the client has not been given all of its answer. */
  readonly isPartial?: boolean
  abort(): void
  /** The client is gone. The answer is for others, until `abort`. */
  desert?(): void
  /** The client has all of the answer. */
  flushed?(): void
}

export class Exchange
  extends IncomingRequest
  implements PipelinedRequest, Visitor, AnswerOwner, SettledRequest, CoalescedOwner
{
  protected readonly res: ClientAnswer
  settled: Settled | undefined
  predictedWait: number | undefined
  upstreamTime: number | undefined
  failure: RequestFailure | undefined
  readonly #response: ClientResponse
  #state: 'arrived' | 'measured' | 'waiting' | 'buffered' | 'released' | 'sent' | 'over' = 'arrived'
  #visit: QueueVisit | undefined
  #rehearsal: Rehearsal | undefined
  /** Set if its answer may say what it cost. */
  #settlement: Settlement | undefined
  /** ms */
  #sentAt = 0
  #forwarding: Sending | undefined
  readonly #body: IncomingBody
  /** The failure after which the request was sent again; undefined once there is an answer. */
  #resentAfter: Failure | undefined
  /** How often its upstream has not taken it. */
  #untaken = 0
  /** What its upstream hears of it, once it is sent. */
  #report: UpstreamReport | undefined
  /** Set once there was no connection for it: until when it may wait for one. */
  #connectionWait: ConnectionWait | undefined
  /** Set once it waits with others like it, or is sent for them. */
  #coalesced: CoalescedRequest | undefined
  /** It is counted in the context's `inProgress`. */
  #counted = false
  #malformed: Reply | undefined

  constructor(context: ProxyContext, connection: ClientConnection, req: ClientRequest, res: ClientAnswer) {
    super(context, connection, req)
    this.res = res
    this.#response = new ClientResponse(context, connection, req, res)
    this.#body = new IncomingBody(req, res)
    res.owner = this
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

  get coalesced(): boolean {
    return this.#coalesced?.isAnswered === true
  }

  get onTrial(): boolean {
    return this.#visit?.onTrial === true
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
    if (this.connection.holdHead?.(this.client) === false) return this.#answer('refused', NO_ROOM)
    if (this.context.draining && this.connection.isAhead) return this.#answer('refused', SHUTTING_DOWN)
    const route = this.findRoute()
    if (route instanceof Refusal) return this.#refuse(route)
    this.goTo(route)
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
    const route = this.findRoute()
    if (route instanceof Refusal) return this.#refuse(route)
    this.goTo(route)
    if (route.settings.mode === 'off') this.#forwardUnqueued()
    else this.#pass(route)
  }

  /** It asks its buckets. */
  #pass(route: Route): void {
    const arrival = this.arrivalAt(route)
    if (arrival instanceof Refusal) {
      if (!route.settings.dryRun) return this.#refuse(arrival)
      this.context.observer.rehearsed?.(this, 'would_reject', '', 0)
      return this.#forwardUnqueued()
    }
    if (route.bucketCosts?.settles) this.#settlement = new Settlement(this.context, route.bucketCosts, this)
    if (route.settings.explain) {
      const now = this.context.clock.now()
      const expected = expectationOf(route, arrival, this.prospects, now)
      this.predictedWait = expected?.predicted
      this.#response.explanation = explainHeader(arrival, now, expected)
    }
    this.context.observer.arrived?.(this)
    if (!route.settings.dryRun) return this.#startVisit(route, arrival)
    this.#rehearsal = rehearse(this.context, route, arrival, this)
    this.#forwardUnqueued()
  }

  protected override get measure(): BodyMeasure {
    return this.#body.measure
  }

  correct(differences: Demand): void {
    if (this.#rehearsal === undefined) this.context.shaper.control.settle(differences)
    else this.#rehearsal.settle(differences)
  }

  onSettled(costs: Settled | undefined, by: SettledBy): void {
    this.settled = costs
    this.context.observer.settled?.(this, by)
  }

  #forwardUnqueued(): void {
    this.admitted()
    if (this.ready) return this.#forwardUnlessDown()
    this.#state = 'buffered'
    this.awaitBody()
  }

  #forwardUnlessDown(): void {
    this.followUpstream()
    const { breaker, adaptive } = this.matched!.upstream
    if (breaker?.refuses(false)) return this.#answer('failed', upstreamDown(breaker.retryAfter))
    breaker?.passUngated()
    // A dry run counts in its buckets already.
    if (adaptive !== undefined && this.stack.length === 0) countUnqueued(this.context, adaptive, this.presentCost)
    this.forward()
  }

  admitted(): void {
    this.#bufferBody('short')
  }

  waits(queue: FollowerQueue): void {
    if (this.#isCoalescable()) this.#amongOthers().follow(queue)
  }

  /** Whether one answer may do for it and for others. */
  #isCoalescable(): boolean {
    const { coalesce, mode } = this.matched!.settings
    return coalesce && mode === 'shape' && this.pooled && isCoalescable(this.facts)
  }

  #amongOthers(): CoalescedRequest {
    this.#coalesced ??= new CoalescedRequest(this.context, this.matched!, this)
    return this.#coalesced
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
      this.#response.preferredWait = preferWait
    }
    this.#state = 'waiting'
    this.#visit = new QueueVisit(this.context, route, this, arrival)
    this.#visit.start(maxWait)
  }

  arm(plan: ReleasePlan, owner: ArmedOwner): ArmedRequest | undefined {
    const { writes } = this.context.clock
    // A body, an answer to Expect, or a search for a hang-up is the main thread's.
    if (
      writes === undefined ||
      !this.pooled ||
      this.#body.expected ||
      this.facts.expectContinue ||
      this.connection.unread
    )
      return undefined
    this.followUpstream()
    const { pool } = this.matched!.upstream
    // Only a head of HTTP/1.1 is known before its slot.
    if (!(pool instanceof ConnectionPool)) return undefined
    const { method, target, contentLength } = this.facts
    const request = { method, target, headers: this.upstreamHeaders(plan.slot), body: null, contentLength }
    return ArmedRequest.arm(writes, pool, request, { plan, owner })
  }

  passed(how: 'at-once' | 'queued' | ArmedRequest): void {
    this.#coalesced?.followNoMore()
    if (how instanceof ArmedRequest) return this.forward(how)
    const { unread, socket } = this.connection
    // A stream is reset beside its body.
    const hides = !this.req.isHttp2 && !this.#body.whole && mayHideHangUp(this.facts)
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

  takeBack(): void {
    this.#forwarding?.abort()
    this.#forwarding = undefined
    this.#state = 'waiting'
  }

  turnedAway(outcome: 'rejected' | 'expired' | 'failed', reply: Reply): void {
    // It has been sent, so "still queued" or "too many" would not be the truth.
    if (this.#resentAfter !== undefined && outcome !== 'failed') this.#fail(this.#resentAfter)
    else {
      const { rejectStatus: status } = this.matched!.settings.gate ?? NO_GATE
      this.#answer(outcome, status === undefined ? reply : { ...reply, status })
    }
  }

  abandon(): void {
    if (this.#state !== 'over' && !this.res.headersSent) this.#left()
    if (!this.#desert()) this.giveUp()
  }

  giveUp(): void {
    // First: `settle` may close an upstream that nobody uses any more, and that would fail the request.
    this.#forwarding?.abort()
    this.settle()
    if (this.#state !== 'over') this.#overUnread()
  }

  /** Its client is gone. False: nobody else wants its answer. */
  #desert(): boolean {
    const forwarding = this.#forwarding
    // One that is not on the wire yet leaves its slot to the next.
    if (this.#state !== 'sent' || forwarding?.connecting !== false || !this.#coalesced?.desert()) return false
    forwarding.desert?.()
    return true
  }

  get #isDeserted(): boolean {
    return this.#coalesced?.isDeserted === true
  }

  /** Its client did not get all of the answer: it is gone, or was cut. */
  #overUnread(): void {
    if (this.failure === TOO_SLOW) this.over('failed', this.res.statusCode)
    else this.over('cancelled', GONE)
  }

  /** It is answered, or has failed, without its client. */
  #endDeserted(): void {
    this.#overUnread()
    this.#forwarding?.flushed?.()
    this.settle()
  }

  copyOf(head: AnswerHeadLines): AnswerCopy | undefined {
    return this.#coalesced?.copyOf(head)
  }

  takeAnswer(answer: SharedAnswer): void {
    if (this.#state === 'over') return
    this.followUpstream()
    const { client, facts, res } = this
    const { upstream } = this.matched!
    const { bodyBytes: budget } = this.context
    const { status } = answer.head
    const now = this.context.clock.now()
    this.prospects?.answeredByAnother(this.#visit!.waited(now), now)
    // Nothing of it was served.
    this.#settlement?.end('never-sent')
    const delivery = new Delivery({ answer, upstream, client, budget, facts, res, own: this.#ownHeaders(now, false) })
    this.over('forwarded', status)
    this.#forwarding = delivery
    delivery.start()
  }

  #left(): void {
    const now = this.context.clock.now()
    if (this.#visit !== undefined) this.prospects?.left(this.#visit.waited(now), now)
  }

  onMalformed(reply: Reply): void {
    if (this.#state === 'arrived') this.#malformed = reply
    else if (this.#state === 'over') this.connection.hangUp()
    else this.#stop(this.#state === 'sent' || reply.status === 408 ? 'failed' : 'refused', reply)
  }

  takenTooSlowly(): void {
    // It is counted as forwarded if the upstream was done.
    if (this.#state === 'over') return
    this.failure = TOO_SLOW
    if (!this.#desert()) this.#leave('failed', this.res.statusCode)
  }

  cutOff(): void {
    if (this.#state === 'sent') {
      const isRepeatable = this.#forwarding?.connecting === true || isIdempotent(this.facts.method)
      return this.#stop('failed', isRepeatable ? SHUTTING_DOWN : MAYBE_SERVED)
    }
    if (this.#state !== 'over') return this.#stop('expired', SHUTTING_DOWN)
    const isCut = this.#forwarding?.isPartial
    this.#forwarding?.abort()
    if (isCut) this.res.cut()
  }

  /** The head of the upstream's answer has arrived. */
  protected markAnswered(now = this.context.clock.now()): void {
    this.upstreamTime ??= now - this.#sentAt
  }

  /** @param sent set if it has been sent already */
  protected forward(sent?: ArmedRequest): void {
    this.#state = 'sent'
    if (sent === undefined) this.followUpstream()
    this.#report ??= new UpstreamReport(this)
    this.#report.begin(this.matched!.upstream)
    this.#sentAt = sent?.sentAt ?? this.context.clock.now()
    this.upstreamTime = undefined
    this.failure = undefined
    this.#measure()
    if (this.context.coalescing.hasWaiting(this.matched!.lane) && this.#isCoalescable()) {
      this.#amongOthers().lead(sent?.sentAt)
    }
    this.context.observer.sent?.(this)
    if (this.matched!.settings.gate !== undefined) return this.#letPass()
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

  /** Tells the proxy that asks. It forwards the request itself. */
  #letPass(): void {
    const headers = this.#ownHeaders(this.context.clock.now())
    this.#visit?.sent()
    this.heard(PASS)
    this.over('forwarded', PASS)
    this.beforeReply()
    this.res.sendWhole({ status: PASS, reason: 'No Content', headers, body: '' })
    this.#body.linger()
  }

  heard(status: number): void {
    const now = this.context.clock.now()
    const { prospects } = this
    this.matched!.upstream.answeredAt = now
    const isCounted = this.#visit !== undefined && prospects !== undefined && !this.#isDeserted
    if (isCounted && prospects.answered(this.#visit!.waited(now), now - this.#sentAt, now))
      this.context.shaper.control.deadlinesMoved(this.matched!.lane.gate)
    this.#report?.answered(status)
  }

  /** It is being sent. The rate of its upstream is found by what becomes of it. */
  #measure(): void {
    const { adaptive: limit } = this.matched!.upstream
    if (limit === undefined) return
    // How long an upload takes is up to the client.
    const isTimed = !this.#body.expected || this.#body.whole
    const cost = this.presentCost
    const facts = { cost, client: this.client, isTimed, isHeld: isHeldBy(this.context, limit, cost) }
    this.#report!.measure(limit, facts, this.#sentAt)
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
    const headers = this.forwardedHeaders()
    this.context.propagate?.(this, headers, { upstream: this.matched!.upstream.url, slot })
    return headers
  }

  /** Headers to add to an answer with this status: names and values in turn. */
  answerHeaders(status: number): string[] {
    const now = this.context.clock.now()
    this.markAnswered(now)
    // The upstream refused in the middle of the upload. Other early answers may continue beside the upload.
    return this.#ownHeaders(now, status >= 300 && this.#body.hasLongRest)
  }

  #ownHeaders(now: number, mustClose = this.#body.hasLongRest): string[] {
    const headers = this.#response.passed(this, this.matched!, now)
    headers.push(...this.#response.closing(mustClose))
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
    quota?.received(settings, status, fields, settings.learn ? this.reservedTokens : undefined)
    const { retry } = settings
    if (retry === undefined || !hasStatus(retry.status, status, fields)) return undefined
    // It would be refused if it came now.
    if (breaker?.refuses(true) || this.#isDeserted) return undefined
    if (this.retries - (this.#visit?.resends ?? 0) >= retry.max) return undefined
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

  numbersIn(fields: readonly string[]): AnswerNumbers | undefined {
    return this.#settlement?.begin(fields)
  }

  forwarded(end: ForwardEnd): void {
    if (end.kind === 'failed') return this.#notForwarded(end)
    if (this.#isDeserted) {
      if (end.kind === 'answered') this.#settlement?.answered(this.#coalesced!.status)
      return this.#endDeserted()
    }
    if (end.kind === 'answered') {
      this.over('forwarded', this.res.statusCode)
      return this.#body.linger()
    }
    this.failure = end
    this.over('failed', this.res.statusCode)
  }

  /** There was no answer. */
  #notForwarded(end: Failure): void {
    if (!this.#isDeserted && (this.#awaitConnection(end) || this.#sendAgain(end))) return
    if (end.status !== 408 && !isMisconfigured(end)) this.#report!.failed(end)
    else this.#report!.dropped()
    if (this.#isDeserted) return this.#endDeserted()
    this.#body.drop()
    if (end.unconnected) this.#settlement?.unserved('over')
    this.#fail(end)
  }

  /**
   * Sends the request once more if that may help.
   *
   * @returns false if the failure stands
   */
  #sendAgain(end: Failure): boolean {
    if (end.untaken) {
      if (this.#untaken === MOST_UNTAKEN || !this.#body.rewind()) return false
      this.#untaken += 1
    } else if (!end.repeatable || this.#resentAfter?.repeatable) return false
    this.#resentAfter = end
    this.failure = end
    if (this.#visit === undefined) {
      this.#report!.unmeasured()
      this.#forwarding = this.send()
      return true
    }
    this.#report!.dropped()
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
    if (!end.unconnected || isMisconfigured(end) || breaker === undefined || this.#visit === undefined) return false
    if (this.matched!.settings.mode !== 'shape') return false
    this.failure = end
    this.#report!.failed(end)
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
    if (this.#visit!.passAgain(status)) return true
    this.#state = 'sent'
    return false
  }

  #fail(failure: Failure): void {
    const { status, detail } = failure
    this.failure = failure
    this.#answer('failed', { status, detail, close: status === 408 })
  }

  #refuse(refusal: Refusal): void {
    this.#answer('refused', refused(refusal))
  }

  /** Ends the request wherever it is. Its place becomes free. */
  #leave(outcome: Outcome, status: number): void {
    this.over(outcome, status)
    this.#forwarding?.abort()
  }

  /** Ends the request wherever it is. A client that has part of an answer notices because its connection closes. */
  #stop(outcome: Outcome, reply: Reply): void {
    if (outcome === 'refused') this.failure = reply
    this.#leave(outcome, reply.status)
    if (this.res.headersSent) this.res.cut()
    else this.#reply(outcome, reply)
  }

  #answer(outcome: Outcome, reply: Reply): void {
    if (outcome === 'refused') this.failure = reply
    this.over(outcome, reply.status)
    this.#reply(outcome, reply)
  }

  #reply(outcome: Outcome, reply: Reply): void {
    this.beforeReply()
    const more = this.#response.about(this)
    more.push(...this.#response.closing(reply.close === true || this.#body.hasLongRest))
    this.#response.reply(outcome, reply, more)
    this.#body.linger()
  }

  /** An answer of our own is about to be sent: a subclass stops watching the socket. */
  protected beforeReply(): void {}

  protected over(outcome: Outcome, status: number): void {
    const state = this.#state
    if (outcome === 'forwarded') this.#settlement?.answered(status)
    else this.#settlement?.end(state === 'sent' ? 'sent' : 'never-sent')
    // The breaker has kept it from its upstream, after other requests.
    if (outcome === 'failed') this.failure ??= this.matched?.upstream.breaker?.failure
    this.context.observer.finished?.(this, outcome, status)
    this.#state = 'over'
    this.#connectionWait?.end()
    this.#report?.dropped()
    this.#body.end()
    if (state === 'released') this.#visit!.endUnsent()
    else this.#visit?.end()
    this.#rehearsal?.end()
    for (const bucket of this.stack) this.context.bucketTable.rest(bucket)
    this.#coalesced?.end()
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
