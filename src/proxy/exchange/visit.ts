/**
 * A request's way through the buckets of its route to the gate of its upstream.
 *
 * A visit is `deciding` while a store is asked, `waiting` in a lane, `aside` while its body is still coming although it has
 * had its turn, `through`, or `over`. It gives back its place in a lane or in the gate exactly once.
 */
import { comebackOf } from '../../core/admission/comeback.js'
import { decide, placeless, shutOut } from '../../core/admission/decide.js'
import type { Cancel } from '../../core/clock.js'
import { type Rejection, type ReleasePlan, type SharedBucket, Ticket } from '../../core/queue/lane.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import type { AdmissionCallbacks, Arrival, Verdict } from '../../core/shaper.js'
import type { ProxyContext } from '../context.js'
import type { FollowerQueue } from '../features/coalesce.js'
import { TICKET_HEADER, tellPromised } from '../features/tickets.js'
import type { Reply } from '../http/client.js'
import { pausedTooLong, tooLate, unwanted } from '../http/reply.js'
import type { GivenUp, Outlook, RejectionCause, RequestRecord } from '../observe/observer.js'
import { currentUpstream, type Route } from '../routing/route.js'
import type { ArmedOwner, ArmedRequest } from './armed-request.js'
import type { IncomingRequest } from './incoming-request.js'
import { rejectionReply } from './reply.js'

/** Why a browser gets a page: its turn comes. In all other cases something has to be mended first. */
const BY_LIMITS: ReadonlySet<Rejection['reason']> = new Set(['overflow', 'blocked', 'max-wait', 'in-flight'])
/** ms. A release may come so much later than it was predicted to. */
const LATE = 2

export interface Visitor extends RequestRecord {
  /** It is sent on a connection of its upstream's pool. A tunnel opens its own. */
  readonly pooled: boolean
  readonly ready: boolean
  /** It has been admitted. Called once, before anything else. */
  admitted(): void
  /** It waits for its turn. Not called when it waits again, to be sent once more. */
  waits(queue: FollowerQueue): void
  /** It is its turn, and it is not ready. It is to call `comeBack` when it is. */
  awaitBody(): void
  /** The request may be sent now, after waiting or not. Or it has been sent already. */
  passed(how: 'at-once' | 'queued' | ArmedRequest): void
  /** Arms the request: it will be sent without `passed`. Undefined: that is not possible. */
  arm(plan: ReleasePlan, owner: ArmedOwner): ArmedRequest | undefined
  turnedAway(outcome: 'rejected' | 'expired' | 'failed', reply: Reply): void
  takeBack(): void
}

export class QueueVisit implements AdmissionCallbacks, ArmedOwner, FollowerQueue {
  arrival: Arrival
  /** ms since its arrival */
  maxWait = Infinity
  maxWaitFrom: number | undefined = undefined
  retries = 0
  /** How often of these there was no answer: a connection broke or could not be opened. */
  resends = 0
  givenUp: GivenUp | undefined
  rejection: RejectionCause | undefined
  onTrial = false
  readonly #context: ProxyContext
  readonly #route: Route
  readonly #request: IncomingRequest
  readonly #visitor: Visitor
  readonly #arrivedAt: number
  #state: 'deciding' | 'waiting' | 'aside' | 'through' | 'over' = 'deciding'
  #ticket: Ticket | undefined
  /** How long the request was queued when it last left its queue, in ms. */
  #waited = 0
  #held = false
  #cancelTrial: Cancel | undefined
  #cancelDeadline: Cancel | undefined

  constructor(request: IncomingRequest, visitor: Visitor, arrival: Arrival) {
    this.#context = request.context
    this.#route = request.route!
    this.#request = request
    this.#visitor = visitor
    this.arrival = arrival
    this.#arrivedAt = this.#context.clock.now()
  }

  get wait(): number {
    const waits = this.#state === 'waiting' || this.#state === 'aside'
    return waits ? this.#context.clock.now() - this.#arrivedAt : this.#waited
  }

  /** ms. The longest predicted wait to which it is admitted. */
  get longestWait(): number {
    return Math.max(0, Math.min(this.maxWait - (this.maxWaitFrom ?? 0), this.arrival.patience ?? Infinity))
  }

  /** ms of the clock. A release after it is too late for its client, as far as that is known. */
  get deadline(): number {
    return this.#arrivedAt + (this.maxWaitFrom ?? 0) + (this.#request.prospects?.knownWait ?? Infinity)
  }

