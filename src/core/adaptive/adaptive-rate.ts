/**
 * Finds the rate that an upstream can take, from the latency and the errors of its answers.
 *
 * The rate is judged by *windows*. A window is some time of sending at one rate, and then the time until its requests have been
 * answered or are late. Only these are judged, so a rate is never blamed for what was sent before it. Requests leave the bucket
 * evenly spaced, so what their latency does is the upstream's own doing.
 *
 *     doubling --> climbing <--> draining
 *
 * - *In order*, and the bucket was what limited: the rate doubles, until the first trouble. After that it climbs by the same
 *   part of itself each second.
 * - *Growing*: the latency grew with the time of sending. A queue that is sent `rate` and serves C makes the latency grow by
 *   rate / C - 1. So C is known before a target is missed, and becomes the rate, a little less the fuller the queue is.
 * - *Trouble*: more answers than allowed are late or failed. The rate falls at once, to half of what was served since the
 *   window began. A full queue serves at its capacity, so as it drains that capacity is measured anew. Half of it empties the
 *   queue by half, and nothing is lost. Once what was sent before has been answered, the rate goes to a little below that
 *   capacity.
 *
 * Nothing here waits: time comes with what happens, and so does every change of the rate.
 *
 * *Several instances* on one store send at one rate (`AdaptiveState`). Each judges it by its own requests, of which it sends
 * the part f, and takes only its part of a step: (1 + step)^f. As the parts add up to 1, all of them together take one step.
 * What an instance has seen served, divided by f, is what the upstream serves. A fall is taken at once and whole, by the first
 * that sees trouble; the others follow it until it has measured the capacity.
 */
import { type Linked, LinkedList } from '../structures/linked-list.js'

/** What to adapt to. Rates in cost units per ms. */
export interface AdaptiveTargets {
  readonly min: number
  readonly max: number
  readonly start: number
  /** The part of the answers, 0 to 1, whose latency is to be at most `ms`. Absent: any latency will do. */
  readonly latency?: { readonly part: number; readonly ms: number }
  /** The part of the requests that may fail. */
  readonly errors: number
}

/** So many answers more than allowed are trouble: fewer may be chance. */
const CHANCE = 3
/** A window takes at least this many requests while the rate doubles, and while it climbs. */
const REQUESTS = { doubling: 5, climbing: 10 }
/** ms. How long a window takes requests. It is as short as the growth of the latency can be told with `PRECISION`. */
const SHORTEST = 250
const LONGEST = { doubling: 1_000, climbing: 4_000 }
const PRECISION = 0.04
/** ms. A window that takes longer, and is longer than its requests need, says nothing of the present. */
const STALE = 30_000
/** The part of a window's requests that may still be out when it is judged. */
const STRAGGLERS = { doubling: 0.25, climbing: 0.05 }
/** A bucket that passes less than this part of its rate is not what limits. */
const BUSY = 0.9
/** By how much the rate climbs each second, as a part of itself, and for how many ms at once. */
const CLIMB = 0.1
const LONGEST_STEP = 2_000
/** The part of that step which is left when the mean latency is near its target. */
const LEAST_STEP = 0.25
/** A smaller growth of the latency is within what it does by itself. */
const GROWTH = { doubling: 0.1, climbing: 0.02 }
/** The rate after a growth is lower than the capacity by up to this part of it, as the mean latency is near its target. */
const MARGIN = 0.1
/** What is served in a shorter time, in ms, is no measure, and the rate falls by this factor. */
const MEASURABLE = 200
const BLIND_FALL = 0.7
/** The part of the capacity at which a queue drains, and the part of it to go on with afterwards. */
const DRAIN = 0.5
const BELOW = 0.95
/** With fewer requests out at a fall there is no queue to measure a capacity by. */
const QUEUE = 8
/** What is left of those that were out at a fall when the capacity is measured, and when the drain is over. */
const MEASURED = 0.5
const DRAINED = 0.1
/** A measured capacity is not believed to be less than this part of what was served before the fall. */
const LEAST_MEASURED = 0.85
/** ms, besides twice the target. A drain that takes longer is over. */
const LONGEST_DRAIN = 10_000

/** The requests of one client that a window has taken, and those of them that have neither been answered nor are late. */
interface Taken {
  sent: number
  open: number
}

/** A rate that is lower than before by more than this factor is judged anew. */
const SAME_RATE = 0.97
/** A bucket counts as used by at least this part. */
const LEAST_USE = 0.05

