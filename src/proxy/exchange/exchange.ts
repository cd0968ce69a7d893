/**
 * One request, from its arrival to its one outcome.
 *
 * It is on its way (queue-visit.ts), `checking` whether its client is still there, `forwarding`, or `over`; only the step that
 * makes it `over` tells the observer, so that every request is counted exactly once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { SharedBucket } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import type { Fields } from '../../http/quota/quota-fields.js'
import type { ProxyContext } from '../context.js'
import { Feed } from '../http/body-stream.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection.js'
import { mayHideHangUp } from '../http/hang-up-check.js'
import { upstreamHeaders } from '../http/headers.js'
import { limitHeaders, QUEUE_FULL, RETRY_SOON_MS, type Reply, SHUTTING_DOWN } from '../http/reply.js'
import { headerValue, isIdempotent, Refusal, type RequestFacts, readRequest } from '../http/request.js'
import type { Outcome } from '../observe/observer.js'
import { type Explanation, explainHeader } from '../routing/explain-header.js'
import type { Route } from '../routing/route.js'
import { hostTowards } from '../upstream/upstream.js'
import { rehearse } from './admit.js'
import { findStack } from './find-stack.js'
import { type Failure, type ForwardEnd, Forwarding } from './forwarding.js'
import { QueueVisit, type Visitor } from './queue-visit.js'
import { ClientResponse } from './response.js'

/** Bytes. The rest of a longer body is not read for the sake of its connection: the answer says that it closes. */
const LONG_BODY = 1024 * 1024

const NOTHING: readonly never[] = []

const LOOP = new Refusal(508, 'the request has passed this shaper before: its upstream leads back here')

export class Exchange implements PipelinedRequest, Visitor {
  protected readonly line: ProxyContext
  protected readonly connection: ClientConnection
  protected readonly req: IncomingMessage
  protected readonly res: ServerResponse
  protected facts!: RequestFacts
  protected taken: Route | undefined
  stack: readonly SharedBucket[] = NOTHING
  keys: readonly string[] = NOTHING
  cost = 0
  upstreamTime: number | undefined
  readonly #client: ClientResponse
  #state: 'arriving' | 'passing' | 'checking' | 'forwarding' | 'over' = 'arriving'
  #passage: QueueVisit | undefined
  /** ms */
  #sentAt = 0
  /** `Prefer: wait` that was honoured, in seconds. */
  #preferred: number | undefined
  /** Where the route explains itself. */
  #explanation: Explanation | undefined
  #forwarding: { abort(): void; flushed?(): void } | undefined
  #feed: Feed | null = null
  /** Why it was sent again, until there is an answer. */
  #lost: Failure | undefined
  /** How often it was sent again because a connection broke: not what `retry.max` counts. */
  #losses = 0
  /** In the line's `inProgress`. */
  #counted = false
  #spoiled: Reply | undefined

