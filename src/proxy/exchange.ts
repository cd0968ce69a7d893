/**
 * One request, from its arrival to its one outcome.
 *
 * It is on its way (passage.ts), `checking` whether its client is still there, `forwarding`, or `over`; only the step that
 * makes it `over` tells the observer, so that every request is counted exactly once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { PassThrough } from 'node:stream'
import type { SharedBucket } from '../core/lane.js'
import type { Arrival } from '../core/shaper.js'
import type { Fields } from '../quota/fields.js'
import { rehearse } from './admission.js'
import { CHECKED, mayHideHangUp, readAhead } from './body-check.js'
import { ClientSide } from './client-side.js'
import type { Connection, Turn } from './connection.js'
import type { Outcome } from './events.js'
import { type Explanation, explain } from './explain.js'
import { createFeed } from './feed.js'
import { type ForwardEnd, Forwarding } from './forward.js'
import { upstreamHeaders } from './headers.js'
import type { Line } from './line.js'
import { Passage, type Passenger } from './passage.js'
import { CROWDED, limitHeaders, type Reply, SHUTTING_DOWN, SOON } from './reply.js'
import { headerValue, isIdempotent, Refusal, type RequestFacts, readRequest } from './request.js'
import type { Route } from './route.js'
import { findStack } from './stack.js'
import { hostTowards } from './upstream.js'

const BODY_BUFFER = 64 * 1024

const NOTHING: readonly never[] = []

export class Exchange implements Turn, Passenger {
  protected readonly line: Line
  protected readonly connection: Connection
  protected readonly req: IncomingMessage
  protected readonly res: ServerResponse
  protected facts!: RequestFacts
  protected taken: Route | undefined
  stack: readonly SharedBucket[] = NOTHING
  keys: readonly string[] = NOTHING
  cost = 0
  upstreamTime: number | undefined
  readonly #client: ClientSide
  #state: 'arriving' | 'passing' | 'checking' | 'forwarding' | 'over' = 'arriving'
  #passage: Passage | undefined
  /** ms */
  #sentAt = 0
  /** `Prefer: wait` that was honoured, in seconds. */
  #preferred: number | undefined
  /** Where the route explains itself. */
  #explanation: Explanation | undefined
  #forwarding: { abort(): void; flushed?(): void } | undefined
  #feed: PassThrough | null = null
  /** In the line's `inProgress`. */
  #counted = false
  #spoiled: Reply | undefined

  constructor(line: Line, connection: Connection, req: IncomingMessage, res: ServerResponse) {
    this.line = line
    this.connection = connection
    this.req = req
    this.res = res
    this.#client = new ClientSide(line, connection, req, res)
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

  start(): void {
    this.#counted = true
    this.line.inProgress += 1
    if (this.#spoiled !== undefined) return this.#answer('refused', this.#spoiled)
    const facts = readRequest(this.req)
    if (facts instanceof Refusal) return this.#refuse(facts)
    this.facts = facts
    if (this.connection.excess) return this.#answer('refused', CROWDED)
    if (this.line.draining) return this.#answer('refused', SHUTTING_DOWN)
    const route = this.line.routes.find(candidate => candidate.matches(facts))
    if (route === undefined) return this.#refuse(new Refusal(404, 'no route matches'))
    this.taken = route
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
    if (route.settings.explain) this.#explanation = explain(arrival, this.line.clock.now())
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
    this.#passage = new Passage(this.line, route, this, arrival, maxWait)
    this.#passage.start()
  }

  passed(queued: boolean): void {
    if (!queued || !mayHideHangUp(this.facts)) return this.forward()
    this.#state = 'checking'
    this.#feed = createFeed(this.req, CHECKED)
    readAhead(this.#feed, () => this.#state === 'checking' && this.forward())
  }

  turnedAway(outcome: 'rejected' | 'expired', reply: Reply): void {
    this.#answer(outcome, reply)
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
    this.#feed ??= this.#mayHaveBody() ? createFeed(req, BODY_BUFFER) : null
    const headers = this.upstreamHeaders()
    return new Forwarding({ upstream: this.taken!.upstream, facts, headers, body: this.#feed, req, res, owner: this })
  }

  protected upstreamHeaders(): string[] {
    const { connection, facts, line } = this
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: line.trust(address, 0) }
    return upstreamHeaders(facts, peer, hostTowards(this.taken!.upstream, facts.host))
  }

  /** What is added to the answer's headers: names and values in turn. */
  answerHeaders(): string[] {
    this.markAnswered()
    const headers: string[] = []
    const { settings } = this.taken!
    if (settings.headers && this.stack.length > 0) {
      headers.push(...limitHeaders(this.stack, this.stack, this.line.clock.now()))
      headers.push('Server-Timing', `shaper;dur=${Math.round(this.wait * 10) / 10}`)
    }
    headers.push(...this.#notes())
    headers.push(...this.#client.closing())
    return headers
  }

  /** The upstream's answer has come: what to do when it is over where the request has gone back into its queue instead. */
  answered(status: number, fields: Fields): (() => void) | undefined {
    const { quota, settings } = this.taken!.upstream
    quota?.hear(settings, status, fields)
    const { retry } = settings
    if (retry === undefined || this.retries >= retry.max || !retry.status.includes(status)) return undefined
    if (this.#passage === undefined || this.#feed !== null || !isIdempotent(this.facts.method)) return undefined
    const forwarding = this.#forwarding
    this.#state = 'passing'
    this.#forwarding = undefined
    const over = this.#passage.goBack(status)
    if (over !== undefined) return over
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
    this.line.observer.failed?.(this.route, end.detail, end.kind === 'failed' ? end.cause : undefined)
    if (end.kind === 'broken') this.over('failed', this.res.statusCode)
    else this.#answer('failed', { status: end.status, detail: end.detail, close: end.status === 408 })
  }

  #refuse({ status, detail, close }: Refusal): void {
    this.#answer('refused', { status, detail, close, ...(status === 503 && { retryAfterMs: SOON }) })
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
    this.#client.reply(reply, this.#notes(), this.#mayHaveBody())
  }

  /** False: it has none. Before its facts are known it may. */
  #mayHaveBody(): boolean {
    const facts = this.facts as RequestFacts | undefined
    return facts === undefined || facts.chunked || (facts.contentLength ?? 0) > 0
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
    this.settle()
    this.connection.done()
  }

  /** Nothing more is to come of it. */
  protected settle(): void {
    if (!this.#counted) return
    this.#counted = false
    this.line.inProgress -= 1
    if (this.line.inProgress === 0) this.line.idle()
  }
}