/** Times are in ms. */
interface Window extends Taken {
  readonly from: number
  /** When it began to take requests, or did so again. */
  opened: number
  until: number | undefined
  readonly clients: Map<string, Taken>
  /** Those of clients with open requests. */
  readonly awaited: Set<Taken>
  readonly sample: Sample
}

/** What instances that share a rate tell each other. */
export interface AdaptiveState {
  /** Cost units per ms. */
  readonly rate: number
  readonly phase: 'doubling' | 'climbing' | 'draining'
  readonly falls: number
}

export interface SendFacts {
  readonly cost: number
  readonly client: string
  /** How long its answer takes is up to the upstream, not to its client. */
  readonly isTimed: boolean
  /** The bucket is what limits: others have waited for it, too. Only where instances share the rate. */
  readonly isHeld?: boolean
}

export class SentRequest implements Linked<SentRequest> {
  list: object | undefined = undefined
  previous: SentRequest | undefined = undefined
  next: SentRequest | undefined = undefined
  readonly cost: number
  readonly client: string
  readonly isTimed: boolean
  /** Undefined: it is not judged. */
  window: Window | undefined

  /** @param fall the number of the fall before which it was sent */
  constructor(
    { cost, client, isTimed }: SendFacts,
    readonly sentAt: number,
    readonly fall: number,
  ) {
    this.cost = cost
    this.client = client
    this.isTimed = isTimed
  }
}

/** Times are in ms. */
export class AdaptiveRate {
  #targets: AdaptiveTargets
  rate: number
  phase: AdaptiveState['phase'] = 'doubling'
  #window: Window
  /** What is sent after the window stopped taking requests, while some of these are out. It is judged for trouble only. */
  #after: Window | undefined
  #windowTime = SHORTEST
  readonly #young = new LinkedList<SentRequest>()
  #out = 0
  /** Cost sent since the window began, and the part of it that the bucket has held. */
  #sent = 0
  #held = 0
  readonly #isShared: boolean
  /** The part of all requests that this instance sends. */
  #part = 1
  #isFollowing = false
  /** Cost served since the window or the drain began. */
  #served = 0
  #falls = 0
  #blamed = 0
  #capacity = 0
  #isMeasured = false
  #drainsFrom = 0
  /** How many requests were out at the fall, and how many of these still are. */
  #backlog = 0
  #backlogLeft = 0

  /** @param scope `shared`: other instances send at the same rate */
  constructor(targets: AdaptiveTargets, now: number, scope: 'own' | 'shared' = 'own') {
    this.#isShared = scope === 'shared'
    this.#targets = targets
    this.rate = targets.start
    this.#window = newWindow(now)
  }