  constructor(line: ProxyContext, connection: ClientConnection, req: IncomingMessage, res: ServerResponse) {
    this.line = line
    this.connection = connection
    this.req = req
    this.res = res
    this.#client = new ClientResponse(line, connection, req, res)
    res.once('finish', this.#finished)
  }

  get receiving(): boolean {
    return !this.req.complete
  }

  get route(): string {
    return this.taken?.name ?? ''
  }

  get method(): string {
    return this.req.method ?? ''
  }

  get target(): string {
    return this.req.url ?? ''
  }

  get wait(): number {
    return this.#passage?.wait ?? 0
  }

  get retries(): number {
    return this.#passage?.retries ?? 0
  }

  get inFlight(): boolean {
    return this.#state === 'forwarding'
  }

  header(name: string): string | undefined {
    return headerValue(this.req.rawHeaders, name)
  }

  start(sentAhead: boolean): void {
    this.#counted = true
    this.line.inProgress += 1
    if (!sentAhead) return this.#begin()
    setImmediate(() => {
      if (this.#state === 'arriving') this.#begin()
    })
  }

  #begin(): void {
    if (this.#spoiled !== undefined) return this.#answer('refused', this.#spoiled)
    const facts = readRequest(this.req)
    if (facts instanceof Refusal) return this.#refuse(facts)
    this.facts = facts
    if (this.connection.excess) return this.#answer('refused', QUEUE_FULL)
    if (this.line.draining) return this.#answer('refused', SHUTTING_DOWN)
    const route = this.line.routes.find(candidate => candidate.matches(facts))
    if (route === undefined) return this.#refuse(new Refusal(404, 'no route matches'))
    this.taken = route
    if (facts.via !== undefined && route.upstream.settings.via && this.line.via.isIn(facts.via)) {
      return this.#refuse(LOOP)
    }
    if (route.settings.mode === 'off') return this.forward()
    const stack = findStack(this.line, this.connection, route, facts)
    if (stack instanceof Refusal) {
      if (!route.settings.dryRun) return this.#refuse(stack)
      this.line.observer.rehearsed?.(this, 'would_reject', '', 0)
      return this.forward()
    }
    this.stack = stack.buckets
    this.keys = stack.keys
    this.cost = route.cost(facts)
    const arrival = { route: route.lane, stack: stack.buckets, cost: this.cost, weight: stack.weight }
    if (route.settings.explain) this.#explanation = explainHeader(arrival, this.line.clock.now())
    this.line.observer.arrived?.(this)
    if (!route.settings.dryRun) return this.#pass(route, arrival)
    rehearse(this.line, route, arrival, this)
    this.forward()
  }

  #pass(route: Route, arrival: Arrival): void {
    let { maxWait } = route.settings
    const { preferWait } = this.facts
    if (preferWait !== undefined && preferWait * 1_000 <= maxWait && route.settings.mode === 'shape') {
      maxWait = preferWait * 1_000
      this.#preferred = preferWait
    }
    this.#state = 'passing'
    this.#passage = new QueueVisit(this.line, route, this, arrival, maxWait)
    this.#passage.start()
  }

  passed(queued: boolean): void {
    const { unread, socket } = this.connection
    const hides = mayHideHangUp(this.facts)
    if (!queued || !(hides || unread)) return this.forward()
    this.#state = 'checking'
    if (!hides) {
      // An empty write fails where the client has reset the connection, which ends this.
      socket.write('', error => {
        if (!error && this.#state === 'checking') this.forward()
      })
      return
    }
    this.#feed = new Feed(this.req)
    this.#feed.readAhead(() => this.#state === 'checking' && this.forward())
  }

  turnedAway(outcome: 'rejected' | 'expired', reply: Reply): void {
    if (this.#lost !== undefined && outcome === 'rejected') this.#fail(this.#lost)
    else this.#answer(outcome, reply)
  }

  abandon(): void {
    this.settle()
    if (this.#state === 'over') this.#forwarding?.abort()
    else this.#leave('cancelled', 499)
  }

  spoil(reply: Reply): void {
    if (this.#state === 'arriving') this.#spoiled = reply
    else if (this.#state === 'over') this.connection.socket.destroy()
    else this.#stop(this.#state === 'forwarding' ? 'failed' : 'refused', reply)
  }

  cutOff(): void {
    if (this.#state === 'over') this.#forwarding?.abort()
    else this.#stop(this.#state === 'forwarding' ? 'failed' : 'expired', SHUTTING_DOWN)
  }

  /** The head of the upstream's answer is here. */
  protected markAnswered(): void {
    this.upstreamTime ??= this.line.clock.now() - this.#sentAt
  }

  /** Sends the request upstream and the answer back. */
  protected forward(): void {
    this.#state = 'forwarding'
    this.#sentAt = this.line.clock.now()
    this.upstreamTime = undefined
    this.line.observer.sent?.(this)
    if (this.facts.expectContinue && this.retries === 0 && this.req.httpVersionMinor > 0) this.res.writeContinue()
    this.#forwarding = this.send()
  }

  protected send(): { abort(): void; flushed?(): void } {
    const { facts, req, res } = this
    this.#feed ??= this.#mayHaveBody() ? new Feed(req) : null
    const headers = this.upstreamHeaders()
    const { upstream } = this.taken!
    const gated = this.#passage !== undefined
    return new Forwarding({ upstream, gated, facts, headers, body: this.#feed, req, res, owner: this })
  }

  protected upstreamHeaders(): string[] {
    const { connection, facts, line } = this
    const taken = this.taken!
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: line.trust(address, 0) }
    const { upstream, reads } = taken
    const host = hostTowards(upstream, facts.host)
    const via = upstream.settings.via ? line.via.value(facts.oldHttp) : undefined
    return upstreamHeaders(facts, peer, { host, via, kept: reads })
  }

  /** What is added to the headers of an answer with this status: names and values in turn. */
  answerHeaders(status: number): string[] {
    this.markAnswered()
    const headers: string[] = []
    const { settings } = this.taken!
    if (settings.headers && this.stack.length > 0) {
      headers.push(...limitHeaders(this.stack, this.stack, this.line.clock.now()))
      headers.push('Server-Timing', `shaper;dur=${Math.round(this.wait * 10) / 10}`)
    }
    headers.push(...this.#notes())
    // A refusal in the middle of the upload. Another early answer may go on beside it.
    headers.push(...this.#client.closing(status >= 300 && this.#hasLongRest()))
    return headers
  }

  /** The upstream's answer has come: what to do when it is over where the request has gone back into its queue instead. */
  answered(status: number, fields: Fields): (() => void) | undefined {
    const { quota, settings } = this.taken!.upstream
    quota?.hear(settings, status, fields)
    const { retry } = settings
    if (retry === undefined || !retry.status.includes(status)) return undefined
    if (this.retries - this.#losses >= retry.max) return undefined
    if (this.#passage === undefined || this.#feed !== null || !isIdempotent(this.facts.method)) return undefined
    const forwarding = this.#forwarding
    this.#state = 'passing'
    this.#forwarding = undefined
    const over = this.#passage.goBack(status)
    if (over !== undefined) {
      this.#lost = undefined
      return over
    }
    this.#state = 'forwarding'
    this.#forwarding = forwarding
    return undefined
  }

  /** Forwarding has ended. */
  forwarded(end: ForwardEnd): void {
    if (end.kind === 'answered') {
      this.over('forwarded', this.res.statusCode)
      return this.#client.linger(this.#mayHaveBody())
    }
    if (end.kind === 'failed') {
      if (!this.#sendAgain(end)) this.#fail(end)
      return
    }
    this.line.observer.failed?.(this.route, end.detail)
    this.over('failed', this.res.statusCode)
  }

  /** Sends it once more where that may help; false: it stays as it is. */
  #sendAgain(end: Failure): boolean {
    if (!end.repeatable || this.#lost !== undefined) return false
    this.#lost = end
    if (this.#passage === undefined) {
      this.#forwarding = this.send()
      return true
    }
    this.#state = 'passing'
    this.#forwarding = undefined
    this.#losses += 1
    if (this.#passage.passAgain(end.status)) return true
    this.#losses -= 1
    this.#state = 'forwarding'
    return false
  }

  #fail({ status, detail, cause }: Failure): void {
    this.line.observer.failed?.(this.route, detail, cause)
    this.#answer('failed', { status, detail, close: status === 408 })
  }

  #refuse({ status, detail, close }: Refusal): void {
    this.#answer('refused', { status, detail, close, ...(status === 503 && { retryAfterMs: RETRY_SOON_MS }) })
  }

  /** Takes it out of wherever it is; its place goes to whoever is next. */
  #leave(outcome: Outcome, status: number): void {
    this.over(outcome, status)
    this.#forwarding?.abort()
    this.#feed?.destroy()
  }

  /** Ends it wherever it is. A client that has part of an answer learns so by the end of its connection. */
  #stop(outcome: Outcome, reply: Reply): void {
    this.#leave(outcome, reply.status)
    if (this.res.headersSent) this.res.destroy()
    else this.#reply(reply)
  }

  #answer(outcome: Outcome, reply: Reply): void {
    this.over(outcome, reply.status)
    this.#reply(reply)
  }

  #reply(reply: Reply): void {
    this.beforeReply()
    const close = reply.close === true || this.#hasLongRest()
    this.#client.reply({ ...reply, close }, this.#notes(), this.#mayHaveBody())
  }

  /** False: it has none. Before its facts are known it may. */
  #mayHaveBody(): boolean {
    const facts = this.facts as RequestFacts | undefined
    return facts === undefined || facts.chunked || (facts.contentLength ?? 0) > 0
  }

  /** Whether too much of the body is still to come for the connection to be worth keeping. */
  #hasLongRest(): boolean {
    const facts = this.facts as RequestFacts | undefined
    return (facts?.contentLength ?? 0) > LONG_BODY && !this.req.complete
  }

  /** What an answer tells of its request besides the limits: headers' names and values in turn. */
  #notes(): string[] {
    const notes = this.#preferred === undefined ? [] : ['Preference-Applied', `wait=${this.#preferred}`]
    if (this.#explanation !== undefined) notes.push('Shaper-Explain', this.#explanation(this.wait))
    return notes
  }

  /** Where the answer goes to a socket that is not the response's yet. */
  protected beforeReply(): void {}

  protected over(outcome: Outcome, status: number): void {
    const state = this.#state
    this.line.observer.finished?.(this, outcome, status)
    this.#state = 'over'
    if (state === 'checking') this.#passage!.endUnsent()
    else this.#passage?.end()
  }

  readonly #finished = (): void => {
    this.#forwarding?.flushed?.()
    this.connection.done()
    this.settle()
  }

  /** Nothing more is to come of it. */
  protected settle(): void {
    if (!this.#counted) return
    this.#counted = false
    this.line.inProgress -= 1
    if (this.line.inProgress === 0) this.line.idle()
  }
}
