/**
 * One request, from its arrival to its one outcome.
 *
 * It is `waiting` in a lane, `checking` whether its client is still there, `forwarding`, or `over`; only the step that
 * makes it `over` tells the observer, so that every request is counted exactly once.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { PassThrough } from 'node:stream'
import type { SharedBucket } from '../core/lane.js'
import { Ticket, type Waiter } from '../core/lane.js'
import type { Rejection } from '../core/shaper.js'
import { addressKey, clientAddress } from './address.js'
import type { Connection, Turn } from './connection.js'
import type { Outcome } from './events.js'
import { createFeed, type ForwardEnd, Forwarding } from './forward.js'
import { upstreamHeaders } from './headers.js'
import { type Line, leaveGate } from './line.js'
import { lingerOver } from './linger.js'
import { type Reply, rateLimit, rateLimitPolicy, sendReply } from './reply.js'
import { Refusal, type RequestFacts, readRequest } from './request.js'
import type { Route } from './route.js'

/** A longer unread body may hide from us that the client has hung up (the kernel holds what it sent after it). */
const HIDING_BODY = 64 * 1024

/** How much of such a body is read before its slot is spent. */
const CHECKED_BODY = 256 * 1024

const BODY_BUFFER = 64 * 1024

export class Exchange implements Turn, Waiter {
  protected readonly line: Line
  protected readonly connection: Connection
  protected readonly req: IncomingMessage
  protected readonly res: ServerResponse
  protected facts!: RequestFacts
  protected route: Route | undefined
  #state: 'arriving' | 'waiting' | 'checking' | 'forwarding' | 'over' = 'arriving'
  #stack: SharedBucket[] = []
  #ticket: Ticket | undefined
  #wait = 0
  /** `Prefer: wait` that was honoured, in seconds. */
  #preferred: number | undefined
  #holdsGate = false
  #forwarding: { abort(): void; flushed?(): void } | undefined
  #feed: PassThrough | null = null
  /** In the line's `inProgress`. */
  #counted = false