  get state(): AdaptiveState {
    return { rate: this.rate, phase: this.phase, falls: this.#falls }
  }

  /** Takes over what another instance has found. False: it is older than what is known here. */
  adopt({ rate, phase, falls }: AdaptiveState, now: number): boolean {
    if (falls < this.#falls) return false
    const isOther = falls > this.#falls || phase !== this.phase || rate < SAME_RATE * this.rate
    this.#falls = falls
    this.phase = phase
    this.#isFollowing = phase === 'draining'
    this.#setRate(rate)
    if (!isOther) return true
    this.#drainsFrom = now
    this.#begin(now)
    return true
  }

  retarget(targets: AdaptiveTargets, now: number): void {
    this.#targets = targets
    this.#setRate(this.rate)
    this.#begin(now)
  }

  /** A request is being sent. Its end is to be told once. */
  sent(facts: SendFacts, now: number): SentRequest {
    const request = new SentRequest(facts, now, this.#falls)
    const { isTimed } = facts
    this.#out += 1
    this.#sent += facts.cost
    if (facts.isHeld) this.#held += facts.cost
    if (isTimed) this.#young.push(request)
    this.#advance(now)
    if (this.phase === 'draining') return request
    const window = this.#window
    if (window.until === undefined) {
      request.window = window
      if (isTimed) take(window, facts.client)
      this.#closeIfFull(window, now)
    } else {
      if (this.#after === undefined || now - this.#after.from > LONGEST.climbing) this.#after = newWindow(now)
      request.window = this.#after
    }
    return request
  }

  served(request: SentRequest, now: number): void {
    this.#served += request.cost
    const window = this.#end(request)
    if (window !== undefined) {
      const target = this.#targets.latency?.ms ?? Infinity
      const { client, isTimed, sentAt } = request
      const latency = isTimed ? now - sentAt : undefined
      if (latency !== undefined && latency > target) window.sample.addLate(client, sentAt - window.from, target)
      else window.sample.addServed(client, sentAt - window.from, latency)
    }
    this.#advance(now)
  }

  failed(request: SentRequest, now: number): void {
    this.#end(request)?.sample.addFailed(request.client)
    this.#advance(now)
  }

  /** It was given up before the upstream answered. */
  dropped(request: SentRequest, now: number): void {
    this.#end(request)
    this.#advance(now)
  }

  /** @returns the window in which it is to be judged now. Undefined: none */
  #end(request: SentRequest): Window | undefined {
    this.#out -= 1
    if (request.fall < this.#falls) this.#backlogLeft -= 1
    const { window, isTimed } = request
    // If it is not among the young, it has been judged as late.
    if (isTimed && !this.#young.remove(request)) return undefined
    if (window === undefined) return undefined
    if (isTimed) putOut(window, request.client)
    return this.#isJudged(window) ? window : undefined
  }

  #isJudged(window: Window): boolean {
    return window === this.#window || window === this.#after
  }

  #advance(now: number): void {
    this.#findLate(now)
    if (this.phase === 'draining') this.#drain(now)
    else this.#judge(this.#window, now)
  }

  #findLate(now: number): void {
    const { latency } = this.#targets
    if (latency === undefined) return
    for (let oldest = this.#young.first; oldest !== undefined; oldest = this.#young.first) {
      if (now - oldest.sentAt <= latency.ms) return
      this.#young.remove(oldest)
      const { window } = oldest
      if (window === undefined) continue
      putOut(window, oldest.client)
      if (this.#isJudged(window)) window.sample.addLate(oldest.client, oldest.sentAt - window.from, latency.ms)
    }
  }

  #closeIfFull(window: Window, now: number): void {
    const phase = this.#settled
    if (now - window.opened >= Math.min(this.#windowTime, LONGEST[phase]) && window.sent >= REQUESTS[phase]) {
      window.until = now
      return
    }
    const elapsed = now - window.from
    if (elapsed > STALE && 2 * this.#measureSending(elapsed) < this.rate) this.#begin(now)
  }

  #judge(window: Window, now: number): void {
    const { sample } = window
    if (this.#isTrouble(sample) || (this.#after !== undefined && this.#isTrouble(this.#after.sample)))
      return this.#fall(now)
    const phase = this.#settled
    if (window.until === undefined || isAwaited(window, STRAGGLERS[phase])) return
    const { least: growth, error } = sample.growth()
    const precise = (window.until - window.from) * Math.min(3, (error / PRECISION) ** (2 / 3))
    this.#windowTime = Math.min(LONGEST.climbing, Math.max(SHORTEST, precise))
    const target = this.#targets.latency?.ms ?? Infinity
    const fullness = sample.latency / target
    const elapsed = now - window.from
    const sending = this.#measureSending(elapsed)
    if (target < Infinity && growth > GROWTH[phase]) {
      if (phase === 'doubling') return this.#fall(now)
      this.#step((Math.min(this.rate, sending) / (1 + growth)) * (1 - MARGIN * fullness))
    } else if (this.#surplus(sample) > 0) {
      // Neither in order nor trouble. The rate stays, so what comes tells.
      window.until = undefined
      window.opened = now
      this.#after = undefined
      return
    } else if (sending >= BUSY * this.rate) {
      const step = (CLIMB * Math.min(elapsed, LONGEST_STEP) * Math.max(LEAST_STEP, 1 - fullness)) / 1_000
      this.#step(this.rate * (phase === 'doubling' ? 2 : 1 + step))
    }
    this.#begin(now)
  }

  /** Goes to a rate, as far as it is the part of this instance. */
  #step(rate: number): void {
    this.#setRate(this.rate * (rate / this.rate) ** this.#part)
  }

  /** What all instances have sent since the window began, in cost units per ms. Tells the part of this one, too. */
  #measureSending(elapsed: number): number {
    const own = this.#sent / elapsed
    if (!this.#isShared || own === 0) return own
    // A bucket of which the time is used in part holds as great a part of the requests.
    const sending = this.rate * Math.max(this.#held / this.#sent, LEAST_USE)
    this.#part = Math.min(1, own / sending)
    return Math.max(own, sending)
  }

  #isTrouble(sample: Sample): boolean {
    return sample.late + sample.failed > CHANCE && sample.takeLook() && this.#surplus(sample) > CHANCE
  }

  #surplus(sample: Sample): number {
    const { latency, errors } = this.#targets
    const late = latency === undefined ? -Infinity : sample.surplus('late', 1 - latency.part)
    return Math.max(late, sample.surplus('failed', errors))
  }

  get #settled(): 'doubling' | 'climbing' {
    return this.phase === 'doubling' ? 'doubling' : 'climbing'
  }

  #fall(now: number): void {
    const elapsed = now - this.#window.from
    this.#blamed = Math.min(this.rate, this.#measureSending(elapsed))
    const served = this.#served / elapsed / this.#part
    this.#capacity = elapsed < MEASURABLE ? BLIND_FALL * this.#blamed : Math.min(this.#blamed, served)
    this.#isMeasured = this.#out < QUEUE * this.#part
    this.#isFollowing = false
    this.phase = 'draining'
    this.#falls += 1
    this.#served = 0
    this.#drainsFrom = now
    this.#backlog = this.#out
    this.#backlogLeft = this.#out
    this.#setRate(DRAIN * this.#capacity)
  }

