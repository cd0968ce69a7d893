/**
 * One request, from its arrival to its one outcome.
 *
 * It is `deciding` where a store is asked, `waiting` in a lane, `checking` whether its client is still there, `forwarding`, or `over`; only the step that
 * makes it `over` tells the observer, so that every request is counted exactly once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { PassThrough } from 'node:stream'
import { type Rejection, type SharedBucket, Ticket } from '../core/lane.js'
import type { Arrival, Verdict } from '../core/shaper.js'
import type { Applicant } from '../core/shared-shaper.js'
import type { Fields } from '../quota/fields.js'
import { admit, rehearse } from './admission.js'
import { CHECKED, mayHideHangUp, readAhead } from './body-check.js'
import { ClientSide } from './client-side.js'
import type { Connection, Turn } from './connection.js'
import type { Outcome } from './events.js'
import { type Explanation, explain } from './explain.js'
import { createFeed } from './feed.js'
import { type ForwardEnd, Forwarding } from './forward.js'
import { upstreamHeaders } from './headers.js'
import { type Line, leaveGate } from './line.js'
import { rejectionReply } from './rejection.js'
import { heldBack, limitHeaders, MALFORMED, type Reply, SHUTTING_DOWN, SOON, tooLate } from './reply.js'
import { isIdempotent, Refusal, type RequestFacts, readRequest } from './request.js'
import type { Route } from './route.js'
import { findStack } from './stack.js'
import { hostTowards } from './upstream.js'

const BODY_BUFFER = 64 * 1024

export class Exchange implements Turn, Applicant {
  protected readonly line: Line
  protected readonly connection: Connection
  protected readonly req: IncomingMessage
  protected readonly res: ServerResponse
  protected facts!: RequestFacts
  protected route: Route | undefined
  readonly #client: ClientSide
  #state: 'arriving' | 'deciding' | 'waiting' | 'checking' | 'forwarding' | 'over' = 'arriving'
  #stack: readonly SharedBucket[] = []
  #ticket: Ticket | undefined
  #wait = 0
  /** What it asks the buckets for. */
  #arrival: Arrival | undefined
  /** ms; when it was decided on, and how long it may wait from then on. */
  #arrivedAt = 0
  #maxWait = Infinity
  /** How often it has been sent anew. */
  #retries = 0
  /** `Prefer: wait` that was honoured, in seconds. */
  #preferred: number | undefined
  /** Where the route explains itself. */
  #explanation: Explanation | undefined
  #holdsGate = false
  #forwarding: { abort(): void; flushed?(): void } | undefined
  #feed: PassThrough | null = null
  /** In the line's `inProgress`. */
  #counted = false
  #spoiled = false

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

  start(): void {
    this.#counted = true
    this.line.inProgress += 1
    if (this.#spoiled) return this.#answer('refused', MALFORMED)
    const facts = readRequest(this.req)
    if (facts instanceof Refusal) return this.#refuse(facts)
    this.facts = facts
    if (this.line.draining) return this.#answer('refused', SHUTTING_DOWN)
    const route = this.line.routes.find(candidate => candidate.matches(facts))
    if (route === undefined) return this.#refuse(new Refusal(404, 'no route matches'))
    this.route = route
    if (route.settings.mode === 'off') return this.forward()
    const stack = findStack(this.line, this.connection, route, facts)
    if (stack instanceof Refusal) {
      if (!route.settings.dryRun) return this.#refuse(stack)
      this.line.observer.rehearsed?.(route.name, 'would_reject', '', 0)
      return this.forward()
    }
    this.#stack = stack.buckets
    const arrival = { route: route.lane, stack: stack.buckets, cost: route.cost(facts), weight: stack.weight }
    if (route.settings.explain) this.#explanation = explain(arrival, this.line.clock.now())
    if (!route.settings.dryRun) return this.#admit(route, arrival)
    rehearse(this.line, route, arrival)
    this.forward()
  }

  abandon(): void {
    this.settle()
    if (this.#state === 'over') this.#forwarding?.abort()
    else this.#leave('cancelled', 499)
  }

  release(slot: number, now: number): void {
    if (this.#state !== 'waiting') {
      // It ended while its release was on the way: the gate first, so that the slot finds it open.
      this.route!.lane.gate.leave()
      return this.line.shaper.giveBack(this.#ticket!)
    }
    this.#holdsGate = true
    this.#wait = now - this.#ticket!.arrivedAt
    this.line.observer.released?.(this.route!.name, this.#wait, now - slot)
    this.#keepReady()
    if (!mayHideHangUp(this.facts)) return this.forward()
    this.#state = 'checking'
    this.#feed = createFeed(this.req, CHECKED)
    readAhead(this.#feed, () => this.#state === 'checking' && this.forward())
  }

  expire(now: number): void {
    const pause = this.route!.lane.gate.pausedFor(now)
    this.#answer('expired', pause > 0 ? heldBack(pause) : tooLate(now - this.#ticket!.arrivedAt))
  }

  reject(rejection: Rejection): void {
    this.#reject(this.route!, rejection)
  }

  spoil(): void {
    if (this.#state === 'arriving') this.#spoiled = true
    else if (this.#state === 'over') this.connection.socket.destroy()
    else this.#stop(this.#state === 'forwarding' ? 'failed' : 'refused', MALFORMED)
  }

  cutOff(): void {
    if (this.#state === 'over') this.#forwarding?.abort()
    else this.#stop(this.#state === 'forwarding' ? 'failed' : 'expired', SHUTTING_DOWN)
  }

  /** Sends the request upstream and the answer back. */
  protected forward(): void {
    this.#state = 'forwarding'
    if (this.facts.expectContinue && this.req.httpVersionMinor > 0) this.res.writeContinue()
    this.#forwarding = this.send()
  }

  protected send(): { abort(): void; flushed?(): void } {
    const { facts, req, res } = this
    this.#feed ??= this.#mayHaveBody() ? createFeed(req, BODY_BUFFER) : null
    const headers = this.upstreamHeaders()
    return new Forwarding({ upstream: this.route!.upstream, facts, headers, body: this.#feed, req, res, owner: this })
  }

  protected upstreamHeaders(): string[] {
    const { connection, facts, line } = this
    const { peer: address, encrypted } = connection
    const peer = { address, encrypted, trusted: line.trust(address, 0) }
    return upstreamHeaders(facts, peer, hostTowards(this.route!.upstream, facts.host))
  }

  /** What is added to the answer's headers: names and values in turn. */
  answerHeaders(): string[] {
    const headers: string[] = []
    const { settings } = this.route!
    if (settings.headers && this.#stack.length > 0) {
      headers.push(...limitHeaders(this.#stack, this.#stack, this.line.clock.now()))
      headers.push('Server-Timing', `shaper;dur=${Math.round(this.#wait * 10) / 10}`)
    }
    headers.push(...this.#notes())
    headers.push(...this.#client.closing())
    return headers
  }

  /** The upstream's answer has come: whether the request goes back into its queue instead. */
  answered(status: number, fields: Fields): boolean {
    const { quota, settings } = this.route!.upstream
    quota?.hear(status, fields)
    const { retry } = settings
    if (retry === undefined || this.#retries >= retry.max || !retry.status.includes(status)) return false
    return this.#goBack(status)
  }

  #goBack(status: number): boolean {
    const { line, route } = this
    const arrival = this.#arrival
    if (arrival === undefined || route!.settings.mode !== 'shape') return false
    if (this.#feed !== null || !isIdempotent(this.facts.method)) return false
    const { gate } = arrival.route
    // Its place is free for whoever is next, and that may be itself.
    gate.leave()
    const ticket = line.shaper.requeue(arrival, this, this.#maxWait, this.#arrivedAt)
    if (ticket === undefined) {
      gate.enter()
      return false
    }
    this.#holdsGate = false
    this.#forwarding = undefined
    this.#ticket = ticket
    this.#state = 'waiting'
    this.#retries += 1
    line.observer.retried?.(route!.name, status)
    line.observer.queued?.(route!.name)
    line.shaper.wake(gate)
    return true
  }

  /** Forwarding has ended. */
  forwarded(end: ForwardEnd): void {
    if (end.kind === 'answered') {
      this.over('forwarded', this.res.statusCode)
      return this.#client.linger(this.#mayHaveBody())
    }
    this.line.observer.failed?.(this.route!.name, end.detail, end.kind === 'failed' ? end.cause : undefined)
    if (end.kind === 'broken') this.over('failed', this.res.statusCode)
    else this.#answer('failed', { status: end.status, detail: end.detail, close: end.status === 408 })
  }

  #admit(route: Route, arrival: Arrival): void {
    let { maxWait } = route.settings
    const { preferWait } = this.facts
    if (preferWait !== undefined && preferWait * 1_000 <= maxWait && route.settings.mode === 'shape') {
      maxWait = preferWait * 1_000
      this.#preferred = preferWait
    }
    this.#state = 'deciding'
    this.#arrivedAt = this.line.clock.now()
    this.#maxWait = maxWait
    this.#arrival = arrival
    admit(this.line, route, arrival, this, maxWait)
  }

  decided(verdict: Verdict): void {
    const route = this.route!
    if (this.#state !== 'deciding') return this.#undo(verdict)
    if (verdict === 'released') {
      this.#holdsGate = true
      if (route.settings.mode === 'shape') this.line.observer.released?.(route.name, 0, 0)
      this.forward()
    } else if (verdict instanceof Ticket) {
      this.#ticket = verdict
      this.#state = 'waiting'
      this.line.observer.queued?.(route.name)
      this.#keepReady()
    } else this.#reject(route, verdict)
  }

  /** It has ended before it was decided on. */
  #undo(verdict: Verdict): void {
    if (verdict instanceof Ticket) this.line.shaper.cancel(verdict)
    else if (verdict === 'released') leaveGate(this.line, this.route!.lane.gate)
  }

  #keepReady(): void {
    const { connector, gate } = this.route!.upstream
    connector.keepReady(gate.inFlight)
  }

  #reject(route: Route, rejection: Rejection): void {
    this.#answer('rejected', rejectionReply(rejection, route, this.#stack, this.#arrival!.cost, this.line.clock.now()))
  }

  #refuse({ status, detail, close }: Refusal): void {
    this.#answer('refused', { status, detail, close, ...(status === 503 && { retryAfterMs: SOON }) })
  }

  /** Takes it out of wherever it is; its place goes to whoever is next. */
  #leave(outcome: Outcome, status: number): void {
    const state = this.#state
    if (state === 'waiting') this.line.shaper.cancel(this.#ticket!)
    this.over(outcome, status)
    if (state === 'checking') this.line.shaper.giveBack(this.#ticket!)
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
    if (this.#explanation !== undefined) notes.push('Shaper-Explain', this.#explanation(this.#wait))
    return notes
  }

  /** Where the answer goes to a socket that is not the response's yet. */
  protected beforeReply(): void {}

  protected over(outcome: Outcome, status: number): void {
    this.#state = 'over'
    this.line.observer.finished?.(this.route?.name ?? '', outcome, status)
    if (!this.#holdsGate) return
    this.#holdsGate = false
    leaveGate(this.line, this.route!.lane.gate)
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