  constructor(line: Line, connection: Connection, req: IncomingMessage, res: ServerResponse) {
    this.line = line
    this.connection = connection
    this.req = req
    this.res = res
    res.once('finish', this.#finished)
  }

  start(): void {
    this.#counted = true
    this.line.inProgress += 1
    const facts = readRequest(this.req)
    if (facts instanceof Refusal) return this.#refuse(facts)
    this.facts = facts
    if (this.line.draining) return this.#turnAway('shaper is shutting down')
    const route = this.line.routes.find(candidate => candidate.matches(facts))
    if (route === undefined) return this.#refuse(new Refusal(404, 'no route matches'))
    this.route = route
    if (route.settings.mode === 'off') return this.forward()
    const missing = this.#collect(route)
    if (missing !== undefined) return missing()
    const arrival = { route, stack: this.#stack, cost: route.cost(facts) }
    if (route.settings.dryRun) this.#rehearse(route, arrival)
    else if (route.settings.mode === 'meter') this.#meter(route, arrival)
    else this.#shape(route, arrival)
  }

  /** The client hung up. */
  abandon(): void {
    this.settle()
    const state = this.#state
    if (state === 'over') {
      this.#forwarding?.abort()
      return
    }
    if (state === 'waiting') this.line.shaper.cancel(this.#ticket!)
    this.over('cancelled', 499)
    if (state === 'checking') this.line.shaper.giveBack(this.#ticket!)
    this.#forwarding?.abort()
    this.#feed?.destroy()
  }

  release(slot: number, now: number): void {
    this.#holdsGate = true
    this.#wait = now - this.#ticket!.arrivedAt
    this.line.observer.released?.(this.route!.name, this.#wait, now - slot)
    const { chunked, contentLength, expectContinue } = this.facts
    const hiding = (chunked || (contentLength ?? 0) > HIDING_BODY) && !expectContinue
    if (!hiding) return this.forward()
    this.#state = 'checking'
    this.#feed = createFeed(this.req, CHECKED_BODY)
    this.#checkBody(0, 0)
  }

  expire(now: number): void {
    const waited = ((now - this.#ticket!.arrivedAt) / 1_000).toFixed(1)
    this.#answer('expired', { status: 503, detail: `still queued after ${waited} s`, retryAfterMs: 1_000 })
  }

  /** Whether the client is still sending its body. */
  get receiving(): boolean {
    return !this.req.complete
  }

  /** The rest of the body cannot be understood. */
  spoil(): void {
    if (this.#state === 'over') return this.res.socket?.destroy() as undefined
    if (this.#state === 'waiting') this.line.shaper.cancel(this.#ticket!)
    this.#forwarding?.abort()
    if (this.res.headersSent) {
      this.over('failed', 400)
      this.res.destroy()
    } else {
      this.#answer('failed', { status: 400, detail: 'the request body is malformed', close: true })
    }
  }

  /** The time to shut down is over. */
  cutOff(): void {
    if (this.#state === 'over') return this.#forwarding?.abort()
    if (this.#state === 'waiting') this.line.shaper.cancel(this.#ticket!)
    this.#forwarding?.abort()
    if (this.res.headersSent) {
      this.over('failed', 503)
      this.res.destroy()
    } else {
      this.#answer(this.#state === 'forwarding' ? 'failed' : 'expired', {
        status: 503,
        detail: 'shaper is shutting down',
        retryAfterMs: 1_000,
        close: true,
      })
    }
  }

  /** Sends the request upstream and the answer back. */
  protected forward(): void {
    this.#state = 'forwarding'
    if (this.facts.expectContinue && this.req.httpVersionMinor > 0) this.res.writeContinue()
    this.#forwarding = this.send()
  }

  protected send(): { abort(): void; flushed?(): void } {
    const { facts, req, res } = this
    const { upstream } = this.route!
    const hasBody = facts.chunked || (facts.contentLength ?? 0) > 0
    this.#feed ??= hasBody ? createFeed(req, BODY_BUFFER) : null
    return new Forwarding({
      upstream,
      facts,
      headers: this.upstreamHeaders(),
      body: this.#feed,
      req,
      res,
      answerHeaders: () => this.answerHeaders(),
      ended: end => this.forwarded(end),
    })
  }

  protected upstreamHeaders(): string[] {
    const { connection, facts, line } = this
    const { upstream } = this.route!
    const host = upstream.settings.hostHeader === 'upstream' ? upstream.authority : (facts.host ?? upstream.authority)
    const peer = {
      address: connection.peer,
      trusted: line.trust(connection.peer, 0),
      encrypted: 'encrypted' in connection.socket,
    }
    return upstreamHeaders(facts, peer, host)
  }

  protected forwarded(end: ForwardEnd): void {
    if (end.kind === 'answered') return this.over('forwarded', this.res.statusCode)
    this.line.observer.failed?.(this.route!.name, end.detail)
    if (end.kind === 'broken') this.over('failed', this.res.statusCode)
    else {
      this.#answer('failed', { status: end.status, detail: end.detail, close: end.status === 408 })
    }
  }

  protected answerHeaders(): string[] {
    const headers: string[] = []
    const route = this.route!
    if (route.settings.headers && route.settings.mode !== 'off') {
      const now = this.line.clock.now()
      headers.push('RateLimit-Policy', rateLimitPolicy(this.#stack.map(bucket => bucket.limits)))
      headers.push('RateLimit', rateLimit(this.#stack, now))
      headers.push('Server-Timing', `shaper;dur=${this.#wait.toFixed(1)}`)
    }
    if (this.#preferred !== undefined) headers.push('Preference-Applied', `wait=${this.#preferred}`)
    if (this.line.draining || this.connection.full) headers.push('Connection', 'close')
    return headers
  }

  /** Finds the bucket instances; returns what to do instead where that is not possible. */
  #collect(route: Route): (() => void) | undefined {
    const { connection, facts, line } = this
    const { peer, peerKey } = connection
    const address = facts.forwardedFor.length === 0 ? peer : clientAddress(peer, facts.forwardedFor, line.trust)
    const context = { facts, ip: address === peer ? peerKey : addressKey(address), route: route.name }
    const now = line.clock.now()
    const keys: string[] = []
    for (const bucket of route.buckets) {
      const key = bucket.key(context)
      if (key === undefined) {
        const detail = `bucket "${bucket.limits.name}" needs a key that the request does not have`
        return () => this.#refuse(new Refusal(400, detail))
      }
      keys.push(key)
    }
    for (const [at, bucket] of route.buckets.entries()) {
      const instance = line.keyspace.find(bucket.limits, keys[at]!, now)
      if (instance === undefined) return () => this.#turnAway('every key that can be kept has waiters')
      this.#stack.push(instance)
    }
    return undefined
  }

  #shape(route: Route, arrival: { route: Route; stack: SharedBucket[]; cost: number }): void {
    let { maxWait } = route.settings
    const { preferWait } = this.facts
    if (preferWait !== undefined && preferWait * 1_000 <= maxWait) {
      maxWait = preferWait * 1_000
      this.#preferred = preferWait
    }
    const verdict = this.line.shaper.admit(arrival, this, maxWait)
    if (verdict === 'released') {
      this.#holdsGate = true
      this.line.observer.released?.(route.name, 0, 0)
      this.forward()
    } else if (verdict instanceof Ticket) {
      this.#ticket = verdict
      this.#state = 'waiting'
      this.line.observer.queued?.(route.name)
    } else this.#reject(route, verdict, arrival.cost)
  }

  #meter(route: Route, arrival: { route: Route; stack: SharedBucket[]; cost: number }): void {
    if (!route.gate.open) return this.#reject(route, { reason: 'crowded', buckets: [], retryAfterMs: 1_000 }, 0)
    const verdict = this.line.shaper.meter(arrival)
    if (verdict !== 'released') return this.#reject(route, verdict, arrival.cost)
    route.gate.enter()
    this.#holdsGate = true
    this.forward()
  }

  /** A dry run: a shadow takes the request's way through the lanes while the request itself is forwarded at once. */
  #rehearse(route: Route, arrival: { route: Route; stack: SharedBucket[]; cost: number }): void {
    const { line } = this
    const shadow: Waiter = { release: () => leaveGate(line, route.gate), expire: () => undefined }
    const verdict =
      route.settings.mode === 'meter'
        ? line.shaper.meter(arrival)
        : line.shaper.admit(arrival, shadow, route.settings.maxWait)
    if (verdict === 'released') {
      if (route.settings.mode === 'shape') leaveGate(line, route.gate)
    } else line.observer.rehearsed?.(route.name, verdict instanceof Ticket ? 'would_delay' : 'would_reject')
    this.forward()
  }

  #reject(route: Route, { reason, buckets, retryAfterMs }: Rejection, cost: number): void {
    if (reason === 'crowded') return this.#answer('rejected', busy('too many requests are waiting or in flight'))
    const now = this.line.clock.now()
    const first = buckets[0]!
    const statusOf = route.buckets.find(bucket => bucket.limits === first.limits)
    const headers = ['RateLimit-Policy', rateLimitPolicy(this.#stack.map(bucket => bucket.limits))]
    headers.push('RateLimit', rateLimit(buckets, now, retryAfterMs))
    if (this.#preferred !== undefined) headers.push('Preference-Applied', `wait=${this.#preferred}`)
    const detail = explain(reason, first, cost, now)
    this.#answer('rejected', { status: statusOf?.status ?? 429, detail, violated: buckets, retryAfterMs, headers })
  }

  /** Reads on where a hang-up may hide: until the body ends, enough has come, or nothing more comes at once. */
  #checkBody(held: number, idle: number): void {
    setImmediate(() => {
      if (this.#state !== 'checking') return
      const feed = this.#feed!
      const now = feed.readableLength + feed.writableLength
      const quiet = now === held ? idle + 1 : 0
      if (now >= CHECKED_BODY || quiet > 2) this.forward()
      else this.#checkBody(now, quiet)
    })
  }

  #refuse({ status, detail, close }: Refusal): void {
    this.#answer('refused', { status, detail, close })
  }

  #turnAway(detail: string): void {
    this.#answer('refused', { ...busy(detail), close: this.line.draining })
  }

  #answer(outcome: Outcome, reply: Reply): void {
    this.over(outcome, reply.status)
    this.beforeReply()
    sendReply(this.res, { ...reply, close: reply.close || this.line.draining || this.connection.full })
    if (!this.req.complete) lingerOver(this.req, this.line.linger)
  }

  /** Where the answer goes to a socket that is not the response's yet. */
  protected beforeReply(): void {}

  protected over(outcome: Outcome, status: number): void {
    this.#state = 'over'
    this.line.observer.finished?.(this.route?.name ?? '', outcome, status)
    if (!this.#holdsGate) return
    this.#holdsGate = false
    leaveGate(this.line, this.route!.gate)
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

function busy(detail: string): Reply {
  return { status: 503, detail, retryAfterMs: 1_000 }
}

function explain(reason: Rejection['reason'], bucket: SharedBucket, cost: number, now: number): string {
  const { name, capacity, rate } = bucket.limits
  const level = bucket.level(now)
  if (reason === 'too-costly') return `the cost ${short(cost)} can never fit bucket "${name}" of ${short(capacity)}`
  if (reason === 'max-wait') return `bucket "${name}" would make it wait ${short(level / rate / 1_000)} s`
  return `bucket "${name}" is full: ${short(level)} of ${short(capacity)}`
}

function short(value: number): string {
  return String(Number(value.toFixed(2)))
}