  #drain(now: number): void {
    const elapsed = now - this.#drainsFrom
    const longest = LONGEST_DRAIN + 2 * (this.#targets.latency?.ms ?? 0)
    if (this.#isFollowing) {
      if (elapsed < longest) return
      // The instance that measures is gone.
      this.phase = 'climbing'
      return this.#begin(now)
    }
    if (!this.#isMeasured && elapsed > 0 && (this.#backlogLeft <= MEASURED * this.#backlog || elapsed >= longest)) {
      const serving = this.#served / elapsed / this.#part
      this.#capacity = elapsed >= longest ? serving : Math.max(serving, LEAST_MEASURED * this.#capacity)
      this.#isMeasured = true
    }
    if (this.#backlogLeft > DRAINED * this.#backlog && elapsed < longest) return
    this.phase = 'climbing'
    this.#setRate(Math.min(this.#blamed, BELOW * this.#capacity))
    this.#begin(now)
  }

  #begin(now: number): void {
    this.#window = newWindow(now)
    this.#after = undefined
    this.#served = 0
    this.#sent = 0
    this.#held = 0
  }

  #setRate(rate: number): void {
    const { min, max } = this.#targets
    this.rate = Math.min(max, Math.max(min, rate))
  }
}

function newWindow(from: number): Window {
  const taken = { sent: 0, open: 0, clients: new Map<string, Taken>(), awaited: new Set<Taken>() }
  return { from, opened: from, until: undefined, ...taken, sample: new Sample() }
}

function take(window: Window, client: string): void {
  const own = window.clients.get(client) ?? { sent: 0, open: 0 }
  window.clients.set(client, own)
  window.awaited.add(own)
  own.sent += 1
  own.open += 1
  window.sent += 1
  window.open += 1
}

/** A request that a window has taken has been answered or is late. One that was sent after it has not been taken. */
function putOut(window: Window, client: string): void {
  const own = window.clients.get(client)
  if (own === undefined) return
  own.open -= 1
  window.open -= 1
  if (own.open === 0) window.awaited.delete(own)
}

/** Whether too many of its requests are out for it to be judged. One client alone does not delay that if others have sent enough. */
function isAwaited({ sent, open, awaited }: Window, stragglers: number): boolean {
  if (open <= stragglers * sent) return false
  // Each other client with open requests has one at least.
  if (awaited.size - 1 > stragglers * sent) return true
  for (const own of awaited) {
    const others = sent - own.sent
    if (others >= LEAST_OTHERS * sent && open - own.open <= stragglers * others) return false
  }
  return true
}

/** The part of the answers that come from others. With less one client decides alone. */
const LEAST_OTHERS = 0.1
/** The part of the answers that one client counts for at most is 1 / this. */
const SHARES = 10
/** To look at so many clients for each answer takes little time. */
const FEW = 16

interface Growth {
  /** It is hardly less than this. */
  readonly least: number
  /** Its standard error. */
  readonly error: number
}

const UNKNOWN: Growth = { least: 0, error: 0 }

/** The answers of one client. Times are in ms. */
class ClientAnswers {
  answers = 0
  failed = 0
  late = 0
  /** Those of known latency, and the sums of a regression of the latency `y` on the time of sending `x`. */
  timed = 0
  x = 0
  y = 0
  xx = 0
  xy = 0
  yy = 0
}

/**
 * The answers to requests of one window of time, and what they say of the upstream.
 *
 * They are counted by client, so that no client decides for all: one that has more than a tenth of the answers counts as a
 * tenth. Nine clients or fewer cannot be a tenth each, so there is a second rule: what is bad has to be bad without any one of
 * them, too, where the others have sent enough to judge by.
 */
