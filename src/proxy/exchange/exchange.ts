/**
 * One request, from its arrival to its outcome.
 *
 *     arrived --> (measured -->) waiting | buffered --> released --> sent --> over
 *
 * - `arrived`: until its turn on the connection.
 * - `measured`: its token is verified, or its body is coming, and its keys or what it costs depend on that.
 * - `stored`: it is being stored, to be sent later by another exchange (src/deliver), or asks about such a one.
 * - `waiting`: in its queue (visit.ts). Its body comes meanwhile.
 * - `buffered`: its body is coming, and it has no queue.
 * - `released`: it is checked whether its client is still there.
 * - `sent`: until the answer has ended. A request that is sent again goes back to `waiting`.
 * - `over`: from any state. Only that step tells the observer, so every request is counted exactly once.
 */

import { STATUS_CODES } from 'node:http'
import type { GateSettings } from '../../config/settings.js'
import type { Cancel } from '../../core/clock.js'
import type { Demand, ReleasePlan, SharedBucket } from '../../core/queue/lane.js'
import type { ServerPlace, Wanted } from '../../core/release/server-set.js'
import type { Arrival } from '../../core/shaper.js'
import type { AnswerNumbers } from '../../http/figures/answer-numbers.js'
import { isAnsweredAtOnce } from '../../http/method.js'
import { hasStatus, LONGEST_PAUSE } from '../../http/quota/pause-rule.js'
import type { Fields } from '../../http/quota/quota-fields.js'
import type { DeliveryAnswer, ProxyContext } from '../context.js'
import { isCoalescable } from '../features/alike.js'
import { type CoalescedOwner, CoalescedRequest, type FollowerQueue } from '../features/coalesce.js'
import { type AnswerCopy, Delivery, type SharedAnswer } from '../features/shared-answer.js'
import { Upgrade, type UpgradeOwner } from '../features/upgrade.js'
import type {
  AnswerOwner,
  ClientAnswer,
  ClientConnection,
  ClientRequest,
  PipelinedRequest,
  Reply,
} from '../http/client.js'
import {
  closeAfter,
  closing,
  isGrpc,
  limitHeaders,
  MAYBE_SERVED,
  NO_ROOM,
  refused,
  SHUTTING_DOWN,
  sendGrpcReply,
  sendReply,
  TOO_MANY_CONNECTIONS,
  upstreamDown,
} from '../http/reply.js'
import { headerValue, isIdempotent, Refusal, type RequestFacts, readRequest, withoutTexts } from '../http/request.js'
import { countUnqueued, isHeldBy } from '../live-limits.js'
import type { GivenUp, Outcome, RejectionCause, RequestFailure, Settled, SettledBy } from '../observe/observer.js'
import { NO_CLAIMS } from '../routing/key.js'
import type { Route } from '../routing/route.js'
import { UpstreamReport } from '../upstream/health.js'
import type { ResponseHead } from '../upstream/response-parser.js'
import { requestEnded, type Upstream } from '../upstream/upstream.js'
import { type Failure, isMisconfigured } from '../upstream/upstream-error.js'
import type { ServerUser, UpstreamServer } from '../upstream/upstream-server.js'
import { type ArmedOwner, ArmedRequest } from './armed-request.js'
import { IncomingBody } from './body.js'
import { type ForwardEnd, Forwarding } from './forwarding.js'
import { IncomingRequest } from './incoming-request.js'
import { isForStream, PageWait } from './page-wait.js'
import { type Explanation, expectationOf, explainHeader } from './prospects.js'
import { type Rehearsal, rehearse } from './rehearse.js'
import { isUnserved, type SettledRequest, Settlement } from './settlement.js'
import { QueueVisit, type Visitor } from './visit.js'

const LATE_BODY: Reply = { status: 408, detail: 'the request body did not come in time', close: true }
const TOO_LONG = new Refusal(413, 'the body is longer than this route stores', 'close')
const LOOP = new Refusal(508, 'the request has passed this shaper before: its upstream leads back here')
/** The answer of a gate, unless its route says another one. */
const PASS = 204
/** RFC 7240 4.1 */
const PREFERS_LATER = /(?:^|,)\s*respond-async\s*(?:$|[,;])/i
/** Where deliveries are asked about. Their id follows. */
export const DELIVERIES_PATH = '/.well-known/shaper/deliveries/'
const NO_GATE: GateSettings = {}
/** How often a request is sent again that its upstream has not taken: it takes no stream more, or no connection's. */
const MOST_UNTAKEN = 10
/** Which answers to stored requests pause their upstream, unless it has `pauseOn`. */
const DELIVERY_PAUSE = { status: [429], default: 0, max: LONGEST_PAUSE }
/** Bytes. A longer unread body may hide a hang-up, because the kernel queues the close behind it. */
const HIDING = 64 * 1024
const TOO_SLOW: RequestFailure = { detail: 'the client took too little of the answer in 20 s' }