  start(maxWait: number): void {
    this.maxWait = maxWait
    if (this.#isRefused()) return
    this.#arrive()
  }

  #arrive(): void {
    this.#context.shaper.arrive(this.arrival, this, this.#route.settings.mode, this.maxWait)
  }

  /** Its upstream fails, and it may not wait, or no longer. */
  #isRefused(): boolean {
    const { settings } = this.#route
    const upstream = currentUpstream(this.#route, this.#context.routes)
    if (!upstream.refuses(settings.mode === 'shape')) return false
    this.reject({ reason: 'down', buckets: [], retryAfterMs: upstream.retryAfter })
    return true
  }

  decided(verdict: Verdict): void {
    // One that is cancelled here may have had its turn, and is released all the same.
    if (verdict instanceof Ticket) this.#ticket = verdict
    if (this.#state === 'over') {
      if (verdict instanceof Ticket) this.#context.shaper.cancel(verdict)
      else if (verdict === 'released') this.#leaveUnsent()
    } else if (verdict === 'released') this.#passAtOnce()
    else if (verdict instanceof Ticket) {
      // The upstream may have been given up while a store was asked. During a probe, which this may be, its end decides.
      if (!this.#route.lane.gate.probing && this.#isRefused()) return void this.#context.shaper.cancel(verdict)
      if (this.retries === 0) this.#visitor.admitted()
      this.#wait(verdict)
    } else if (verdict.reason === 'max-wait') this.#rejectLate(verdict)
    else this.#rejectTelling(verdict)
  }

  /** Clients that are rejected at the same moment are told different ones. A store may be asked. */
  #rejectTelling(rejection: Rejection): void {
    const { arrival, maxWait } = this
    const tell = (promised: Rejection): void => {
      if (this.#state !== 'over') this.reject(promised)
    }
    tellPromised(this.#context.shaper, this.#route, { arrival, rejection, maxWait, tell })
  }

  /** It would wait too long, for its `maxWait` or for its client. Of the latter one waits on now and then. */
  #rejectLate(rejection: Rejection): void {
    const { arrival } = this
    const { patience = Infinity } = arrival
    const { prospects } = this.#request
    if (patience > this.maxWait || prospects === undefined) return this.#rejectTelling(rejection)
    const now = this.#context.clock.now()
    const looks = prospects.sendToLook(now)
    if (!looks && prospects.sendAway(0, now) !== 'trial') {
      const { source, service } = prospects.outlook(0, now)
      this.givenUp = { at: 'arrival', patience: patience + service, source, service }
      if (prospects.untilLook(now) === 0) return this.reject(rejection)
      return this.reject({ ...rejection, retryAfterMs: prospects.retryAfter(arrival, now) })
    }
    this.onTrial = !looks
    this.arrival = { ...arrival, patience: Infinity }
    this.#arrive()
  }

  #passAtOnce(): void {
    if (this.retries === 0) this.#visitor.admitted()
    if (!this.#visitor.ready) {
      this.#queued()
      return this.#awaitBody()
    }
    this.#state = 'through'
    if (this.#route.settings.mode === 'shape') this.#context.observer.released?.(this.#visitor, 0)
    this.#visitor.passed('at-once')
  }

  #leaveUnsent(): void {
    this.#route.lane.gate.unprobe()
    this.#context.shaper.leave(this.#route.lane.gate, this.arrival.stack, this)
  }