export class Sample {
  readonly #clients = new Map<string, ClientAnswers>()
  answers = 0
  late = 0
  failed = 0
  /** With so many answers it is looked at again. */
  #lookAt = 0

  /** Takes a look at all clients, which takes time for each. So there is one for every (clients / 16) answers. False: not now. */
  takeLook(): boolean {
    if (this.answers < this.#lookAt) return false
    this.#lookAt = this.answers + Math.floor(this.#clients.size / FEW)
    return true
  }

  addFailed(client: string): void {
    const own = this.#of(client)
    own.failed += 1
    this.failed += 1
  }

  /** @param latency ms. Undefined: it says nothing of the upstream */
  addServed(client: string, sentAt: number, latency: number | undefined): void {
    const own = this.#of(client)
    if (latency !== undefined) time(own, sentAt, latency)
  }

  /** A request is out for longer than it should be. @param target ms */
  addLate(client: string, sentAt: number, target: number): void {
    const own = this.#of(client)
    own.late += 1
    this.late += 1
    time(own, sentAt, target)
  }

  #of(client: string): ClientAnswers {
    let own = this.#clients.get(client)
    if (own === undefined) {
      own = new ClientAnswers()
      this.#clients.set(client, own)
    }
    own.answers += 1
    this.answers += 1
    return own
  }

  /** How many answers more than `allowed`, a part of all, are late or have failed. Negative: fewer. */
  surplus(what: 'late' | 'failed', allowed: number): number {
    const most = this.#most()
    let all = 0
    let worst = 0
    let answersOfWorst = 0
    for (const client of this.#clients.values()) {
      const own = weightOf(client, most) * (client[what] - allowed * client.answers)
      all += own
      if (own <= worst) continue
      worst = own
      answersOfWorst = client.answers
    }
    return this.answers - answersOfWorst < LEAST_OTHERS * this.answers ? all : all - worst
  }

  /** By how much the latency grows with the time of sending, in ms for each ms: at a rate above the capacity C, by rate / C - 1. */
  growth(): Growth {
    const most = this.#most()
    const sums = new ClientAnswers()
    for (const client of this.#clients.values()) add(sums, client, weightOf(client, most))
    let least = slopeOf(sums)
    if (this.#clients.size >= SHARES) return least
    for (const client of this.#clients.values()) {
      if (this.answers - client.answers < LEAST_OTHERS * this.answers) continue
      const others = new ClientAnswers()
      add(others, sums, 1)
      add(others, client, -weightOf(client, most))
      const slope = slopeOf(others)
      if (slope.least < least.least) least = slope
    }
    return least
  }

  get latency(): number {
    let sum = 0
    let count = 0
    for (const { timed, y } of this.#clients.values()) {
      sum += y
      count += timed
    }
    return count === 0 ? 0 : sum / count
  }

  /** How many answers of one client count, so that none is more than a tenth of those that do. */
  #most(): number {
    if (this.#clients.size < SHARES) return Infinity
    const counts = [...this.#clients.values()].map(({ answers }) => answers).sort((a, b) => b - a)
    let rest = this.answers
    for (let capped = 0; capped < SHARES; capped += 1) {
      const most = rest / (SHARES - capped)
      if (counts[capped]! <= most) return most
      rest -= counts[capped]!
    }
    return Infinity
  }
}

function weightOf({ answers }: ClientAnswers, most: number): number {
  return answers <= most ? 1 : most / answers
}

function time(to: ClientAnswers, x: number, y: number): void {
  to.timed += 1
  to.x += x
  to.y += y
  to.xx += x * x
  to.xy += x * y
  to.yy += y * y
}

function add(to: ClientAnswers, { timed, x, y, xx, xy, yy }: ClientAnswers, weight: number): void {
  to.timed += weight * timed
  to.x += weight * x
  to.y += weight * y
  to.xx += weight * xx
  to.xy += weight * xy
  to.yy += weight * yy
}

function slopeOf({ timed: n, x, y, xx, xy, yy }: ClientAnswers): Growth {
  const spread = xx - (x * x) / n
  if (n < 4 || spread <= 0) return UNKNOWN
  const joint = xy - (x * y) / n
  const slope = joint / spread
  const residual = Math.max(0, yy - (y * y) / n - slope * joint)
  const error = Math.sqrt(residual / (n - 2) / spread)
  // About the 95th percentile of Student's distribution.
  return { least: slope - (1.6 + 4 / n) * error, error }
}