interface Sending {
  readonly connecting?: boolean
  /** The request is over, and the client has not been given all of its answer. */
  readonly isPartial?: boolean
  abort(): void
  forsake?(): void
  /** The client is gone. The answer is for others, until `abort`. */
  desert?(): void
  flushed?(): void
}

export function createExchange(
  context: ProxyContext,
  connection: ClientConnection,
  req: ClientRequest,
  res: ClientAnswer,
): PipelinedRequest {
  if (isForStream(context, req)) return new PageWait(new IncomingRequest(context, connection, req), res)
  return new Exchange(context, connection, req, res)
}

export class Exchange
  implements PipelinedRequest, Visitor, AnswerOwner, SettledRequest, CoalescedOwner, UpgradeOwner, ServerUser
{
  settled: Settled | undefined
  predictedWait: number | undefined
  upstreamTime: number | undefined
  failure: RequestFailure | undefined
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #req: ClientRequest
  readonly #res: ClientAnswer
  readonly #request: IncomingRequest
  readonly #body: IncomingBody
  #state: 'arrived' | 'measured' | 'stored' | 'waiting' | 'buffered' | 'released' | 'sent' | 'over' = 'arrived'
  #visit: QueueVisit | undefined
  #rehearsal: Rehearsal | undefined
  /** Set if its answer may say what it cost. */
  #settlement: Settlement | undefined
  #sentAt = 0
  #forwarding: Sending | undefined
  #resentAfter: Failure | undefined
  #untaken = 0
  /** Where it is sent to, as long as it counts there. */
  #server: UpstreamServer | undefined
  /** Servers that have failed it. Their places outlive a reload. */
  #failed: ServerPlace[] | undefined
  #report: UpstreamReport | undefined
  /** Set once there was no connection for it. It may wait for one until `#isTriedOut`. */
  #cancelConnectionWait: Cancel | undefined
  #isTriedOut = false
  #coalesced: CoalescedRequest | undefined
  #upgrade: Upgrade | undefined
  #counted = false
  #malformed: Reply | undefined
  /** The `Prefer: wait` that applies, in seconds. */
  #preferredWait: number | undefined
  #explanation: Explanation | undefined

  constructor(context: ProxyContext, connection: ClientConnection, req: ClientRequest, res: ClientAnswer) {
    this.#context = context
    this.#connection = connection
    this.#req = req
    this.#res = res
    this.#request = new IncomingRequest(context, connection, req)
    this.#body = new IncomingBody(req, res)
    res.owner = this
  }

  /** It is a WebSocket handshake or CONNECT. @param head the bytes that came behind it */
  upgrade(head: Buffer): void {
    this.#upgrade = new Upgrade(this, this.#context, this.#connection, head)
  }

  get route(): string {
    return this.#request.route?.name ?? ''
  }

  get method(): string {
    return this.#request.method
  }

  get target(): string {
    return this.#request.target
  }

  get stack(): readonly SharedBucket[] {
    return this.#request.stack
  }

  get keys(): readonly string[] {
    return this.#request.keys
  }

  get cost(): number {
    return this.#request.cost
  }

  get costs(): readonly number[] | undefined {
    return this.#request.costs
  }

  get priority(): number {
    return this.#request.priority
  }

  header(name: string): string | undefined {
    return this.#request.header(name)
  }

  get facts(): RequestFacts {
    return this.#request.facts
  }

  get upstream(): Upstream {
    return this.#request.route!.upstream
  }

  get server(): UpstreamServer {
    return this.#server!
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

  get pooled(): boolean {
    return this.#upgrade === undefined && !this.#request.isAsked
  }

  get gated(): boolean {
    return this.#visit !== undefined
  }

  get ready(): boolean {
    return this.#body.ready
  }

  get #isDeserted(): boolean {
    return this.#coalesced?.isDeserted === true
  }

  start(): void {
    const connection = this.#connection
    const request = this.#request
    const { observer, egress, draining, hasSuccessor, via } = this.#context
    this.#counted = true
    this.#context.inProgress += 1
    observer.began?.(this)
    if (this.#malformed !== undefined) return this.#endWith('refused', this.#malformed)
    const facts = readRequest(this.#req, egress && { reader: egress, encrypted: connection.encrypted })
    if (facts instanceof Refusal) return this.#refuse(facts)
    request.facts = facts
    this.#body.announced(facts)
    if (connection.excess) return this.#endWith('refused', TOO_MANY_CONNECTIONS)
    if (connection.holdHead?.(request.client) === false) return this.#endWith('refused', NO_ROOM)
    if (draining && !hasSuccessor && connection.isAhead) return this.#endWith('refused', SHUTTING_DOWN)
    const { deliveries } = this.#context
    if (deliveries?.isUsed && egress === undefined && facts.path.startsWith(DELIVERIES_PATH))
      return this.#answerLater(deliveries.ask(facts.method, facts.path.slice(DELIVERIES_PATH.length), request.client))
    const route = request.findRoute()
    if (route instanceof Refusal) return this.#refuse(route)
    request.goTo(route)
    if (facts.via !== undefined && route.upstream.settings.via && via.isIn(facts.via)) return this.#refuse(LOOP)
    this.#identify(route)
  }

  /** Verifies its token, if a key is made of one. */
  #identify(route: Route): void {
    const { identity } = this.#context
    const claims =
      this.#req.stored?.claims ?? ((route.readsClaims && identity?.claimsOf(this.facts.rawHeaders)) || NO_CLAIMS)
    if (!(claims instanceof Promise)) {
      this.#request.claims = claims
      return this.#readBody(route)
    }
    this.#state = 'measured'
    void claims.then(found => {
      if (this.#state !== 'measured') return
      this.#request.claims = found
      this.#unlessReloaded(() => this.#readBody(route))
    })
  }

  #readBody(route: Route): void {
    const isStored = this.#isToStore(route)
    if (isStored && (this.facts.contentLength ?? 0) > route.settings.deliver!.maxBody) return this.#refuse(TOO_LONG)
    if (!isStored && !route.waitsForBody(this.facts.contentLength)) return this.#measured(route)
    this.#state = 'measured'
    this.#bufferBody(isStored ? 'whole' : 'beginning')
    if (this.ready) this.#measured(route)
    else this.awaitBody()
  }

  /** A reload may have changed its route while it was measured. What was found stays, and all else begins anew. */
  #unlessReloaded(goOn: () => void): void {
    if (this.#context.routes.includes(this.#request.route!)) return goOn()
    const route = this.#request.findRoute()
    if (route instanceof Refusal) return this.#refuse(route)
    this.#request.goTo(route)
    this.#identify(route)
  }

  /** As much of its body as counts has come. */
  #measured(route: Route): void {
    if (route.readBody !== undefined) this.#request.body = route.readBody(this.#body.measure)
    if (this.#isToStore(route)) this.#store(route)
    else if (route.settings.mode === 'off') this.#forwardUnqueued()
    else this.#pass(route)
  }

  /** Whether it is answered 202 now and sent later. What only asks, and what is a stream, is not. */
  #isToStore({ settings: { deliver, dryRun } }: Route): boolean {
    if (deliver === undefined || this.#context.deliveries === undefined || dryRun) return false
    if (this.#req.stored !== undefined || this.#upgrade !== undefined) return false
    const { method, rawHeaders } = this.facts
    if (isAnsweredAtOnce(method) || isGrpc(this.#req)) return false
    return deliver.when === 'always' || PREFERS_LATER.test(withoutTexts(headerValue(rawHeaders, 'prefer', ', ') ?? ''))
  }

  #store(route: Route): void {
    const { bytes, pieces, whole } = this.#body.measure
    if (bytes > route.settings.deliver!.maxBody) return this.#refuse(TOO_LONG)
    if (this.#body.expected && !whole) return this.#endWith('refused', NO_ROOM)
    // It costs nothing before it is sent. Whose it is has to be known.
    const arrival = this.#request.arrivalAt(route)
    if (arrival instanceof Refusal) return this.#refuse(arrival)
    const { connection, facts, claims, keys } = this.#request
    const body = Buffer.concat(pieces)
    this.#answerLater(this.#context.deliveries!.accept(route, { connection, facts, claims, keys, body }))
  }

  #answerLater(answer: Promise<DeliveryAnswer>): void {
    this.#state = 'stored'
    void answer.then(found => {
      if (this.#state !== 'stored') return
      if (!('body' in found)) return this.#endWith(found.status < 500 ? 'refused' : 'failed', found)
      this.#end('accepted', found.status)
      const headers = [...found.headers, ...this.#closing(this.#body.hasLongRest)]
      this.#res.sendWhole({ ...found, reason: STATUS_CODES[found.status]!, headers })
      this.#res.limitFlush(this.#context.flush)
      this.#body.linger()
    })
  }

  #pass(route: Route): void {
    const context = this.#context
    const { settings, bucketCosts } = route
    const arrival = this.#request.arrivalAt(route)
    if (arrival instanceof Refusal) {
      if (!settings.dryRun) return this.#refuse(arrival)
      context.observer.rehearsed?.(this, 'would_reject', '', 0)
      return this.#forwardUnqueued()
    }
    if (bucketCosts?.settles) this.#settlement = new Settlement(context, bucketCosts, this)
    if (settings.explain) {
      const now = context.clock.now()
      const expected = expectationOf(route, arrival, this.#request.prospects, now)
      this.predictedWait = expected?.predicted
      this.#explanation = explainHeader(arrival, now, expected)
    }
    context.observer.arrived?.(this)
    if (!settings.dryRun) return this.#startVisit(route, arrival)
    this.#rehearsal = rehearse(context, route, arrival, this)
    this.#forwardUnqueued()
  }

  correct(differences: Demand): void {
    if (this.#rehearsal === undefined) this.#context.shaper.engine.settleCost(differences)
    else this.#rehearsal.settle(differences)
  }

  onSettled(costs: Settled | undefined, by: SettledBy): void {
    this.settled = costs
    this.#context.observer.settled?.(this, by)
  }

  #forwardUnqueued(): void {
    this.admitted()
    if (this.ready) return this.#forwardUnlessDown()
    this.#state = 'buffered'
    this.awaitBody()
  }

  #forwardUnlessDown(): void {
    this.#request.followUpstream()
    const { upstream } = this
    const { adaptive } = upstream
    if (upstream.refuses(false)) return this.#endWith('failed', upstreamDown(upstream.retryAfter))
    // A dry run counts in its buckets already.
    if (adaptive !== undefined && this.stack.length === 0)
      countUnqueued(this.#context, adaptive, this.#request.presentCost)
    this.#forward()
  }

  admitted(): void {
    this.#bufferBody('short')
  }

  waits(queue: FollowerQueue): void {
    if (this.#isCoalescable()) this.#amongOthers().follow(queue)
  }

  #isCoalescable(): boolean {
    const { coalesce, mode } = this.#request.route!.settings
    return coalesce && mode === 'shape' && this.pooled && isCoalescable(this.facts)
  }

  #amongOthers(): CoalescedRequest {
    this.#coalesced ??= new CoalescedRequest(this.#context, this.#request.route!, this)
    return this.#coalesced
  }

  forwardedHeaders(): string[] {
    return this.#request.forwardedHeaders(this.#server ?? this.upstream.servers[0]!)
  }

  #bufferBody(how: 'short' | 'beginning' | 'whole'): void {
    if (!this.#body.expected) return
    const { upstream, settings } = this.#request.route!
    const { bodyLimits: limits, openBodies: open } = this.#context
    const wait = {
      client: this.#request.client,
      requestBuffer: how === 'whole' ? settings.deliver!.maxBody + 1 : upstream.settings.requestBuffer,
      limits,
      open,
      onReady: () => {
        if (this.#state === 'measured') this.#unlessReloaded(() => this.#measured(this.#request.route!))
        else if (this.#state === 'buffered') this.#forwardUnlessDown()
        else if (settings.mode !== 'off') this.#visit!.comeBack()
      },
      onLate: () => this.#endWith('failed', LATE_BODY),
    }
    this.#body.buffer(wait, how)
  }

  awaitBody(): void {
    this.#body.awaitRest()
  }

  #startVisit(route: Route, arrival: Arrival): void {
    let maxWait = this.#req.stored === undefined ? route.settings.maxWait : Infinity
    const { preferWait } = this.facts
    if (preferWait !== undefined && preferWait * 1_000 <= maxWait && route.settings.mode === 'shape') {
      maxWait = preferWait * 1_000
      this.#preferredWait = preferWait
    }
    this.#state = 'waiting'
    this.#visit = new QueueVisit(this.#request, this, arrival)
    this.#visit.start(maxWait)
  }

  arm(plan: ReleasePlan, owner: ArmedOwner): ArmedRequest | undefined {
    const { writes } = this.#context.clock
    if (writes === undefined || !this.pooled || this.#req.stored !== undefined) return undefined
    // A body, an answer to Expect, or a search for a hang-up is the main thread's.
    if (this.#body.expected || this.facts.expectContinue || this.#connection.unread) return undefined
    this.#request.followUpstream()
    const server = this.#pick({ armed: true })
    if (server === undefined) return undefined
    const { method, target, contentLength } = this.facts
    const request = { method, target, headers: this.#headersFor(server, plan.slot), body: null, contentLength }
    const armed = ArmedRequest.arm(writes, server, request, { plan, owner, user: this })
    // It has no connection. Else each slot would pick the one after it, and it would never be tried.
    if (armed === undefined) this.upstream.returnTurn()
    return armed
  }

  #pick(wanted: Wanted = {}): UpstreamServer | undefined {
    const { facts, address, client: ip, certificate, claims, body, route } = this.#request
    const key = route!.pickKey?.({ facts, address, ip, certificate, claims, body, route: this.route })
    return this.upstream.pick({ ungated: !this.gated, key, ...wanted })
  }

  /** The server for it now: not one that has failed it, if another takes it. */
  #nextServer(): UpstreamServer | undefined {
    const tried = this.#failed
    return (tried && this.#pick({ tried })) ?? this.#pick()
  }

  #enter(server: UpstreamServer): void {
    this.#server = server
    this.upstream.enter(server, this, this.gated ? 'inFlight' : 'ungated')
  }

  #leaveServer(as: 'request' | 'tunnel' = 'request'): void {
    const server = this.#server
    this.#server = undefined
    server?.leave(this, this.gated ? 'inFlight' : 'ungated', as)
  }

  serverDown(): void {
    if (this.#state === 'sent') this.#forwarding?.forsake?.()
  }

  passed(how: 'at-once' | 'queued' | ArmedRequest): void {
    this.#coalesced?.followNoMore()
    if (how instanceof ArmedRequest) return this.#forward(how)
    if (this.#req.stored?.mayLeave() === false) {
      if (how === 'queued') this.#state = 'released'
      return this.end('hang-up')
    }
    const { unread, socket } = this.#connection
    // A stream is reset beside its body.
    const hides = !this.#req.isHttp2 && !this.#body.whole && mayHideHangUp(this.facts)
    if (how === 'at-once' || !(hides || unread)) return this.#forward()
    this.#state = 'released'
    this.#visit!.hold()
    if (!hides) {
      // An empty write fails if the client has reset the connection. The failure ends this exchange.
      socket.write('', error => {
        if (!error && this.#state === 'released') this.#forward()
      })
      return
    }
    this.#body.readAhead(this.#request.client, () => this.#state === 'released' && this.#forward())
  }

  takeBack(): void {
    this.#leaveServer()
    this.#forwarding?.abort()
    this.#forwarding = undefined
    this.#state = 'waiting'
  }

  turnedAway(outcome: 'rejected' | 'expired' | 'failed', reply: Reply): void {
    // It has been sent, so "still queued" or "too many" would not be the truth.
    if (this.#resentAfter !== undefined && outcome !== 'failed') return this.#fail(this.#resentAfter)
    const { rejectStatus: status } = this.#request.route!.settings.gate ?? NO_GATE
    this.#endWith(outcome, status === undefined ? reply : { ...reply, status })
  }

  #desert(): boolean {
    const forwarding = this.#forwarding
    // One that is not on the wire yet leaves its slot to the next.
    if (this.#state !== 'sent' || forwarding?.connecting !== false || !this.#coalesced?.desert()) return false
    forwarding.desert?.()
    return true
  }

  copyOf(head: ResponseHead): AnswerCopy | undefined {
    return this.#coalesced?.copyOf(head)
  }

  takeAnswer(answer: SharedAnswer): void {
    if (this.#state === 'over') return
    const request = this.#request
    const { clock, bodyBytes: budget } = this.#context
    request.followUpstream()
    const now = clock.now()
    request.prospects?.answeredByAnother(this.#visit!.waited(now), now)
    // Nothing of it was served.
    this.#settlement?.end('never-sent')
    const { client, facts } = request
    const own = this.#ownHeaders(now, false)
    const delivery = new Delivery({ answer, upstream: this.upstream, client, budget, facts, res: this.#res, own })
    this.#end('forwarded', answer.head.status)
    this.#forwarding = delivery
    delivery.start()
  }

  onMalformed(reply: Reply): void {
    if (this.#state === 'arrived') this.#malformed = reply
    else if (this.#state === 'over') this.#connection.hangUp()
    else this.#endWith(this.#state === 'sent' || reply.status === 408 ? 'failed' : 'refused', reply)
  }

  #forward(sent?: ArmedRequest): void {
    const context = this.#context
    const wasReleased = this.#state === 'released'
    this.#state = 'sent'
    if (sent === undefined) this.#request.followUpstream()
    const route = this.#request.route!
    if (sent === undefined) {
      // Its server may have gone down while it was checked. Others may be full: it waits for one again.
      const server = this.#nextServer() ?? (wasReleased ? undefined : this.#pick({ ungated: true }))
      if (server === undefined) return this.#waitForServer(wasReleased)
      this.#enter(server)
    } else this.#server = sent.server
    this.#report ??= new UpstreamReport(this.#request)
    this.#report.begin(this.server)
    this.#sentAt = sent?.sentAt ?? context.clock.now()
    this.upstreamTime = undefined
    this.failure = undefined
    this.#measure()
    if (context.coalescing.hasWaiting(route.lane) && this.#isCoalescable()) this.#amongOthers().lead(sent?.sentAt)
    context.observer.sent?.(this)
    this.#req.stored?.sent()
    if (route.settings.gate !== undefined) return this.#letPass()
    this.#body.continue()
    const forwarding = this.#send(sent)
    this.#forwarding = forwarding
    if (forwarding.connecting) this.#visit?.hold()
    // The hold may have taken back what was armed, and so have brought it a connection.
    if (!forwarding.connecting) this.#visit?.sent()
  }

  #waitForServer(wasReleased: boolean): void {
    if (!wasReleased) return this.#endWith('failed', upstreamDown(this.upstream.retryAfter))
    this.#state = 'waiting'
    this.#visit!.waitAgain()
  }

  connected(): void {
    this.#visit?.sent()
  }

  /** Tells the proxy that asks. It forwards the request itself. */
  #letPass(): void {
    const { passStatus: status = PASS } = this.#request.route!.settings.gate!
    const headers = this.#ownHeaders(this.#context.clock.now())
    if (status !== PASS) headers.push('Content-Length', '0')
    this.#visit?.sent()
    this.heard(status)
    this.#end('forwarded', status)
    this.#upgrade?.unwatch()
    this.#res.sendWhole({ status, reason: STATUS_CODES[status]!, headers, body: '' })
    this.#body.linger()
  }

  heard(status: number): void {
    const now = this.#context.clock.now()
    const { prospects } = this.#request
    this.upstream.answeredAt = now
    const isCounted = this.#visit !== undefined && prospects !== undefined && !this.#isDeserted
    if (isCounted && prospects.answered(this.#visit!.waited(now), now - this.#sentAt, now))
      this.#context.shaper.engine.deadlinesMoved(this.#request.route!.lane.gate)
    this.#report?.answered(status)
  }

  #measure(): void {
    const { adaptive: limit } = this.upstream
    if (limit === undefined) return
    // How long an upload takes is up to the client.
    const isTimed = !this.#body.expected || this.#body.whole
    const { client, presentCost: cost } = this.#request
    this.#report!.measure(limit, { cost, client, isTimed, isHeld: isHeldBy(this.#context, limit, cost) }, this.#sentAt)
  }

  #send(sent?: ArmedRequest): Sending {
    if (this.#upgrade !== undefined) return this.#upgrade.send()
    const { facts, client, route } = this.#request
    const { upstream } = route!
    const body = this.#body.open(client)
    const forwarding = new Forwarding({ upstream, facts, client, body, res: this.#res, owner: this })
    if (sent !== undefined) sent.adopt(forwarding)
    else forwarding.start(this.gated ? this.server.pool : this.server.ungated, this.upstreamHeaders())
    return forwarding
  }

  upstreamHeaders(): string[] {
    return this.#headersFor(this.server)
  }

  #headersFor(server: UpstreamServer, slot?: number): string[] {
    const headers = this.#request.forwardedHeaders(server)
    this.#context.propagate?.(this, headers, { upstream: server.origin, slot })
    return headers
  }

  answerHeaders(status: number): string[] {
    const now = this.#context.clock.now()
    this.upstreamTime ??= now - this.#sentAt
    return this.#ownHeaders(now, status >= 300 && this.#body.hasLongRest)
  }

  /** Headers of ours on an answer that is not ours: names and values in turn. */
  #ownHeaders(now: number, mustClose = this.#body.hasLongRest): string[] {
    const { stack, wait } = this
    const { settings } = this.#request.route!
    // What is kept is what the upstream said.
    if (this.#req.stored !== undefined) return []
    const isGate = settings.gate !== undefined
    const headers = isGate ? ['X-Shaper-Wait', String(toTenth(wait))] : []
    if (settings.headers && stack.length > 0) {
      headers.push(...limitHeaders(stack, stack, now))
      if (!isGate) headers.push('Server-Timing', `shaper;dur=${toTenth(wait)}`)
    }
    this.#addAbout(headers)
    headers.push(...this.#closing(mustClose))
    return headers
  }

  #addAbout(headers: string[]): void {
    if (this.#preferredWait !== undefined) headers.push('Preference-Applied', `wait=${this.#preferredWait}`)
    if (this.#explanation !== undefined) {
      const explanation = this.#explanation(this.wait, this.givenUp)
      headers.push('Shaper-Explain', this.coalesced ? `${explanation};coalesced` : explanation)
    }
  }

  #closing(must: boolean): readonly string[] {
    return must ? closeAfter(this.#connection) : closing(this.#connection, this.#context)
  }

  answered(status: number, fields: Fields): (() => void) | undefined {
    const { upstream } = this
    const { quota, settings } = upstream
    const heeded =
      this.#req.stored === undefined ? settings : { ...settings, pauseOn: settings.pauseOn ?? DELIVERY_PAUSE }
    quota?.received(heeded, status, fields, settings.learn ? this.#request.reservedTokens : undefined)
    const { retry } = settings
    if (retry === undefined || !hasStatus(retry.status, status, fields)) return undefined
    // It would be refused if it came now.
    if (upstream.refuses(true) || this.#isDeserted) return undefined
    if (this.retries - (this.#visit?.resends ?? 0) >= retry.max) return undefined
    if (this.#visit === undefined || this.#body.opened || !isIdempotent(this.facts.method)) return undefined
    const forwarding = this.#forwarding
    const server = this.server
    this.#state = 'waiting'
    this.#forwarding = undefined
    this.#server = undefined
    const over = this.#visit.goBack(status)
    if (over !== undefined) {
      if (isUnserved(status)) this.#settlement?.unserved('sent-again')
      this.#resentAfter = undefined
      return () => {
        server.leave(this, 'inFlight')
        over()
      }
    }
    this.#state = 'sent'
    this.#forwarding = forwarding
    this.#server = server
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
      this.#end('forwarded', this.#res.statusCode)
      return this.#body.linger()
    }
    this.failure = end
    this.#end('failed', this.#res.statusCode)
  }

  tunnelled(status: number, fields: Fields): void {
    const { quota, settings } = this.upstream
    quota?.received(settings, status, fields)
    this.upstreamTime ??= this.#context.clock.now() - this.#sentAt
    this.heard(status)
    this.#leaveServer('tunnel')
    this.#end('forwarded', status)
    this.countOut()
  }

  #notForwarded(end: Failure): void {
    if (!this.#isDeserted && (this.#goElsewhere(end) || this.#awaitConnection(end) || this.#sendAgain(end))) return
    this.#tell(end)
    if (this.#isDeserted) return this.#endDeserted()
    this.#body.drop()
    if (end.unconnected) this.#settlement?.unserved('over')
    this.#fail(end)
  }

  /** It could not connect. Another server takes it at once, in the same slot. @returns false if none does */
  #goElsewhere(end: Failure): boolean {
    if (!end.unconnected || this.upstream.servers.length === 1) return false
    const tried = this.#noteFailed()
    const isMeasured = this.#report!.isMeasured
    this.#report!.unmeasured()
    this.#tell(end)
    const next = this.#pick({ tried })
    if (next === undefined) return false
    this.#context.observer.unreachable?.(this.route, end)
    this.#leaveServer()
    this.#enter(next)
    this.#report!.begin(next)
    if (isMeasured) this.#measure()
    this.#forwarding = this.#send()
    if (!this.#forwarding.connecting) this.#visit?.sent()
    return true
  }

  #noteFailed(): readonly ServerPlace[] {
    const { place } = this.server
    this.#failed ??= []
    if (!this.#failed.includes(place)) this.#failed.push(place)
    return this.#failed
  }

  #tell(end: Failure): void {
    if (end.status !== 408 && !isMisconfigured(end)) this.#report!.failed(end)
    else this.#report!.dropped()
  }

  /** Sends the request once more if that may help. @returns false if the failure stands */
  #sendAgain(end: Failure): boolean {
    const { servers } = this.upstream
    const isRepeated = this.#resentAfter?.repeatable !== undefined
    if (end.untaken) {
      if (this.#untaken === MOST_UNTAKEN || !this.#body.rewind()) return false
      this.#untaken += 1
    } else if (end.repeatable === undefined || (isRepeated && servers.length === 1)) return false
    else if (isRepeated || end.repeatable === 'elsewhere') {
      const failed = this.#noteFailed()
      if (servers.every(({ place }) => failed.includes(place)) || !this.#body.rewind()) return false
      this.#report!.failed(end)
    }
    this.#resentAfter = end
    this.failure = end
    if (this.#visit === undefined) return this.#sendAgainUnqueued()
    this.#report!.dropped()
    this.#forwarding = undefined
    return this.#passAgain(end.status)
  }

  #sendAgainUnqueued(): boolean {
    const next = this.#nextServer()
    if (next === undefined) return false
    this.#report!.unmeasured()
    if (next !== this.server) {
      this.#report!.dropped()
      this.#leaveServer()
      this.#enter(next)
    }
    this.#report!.begin(next)
    this.#forwarding = this.#send()
    return true
  }

  /** Puts a request without a connection back into its queue, for a limited time. @returns false if the failure stands */
  #awaitConnection(end: Failure): boolean {
    const { upstream } = this
    const { clock } = upstream
    const { breaker } = upstream.settings
    if (!end.unconnected || isMisconfigured(end) || breaker === undefined || this.#visit === undefined) return false
    if (this.#request.route!.settings.mode !== 'shape') return false
    this.failure = end
    this.#report!.failed(end)
    this.#cancelConnectionWait ??= clock.at(clock.now() + breaker.hold, () => {
      this.#isTriedOut = true
      if (this.#state === 'waiting') this.#endWith('failed', upstreamDown(upstream.retryAfter))
    })
    this.#forwarding = undefined
    const isAgain = !this.#isTriedOut && this.#passAgain(end.status)
    this.#settlement?.unserved(isAgain ? 'sent-again' : 'over')
    if (isAgain) this.#context.observer.unreachable?.(this.route, end)
    else this.#endWith('failed', upstreamDown(upstream.retryAfter))
    return true
  }

  #passAgain(status: number): boolean {
    const server = this.server
    this.#state = 'waiting'
    this.#leaveServer()
    if (this.#visit!.passAgain(status)) return true
    this.#state = 'sent'
    this.#enter(server)
    return false
  }

  takenTooSlowly(): void {
    // It is counted as forwarded if the upstream was done.
    if (this.#state === 'over') return
    this.failure = TOO_SLOW
    if (this.#desert()) return
    this.#end('failed', this.#res.statusCode)
    this.#forwarding?.abort()
  }

  end(why: 'hang-up' | 'shutdown'): void {
    if (why === 'shutdown') return this.#shutDown()
    if (this.#state !== 'over' && !this.#isDeserted && !this.#res.headersSent && this.#visit !== undefined) {
      const now = this.#context.clock.now()
      this.#request.prospects?.left(this.#visit.waited(now), now)
    }
    if (this.#desert()) return
    // First: counting it out may close an upstream that nobody uses any more, and that would fail the request.
    this.#forwarding?.abort()
    this.countOut()
    if (this.#state !== 'over') this.#endUnread()
  }

  #shutDown(): void {
    if (this.#state === 'sent') {
      const isRepeatable = this.#forwarding?.connecting === true || isIdempotent(this.facts.method)
      return this.#endWith('failed', isRepeatable ? SHUTTING_DOWN : MAYBE_SERVED)
    }
    if (this.#state !== 'over') return this.#endWith('expired', SHUTTING_DOWN)
    const isCut = this.#forwarding?.isPartial
    this.#forwarding?.abort()
    if (isCut) this.#res.cut()
  }

  #fail(failure: Failure): void {
    const { status, detail } = failure
    this.failure = failure
    this.#endWith('failed', { status, detail, close: status === 408 })
  }

  #refuse(refusal: Refusal): void {
    this.#endWith('refused', refused(refusal))
  }

  #endWith(outcome: Outcome, reply: Reply): void {
    if (outcome === 'refused') this.failure = reply
    this.#end(outcome, reply.status)
    this.#forwarding?.abort()
    if (this.#res.headersSent) this.#res.cut()
    else this.#reply(outcome, reply)
  }

  #reply(outcome: Outcome, reply: Reply): void {
    const more: string[] = []
    this.#upgrade?.unwatch()
    this.#addAbout(more)
    more.push(...this.#closing(reply.close === true || this.#body.hasLongRest))
    if (this.#req.isHttp2 && isGrpc(this.#req)) sendGrpcReply(this.#res, outcome, reply, more)
    else sendReply(this.#res, reply, more)
    this.#res.limitFlush(this.#context.flush)
    this.#body.linger()
  }

  /** Its client did not get all of the answer: it is gone, or was cut. */
  #endUnread(): void {
    if (this.failure === TOO_SLOW) this.#end('failed', this.#res.statusCode)
    else this.#end('cancelled', 499)
  }

  #endDeserted(): void {
    this.#endUnread()
    this.#forwarding?.flushed?.()
    this.countOut()
  }

  #end(outcome: Outcome, status: number): void {
    const state = this.#state
    if (outcome === 'forwarded') this.#settlement?.answered(status)
    else this.#settlement?.end(state === 'sent' ? 'sent' : 'never-sent')
    // The breaker has kept it from its upstream, after other requests.
    if (outcome === 'failed') this.failure ??= this.#request.route?.upstream.failure
    this.#context.observer.finished?.(this, outcome, status)
    const isTried = outcome === 'forwarded' || (outcome === 'failed' && this.failure?.isEarlier !== true)
    this.#req.stored?.ended(outcome, isTried ? 'tried' : 'untried')
    this.#state = 'over'
    this.#cancelConnectionWait?.()
    this.#report?.dropped()
    this.#body.end()
    this.#leaveServer()
    if (state === 'released') this.#visit!.endUnsent()
    else this.#visit?.end()
    this.#rehearsal?.end()
    for (const bucket of this.stack) this.#context.bucketTable.rest(bucket)
    this.#coalesced?.end()
  }

  answerSent(): void {
    this.#forwarding?.flushed?.()
    this.#connection.done()
    this.countOut()
  }

  countOut(): void {
    if (!this.#counted) return
    this.#counted = false
    const { route } = this.#request
    if (route !== undefined) requestEnded(route.upstream)
    this.#context.inProgress -= 1
    if (this.#context.inProgress === 0) this.#context.idle()
  }
}

function mayHideHangUp({ chunked, contentLength = 0, expectContinue }: RequestFacts): boolean {
  return (chunked || contentLength > HIDING) && !expectContinue
}

function toTenth(ms: number): number {
  return Math.round(ms * 10) / 10
}