  #wait(ticket: Ticket): void {
    this.#ticket = ticket
    this.#state = 'waiting'
    this.#queued()
    this.#keepReady()
    if (this.retries === 0) this.#visitor.waits(this)
  }

  #queued(): void {
    if (this.#visitor.pooled) this.#route.upstream.queued += 1
    this.#context.observer.queued?.(this.#visitor)
  }

  #awaitBody(): void {
    this.#state = 'aside'
    this.#visitor.awaitBody()
    this.#setAside()
  }

  #setAside(): void {
    const { shaper } = this.#context
    const { gate } = this.#route.lane
    if (this.#route.settings.mode !== 'shape') return this.#leaveUnsent()
    const aside = shaper.setAside(this.arrival, this, this.#ticket, this.#arrivedAt)
    if (aside instanceof Ticket) this.#ticket = aside
    else this.reject(aside)
    shaper.wake(gate, this.arrival.stack)
  }

  /** Its body has come. In `shape` it is the first of its lane again, in `meter` it passes the gate if that is open. */
  comeBack(): void {
    const { shaper, clock, routes } = this.#context
    const { name, lane } = this.#route
    const now = clock.now()
    if (this.#isRefused()) {
      if (this.#ticket !== undefined) shaper.cancel(this.#ticket)
      return
    }
    if (this.#ticket === undefined) {
      const { stack } = this.arrival
      const rejection = shutOut(lane.gate, now) ?? placeless(this.arrival)
      if (rejection !== undefined) return this.reject(rejection)
      shaper.engine.enter(lane.gate, stack)
      this.#unqueue(now)
      this.#state = 'through'
      return this.#visitor.passed('at-once')
    }
    // Its turn came in time. From now on it waits for the upstream again.
    const current = routes.find(route => route.name === name)?.settings.maxWait ?? Infinity
    this.maxWaitFrom = now - this.#arrivedAt
    this.maxWait = this.maxWaitFrom + Math.min(this.maxWait, current)
    this.#lineUp(this.#ticket)
  }

  /** It has been released, and no server takes it: it is the first of its lane again. */
  waitAgain(): void {
    this.#unhold('never-sent')
    this.#queued()
    this.#state = 'aside'
    this.#setAside()
    if (this.#state === 'aside') this.comeBack()
  }

  #lineUp(ticket: Ticket): void {
    const { shaper } = this.#context
    this.#state = 'waiting'
    shaper.comeBack(ticket, this.#arrivedAt + this.maxWait)
    shaper.wake()
  }

  #unqueue(now: number): void {
    this.#waited = now - this.#arrivedAt
    if (this.#visitor.pooled) this.#route.upstream.queued -= 1
    this.#context.observer.unqueued?.(this.#visitor)
  }

  arm(plan: ReleasePlan): ArmedRequest | undefined {
    if (this.#isLost(plan.slot)) return undefined
    return this.#visitor.arm(plan, this)
  }

  settle(): void {
    this.#context.shaper.wake()
  }

  lost(): void {
    this.#context.shaper.recall(this.#ticket!)
  }

  release(slot: number, now: number): void {
    const armed = this.#ticket!.armed as ArmedRequest | undefined
    const sent = armed?.sentAt === undefined ? undefined : armed
    if (sent === undefined) armed?.giveBack()
    if (this.#state === 'over') {
      // The request ended while its release was on the way. Its places are free first, so that the next request for this
      // slot finds them.
      if (sent === undefined) {
        this.#route.lane.gate.unprobe()
        this.#leaveQuietly()
        return this.#context.shaper.giveBack(this.#ticket!)
      }
      sent.discard()
      return this.#context.shaper.leave(this.#route.lane.gate, this.arrival.stack, this)
    }
    if (!this.#visitor.ready) return this.#awaitBody()
    if (sent === undefined && this.#isLost(now) && this.#giveUp(now)) return
    this.#state = 'through'
    this.#unqueue(now)
    this.#context.observer.released?.(this.#visitor, now - slot)
    this.#visitor.passed(sent ?? 'queued')
    this.#keepReady()
  }

  /** How long it has waited for its answer, in ms. The time in which its body came does not count. */
  waited(now: number): number {
    return now - this.#arrivedAt - (this.maxWaitFrom ?? 0)
  }

  /** `releasedAt` in ms. It is not given up for having left a little late. */
  #isLost(releasedAt: number): boolean {
    return this.#request.prospects?.isLost(Math.max(0, this.waited(releasedAt - LATE)), releasedAt) === true
  }

  /** Its client will not be there for the answer. Its slot is free for the next one. False: it is sent all the same. */
  #giveUp(now: number): boolean {
    const { shaper, clock } = this.#context
    const prospects = this.#request.prospects!
    const waited = this.waited(now)
    const outlook = prospects.outlook(waited, now)
    if (prospects.sendAway(waited, now) === 'trial') {
      this.onTrial = true
      const end = now - waited + prospects.trialUntil(waited)
      // A trial to its end would break its `maxWait`. So it is one at the cost of the upstream.
      if (end > this.#arrivedAt + this.maxWait) return false
      this.#state = 'aside'
      this.#cancelTrial = clock.at(end, () => {
        this.#cancelTrial = undefined
        prospects.proven()
        this.#lineUp(this.#ticket!)
      })
      this.#setAside()
      return true
    }
    this.#state = 'over'
    this.#unqueue(now)
    this.#route.lane.gate.unprobe()
    this.#leaveQuietly()
    this.#leaveUnwanted(outlook, now)
    shaper.giveBack(this.#ticket!)
    return true
  }

  #leaveUnwanted(outlook: Outlook, now: number): void {
    this.givenUp = { at: 'release', ...outlook }
    this.#visitor.turnedAway('expired', unwanted(this.#request.prospects!.retryAfter(this.arrival, now)))
  }

  expire(now: number): void {
    this.#state = 'over'
    this.#unqueue(now)
    const pause = this.#route.lane.gate.pausedFor(now)
    if (this.deadline <= now + SAME_TIME)
      return this.#leaveUnwanted(this.#request.prospects!.outlook(this.waited(now), now), now)
    this.#visitor.turnedAway('expired', pause > 0 ? pausedTooLong(pause) : tooLate(this.#waited))
  }

  reject(rejection: Rejection): void {
    const now = this.#context.clock.now()
    if (this.#state === 'waiting' || this.#state === 'aside') this.#unqueue(now)
    this.#state = 'over'
    const { reason, evicted, buckets, booking } = rejection
    const reply = this.#withTicket(
      this.#withPage(rejectionReply(rejection, this.#route, this, now), rejection),
      booking,
    )
    if (reason === 'down') return this.#visitor.turnedAway('failed', reply)
    const why = evicted ? 'evicted' : this.givenUp === undefined ? reason : 'patience'
    this.rejection = { reason: why, bucket: buckets[0]?.limits.name ?? '' }
    this.#visitor.turnedAway('rejected', reply)
  }

  #withPage(reply: Reply, rejection: Rejection): Reply {
    const { retryAfterMs } = reply
    if (retryAfterMs === undefined || !BY_LIMITS.has(rejection.reason)) return reply
    const { renderPage } = this.#request
    if (renderPage === undefined) return reply
    const mode = this.#route.settings.mode === 'shape' ? 'shape' : 'meter'
    const place = { now: this.#context.clock.now(), mode, maxWait: this.longestWait } as const
    return { ...reply, page: renderPage(comebackOf(this.arrival, rejection, retryAfterMs, place)) }
  }

  #withTicket(reply: Reply, booking: number | undefined): Reply {
    const { client, appointment } = this.arrival
    if (booking === undefined || appointment === undefined || client === undefined) return reply
    const ticket = this.#context.tickets.issue(booking, { route: this.#route.name, client, cost: this.arrival })
    // A page says so itself.
    const unstored = reply.page === undefined ? ['Cache-Control', 'no-store'] : []
    return { ...reply, headers: [...(reply.headers ?? []), TICKET_HEADER, ticket, ...unstored] }
  }

  /**
   * Puts the request back at the head of its lane after the upstream refused it with this status. In `meter` it passes again at once.
   *
   * @returns undefined if it is not admitted again, or could not be sent again in time. Else a function: call it when the
   *   refusing answer is over. Until then the request stays in flight
   */
  goBack(status: number): (() => void) | undefined {
    const { shaper, observer, clock } = this.#context
    if (this.#route.settings.mode === 'meter') {
      const isPaused = this.#route.lane.gate.pausedFor(clock.now()) > 0
      return isPaused || !this.#passAgain(status) ? undefined : () => undefined
    }
    const stack = this.#presentStack()
    if (stack === undefined) return undefined
    const before = this.arrival
    const arrival = { ...before, stack }
    const ticket = shaper.requeue(arrival, this, this.maxWait, this.#arrivedAt)
    if (ticket === undefined) {
      this.#rest(stack)
      return undefined
    }
    this.#replaceStack(arrival)
    observer.retried?.(this.#visitor, status)
    this.retries += 1
    this.#wait(ticket)
    shaper.wake()
    return () => this.#context.shaper.leave(before.route.gate, before.stack, this)
  }

  /**
   * Sends the request once more in a slot of its own: in `shape` from the head of its lane, in `meter` after another
   * admission. Its places are free at once, because its connection has broken.
   *
   * @param status what is answered if it is not sent again
   * @returns false if it is not sent again. With a store the rejection may come later
   */
  passAgain(status: number): boolean {
    this.resends += 1
    const passes = this.#passAgain(status)
    if (!passes) this.resends -= 1
    return passes
  }

  #passAgain(status: number): boolean {
    this.#unhold('never-sent')
    if (this.#route.settings.mode === 'shape') {
      const over = this.goBack(status)
      over?.()
      return over !== undefined
    }
    const { shaper, observer, clock } = this.#context
    const stack = this.#presentStack()
    // Only look, do not ask: asking may fill or block a full bucket, and the client is not to blame for our second try.
    if (stack === undefined) return false
    const arrival = { ...this.arrival, stack }
    if (decide(arrival, Infinity, clock.now()) !== undefined) {
      this.#rest(stack)
      return false
    }
    const before = this.arrival
    this.#leaveQuietly()
    this.#replaceStack(arrival)
    observer.retried?.(this.#visitor, status)
    this.retries += 1
    this.#state = 'deciding'
    this.start(this.maxWait)
    shaper.wake(this.#route.lane.gate, before.stack)
    return true
  }

  #leaveQuietly(): void {
    this.#context.shaper.leaveQuietly(this.#route.lane.gate, this.arrival.stack, this)
  }

  /** Finds the bucket instances again, and holds them: idle ones may have been replaced. Undefined: there is no room for them. */
  #presentStack(): SharedBucket[] | undefined {
    const { bucketTable, clock } = this.#context
    const { keys } = this.#request
    const now = clock.now()
    const found: SharedBucket[] = []
    for (const [place, { limits }] of this.arrival.stack.entries()) {
      const bucket = bucketTable.find(limits, keys[place]!, now, found)
      if (bucket === undefined) {
        this.#rest(found)
        return undefined
      }
      bucketTable.hold(bucket)
      found.push(bucket)
    }
    return found
  }

  #rest(stack: readonly SharedBucket[]): void {
    for (const bucket of stack) this.#context.bucketTable.rest(bucket)
  }

  #replaceStack(arrival: Arrival): void {
    const { stack } = this.arrival
    this.arrival = arrival
    this.#request.stack = arrival.stack
    this.#rest(stack)
  }

  /** The request has passed and is not sent at once. The next one waits until it is, so what is sent keeps its distance. */
  hold(): void {
    const { clock, shaper } = this.#context
    // A store knows nothing of this.
    if (this.#held || this.#route.settings.mode !== 'shape' || shaper.engine.source !== undefined) return
    shaper.hold(this.arrival, this)
    this.#held = true
    if (this.deadline === Infinity) return
    this.#cancelDeadline = clock.at(this.deadline, () => {
      const now = clock.now()
      this.#visitor.takeBack()
      this.#leaveUnwanted(this.#request.prospects!.outlook(this.waited(now), now), now)
    })
  }

  sent(): void {
    this.#unhold('sent')
  }

  #unhold(fate: 'sent' | 'never-sent'): void {
    if (!this.#held) return
    this.#held = false
    this.#cancelDeadline?.()
    this.#cancelDeadline = undefined
    this.#context.shaper.unhold(this.arrival, fate, this)
  }

  /** Ends the visit of a request that waits, one of many. `wake` is to be called after the last. False: it has had its turn. */
  leaveQueue(): boolean {
    if (this.#state !== 'waiting' || !this.#context.shaper.cancelOneOfMany(this.#ticket!)) return false
    this.#state = 'over'
    this.#unqueue(this.#context.clock.now())
    return true
  }

  end(): void {
    const state = this.#state
    this.#state = 'over'
    this.#cancelTrial?.()
    this.#unhold('never-sent')
    if (state === 'waiting' || state === 'aside') {
      this.#unqueue(this.#context.clock.now())
      if (this.#ticket !== undefined) this.#context.shaper.cancel(this.#ticket)
    } else if (state === 'through') this.#context.shaper.leave(this.#route.lane.gate, this.arrival.stack, this)
  }

  /** Ends the visit of a request that was released and not sent. Its slot is given back. */
  endUnsent(): void {
    this.#route.lane.gate.unprobe()
    this.end()
    this.#context.shaper.giveBack(this.#ticket!)
  }

  #keepReady(): void {
    if (!this.#visitor.pooled) return
    currentUpstream(this.#route, this.#context.routes).keepReady(this.#route.upstream.queued)
  }
}
