/**
 * An instance that sends what a table keeps.
 *
 * **Nobody is lost.** A delivery leaves the table's `waiting` only with the result of an attempt, or because it is cancelled. An
 * instance owns what it is about to send, as long as it lives: it says so each second, and what it has not said for `LEASE` frees
 * all that it owned. So an attempt whose result was not recorded is made again: at least once.
 *
 * **Answers that are not heard.** A claim may have been committed although it failed here. The next claim names what the instance knows
 * to have, and the table gives back the rest. A result names the attempts before it, so one that is written again changes nothing.
 * All interleavings of two instances and a model of the table are played in test/deliver/interleavings.
 *
 * **Never two at a time.** An instance that could not say so in time by its own clock, which began before the server's, breaks off
 * and forgets what it owned. It looks at that at each release, too, after a stall. It may only come back under another name.
 *
 * **Order.** With `ordered` an instance takes the first deliveries of a lane in a row, and only where nobody owns the first one. So
 * one instance at a time has a lane. It sends the next when the result of the one before is in the table. If one fails it gives
 * back those behind it. Then the first of the lane is not due, and nobody takes the others.
 *
 * **In their turn.** Of each lane a few deliveries are loaded ahead, and two of these wait in the queue of the proxy. So r does
 * not wait for the table, and a lane with a million deliveries takes from the buckets of others what two requests take.
 */
import { randomUUID } from 'node:crypto'
import type { DeliverSettings } from '../config/settings.js'
import type { Cancel, Clock } from '../core/clock.js'
import { namedPause } from '../http/quota/pause-rule.js'
import type { ProxyContext } from '../proxy/context.js'
import { joinedFields } from '../proxy/http/fields.js'
import { Attempt, type AttemptEnd, type AttemptOptions, type StoredHead } from './attempt.js'
import type { ClaimedRow, DeliveryTable, Result } from './table.js'

/** ms. An instance that has not said for so long that it lives is dead. */
export const LEASE = 10_000
/** ms that it counts less itself. */
const MARGIN = 1_000
const BEAT = 1_000
/** ms between two looks for what is due: what others have accepted, and what is tried again. */
const POLL = 250
/** ms after which it is told that a delivery is sent, unless it has its answer by then. */
const NOTE = 50
/** ms until results are written again that could not be. */
const AGAIN = 500
/** Deliveries of a lane that wait in the proxy's queue. */
const QUEUED = 2
/** Deliveries of a route that are loaded and not sent, in all lanes, and of one lane. */
const LOADED = 400
const DEEPEST = 32
/** Deliveries of a route that are sent and not answered. */
const IN_FLIGHT = 1_000
/** Bytes of all that are loaded. One claim may go beyond it. */
const MOST_BYTES = 64 * 1024 * 1024
const RESULTS = 256
/** ms. A lane that a limit holds up for longer is given back, and tried again after at most `RECHECKED`: limits change. */
const LONG = 5_000
const RECHECKED = 60_000
/** Lanes of a route that an instance knows to be held up. */
const HELD_UP = 10_000
/** ms that results may take at the end. */
const FAREWELL = 2_000
const PRUNE = 60_000

export interface WorkerOptions {
  readonly table: DeliveryTable
  readonly context: ProxyContext
  readonly clock: Clock
  readonly wallNow: () => number
  /** From 0 to 1. */
  readonly random: () => number
  /** ms */
  readonly lease: number
  /** Default: through the proxy. */
  readonly attempt?: (options: AttemptOptions) => Pick<Attempt, 'begin' | 'abort'>
  onError(error: Error): void
  /** An attempt has a result. */
  recorded(route: string, result: 'done' | 'retry' | 'dead' | 'cancelled'): void
}

interface Job {
  readonly id: string
  /** Its place among all that this instance has loaded. */
  readonly place: number
  readonly lane: Lane
  readonly head: StoredHead
  readonly body: Buffer
  readonly attempts: number
  readonly owner: string
  attempt: Pick<Attempt, 'begin' | 'abort'> | undefined
  isSent: boolean
  isCancelled: boolean
}

interface Lane {
  readonly key: string
  /** Not begun, in order. */
  readonly jobs: Job[]
  /** Begun and not sent. */
  queued: number
  /** Begun, without a result. */
  busy: number
  pausedUntil: number
  /** The table says that a limit holds it up. */
  isHeldUp: boolean
  wake: Cancel | undefined
}

export class Worker {
  readonly options: WorkerOptions
  readonly #routes = new Map<string, RouteQueue>()
  /** Of routes that are no more. What is sent may end. */
  readonly #former = new Set<RouteQueue>()
  /** Its name, until it is taken for dead. */
  owner: string = randomUUID()
  #aliveUntil = -Infinity
  #results: { readonly result: Result; readonly written: () => void }[] = []
  #isWriting = false
  #notes = new Set<Job>()
  /** ms for which limits hold up lanes, that are to be told. */
  #heldUp = new Map<string, number>()
  #areNotesDue = false
  #timers = new Map<'beat' | 'end' | 'note' | 'prune' | 'again', Cancel>()
  #isClosed = false

  constructor(options: WorkerOptions) {
    this.options = options
  }

  /** Whether what it owns is its own for sure. */
  get isAlive(): boolean {
    return !this.#isClosed && this.options.clock.now() < this.#aliveUntil
  }

  /** @throws if the server does not answer */
  async start(): Promise<void> {
    const since = this.options.clock.now()
    await this.options.table.join(this.owner, this.options.lease)
    this.#lives(since)
    this.#at('beat', BEAT, () => void this.#beat())
    this.#at('prune', PRUNE * this.options.random(), () => void this.#prune())
  }

  setRoutes(routes: ReadonlyMap<string, DeliverSettings>): void {
    for (const [name, queue] of this.#routes) {
      if (routes.has(name)) continue
      this.#routes.delete(name)
      this.#former.add(queue)
      queue.leave()
    }
    for (const [name, settings] of routes) {
      const known = this.#routes.get(name)
      if (known !== undefined) known.settings = settings
      else this.#routes.set(name, new RouteQueue(name, settings, this))
    }
    for (const queue of this.#routes.values()) queue.look()
  }

  get #queues(): readonly RouteQueue[] {
    return [...this.#routes.values(), ...this.#former]
  }

  limitsChanged(): void {
    for (const queue of this.#routes.values()) queue.limitsChanged()
  }

  /** There is something new for a route. */
  look(route: string): void {
    this.#routes.get(route)?.look()
  }

  /** Whether a delivery is on its way from here. Undefined: it is not here. */
  isSent(id: string): boolean | undefined {
    for (const queue of this.#routes.values()) {
      const job = queue.jobs.get(id)
      if (job !== undefined) return job.isSent
    }
    return undefined
  }

  cancel(id: string): void {
    for (const queue of this.#routes.values()) queue.cancel(id)
  }

  #at(which: 'beat' | 'end' | 'note' | 'prune' | 'again', ms: number, run: () => void): void {
    const { clock } = this.options
    this.#timers.get(which)?.()
    if (this.#isClosed) return
    this.#timers.set(
      which,
      clock.at(clock.now() + ms, () => {
        this.#timers.delete(which)
        run()
      }),
    )
  }

  #lives(since: number): void {
    const { clock, lease } = this.options
    this.#aliveUntil = since + lease - Math.min(MARGIN, lease / 4)
    this.#at('end', this.#aliveUntil - clock.now(), () => this.lose())
  }

  async #beat(): Promise<void> {
    const { clock, table, lease, onError } = this.options
    const since = clock.now()
    try {
      const cancelled = await table.beat(this.owner, lease)
      if (cancelled === undefined) {
        this.lose()
        await table.join(this.owner, lease)
      }
      this.#lives(since)
      for (const id of cancelled ?? []) this.cancel(id)
      for (const queue of this.#routes.values()) queue.look()
      for (const queue of this.#former) if (queue.jobs.size === 0) this.#former.delete(queue)
    } catch (error) {
      onError(error as Error)
    }
    this.#at('beat', BEAT, () => void this.#beat())
  }

  /** Others may send now what it owned. */
  lose(): void {
    this.owner = randomUUID()
    this.#aliveUntil = -Infinity
    this.#notes.clear()
    for (const queue of this.#queues) queue.lose()
    // The next beat finds that nobody has this name, and takes it.
  }

  async #prune(): Promise<void> {
    const { table, onError } = this.options
    try {
      for (const [name, { settings }] of this.#routes) while (await table.prune(name, settings.keep));
    } catch (error) {
      onError(error as Error)
    }
    this.#at('prune', PRUNE, () => void this.#prune())
  }

  holdUp(lane: string, ms: number): void {
    this.#heldUp.set(lane, ms)
    this.#note()
  }

  noteSent(job: Job): void {
    this.#notes.add(job)
    this.#note()
  }

  #note(): void {
    if (this.#timers.has('note')) return
    this.#at('note', NOTE, () => {
      this.#areNotesDue = true
      void this.#write()
    })
  }

  async #tell(): Promise<void> {
    const { table, onError } = this.options
    this.#areNotesDue = false
    const ids = [...this.#notes].map(({ id }) => id)
    const heldUp = this.#heldUp
    this.#notes.clear()
    this.#heldUp = new Map()
    if (heldUp.size > 0) await table.holdUp(heldUp).catch(onError)
    if (ids.length > 0) await table.noteSent(this.owner, ids).catch(onError)
  }

  /** Deliveries whose results are not in the table, as far as is known. */
  get unwritten(): ReadonlySet<string> {
    return new Set(this.#results.map(({ result }) => result.id))
  }

  /** Resolves when it is written. */
  record(job: Job, result: Omit<Result, 'id' | 'owner' | 'attempts'>): Promise<void> {
    this.#notes.delete(job)
    return new Promise(written => {
      const { id, owner, attempts } = job
      this.#results.push({ result: { id, owner, attempts, ...result }, written })
      void this.#write()
    })
  }

  /** One statement at a time: two that change some of the same rows could wait for each other. */
  async #write(): Promise<void> {
    if (this.#isWriting) return
    this.#isWriting = true
    const { table, onError } = this.options
    try {
      // Those of one tick go together.
      await undefined
      while (this.#results.length > 0 || this.#areNotesDue) {
        if (this.#areNotesDue) await this.#tell()
        const some = this.#results.slice(0, RESULTS)
        if (some.length > 0) await table.record(some.map(({ result }) => result))
        this.#results.splice(0, some.length)
        for (const { written } of some) written()
      }
    } catch (error) {
      onError(error as Error)
      this.#at('again', AGAIN, () => void this.#write())
    } finally {
      this.#isWriting = false
    }
  }

  /** Begins no more and gives back what was not sent. */
  leave(): void {
    for (const queue of this.#routes.values()) queue.leave()
  }

  async close(): Promise<void> {
    this.leave()
    for (const queue of this.#queues) queue.abort()
    // What was broken off is told in the next turns.
    await new Promise(resolve => setImmediate(resolve))
    const end = Date.now() + FAREWELL
    while (this.#results.length > 0 && Date.now() < end) await new Promise(resolve => setTimeout(resolve, 10))
    this.#isClosed = true
    for (const cancel of this.#timers.values()) cancel()
    for (const queue of this.#queues) queue.lose()
    await this.options.table.leave(this.owner).catch(this.options.onError)
  }
}

/** The deliveries of one route that this instance owns. */
class RouteQueue {
  settings: DeliverSettings
  readonly jobs = new Map<string, Job>()
  readonly #name: string
  readonly #worker: Worker
  readonly #lanes = new Map<string, Lane>()
  /** Lanes that a limit holds up, and when they are tried again. */
  readonly #heldUp = new Map<string, number>()
  #places = 0
  #bytes = 0
  #inFlight = 0
  #after = ''
  #looking: 'no' | 'yes' | 'again' = 'no'
  /** A claim has failed, so the table may say that this instance has more than it knows. */
  #isUnsure = false
  /** The table says so of these. */
  readonly #unwanted = new Set<string>()
  #cancelPoll: Cancel | undefined
  #isLeaving = false

  constructor(name: string, settings: DeliverSettings, worker: Worker) {
    this.#name = name
    this.settings = settings
    this.#worker = worker
  }

  limitsChanged(): void {
    for (const key of this.#heldUp.keys()) this.#heldUp.set(key, -Infinity)
    for (const lane of [...this.#lanes.values()]) {
      lane.pausedUntil = -Infinity
      this.#pump(lane)
    }
    this.look()
  }

  get #deepest(): number {
    return Math.max(QUEUED, Math.min(DEEPEST, Math.floor(LOADED / (this.#lanes.size + 1))))
  }

  /** Loads what is due, if there is room. */
  look(): void {
    if (this.#looking !== 'no') {
      this.#looking = 'again'
      return
    }
    if (this.#isLeaving) return
    this.#cancelPoll?.()
    const { clock } = this.#worker.options
    this.#cancelPoll = clock.at(clock.now() + POLL, () => this.look())
    const most = LOADED - (this.jobs.size - this.#inFlight)
    if (!this.#worker.isAlive || most <= 0 || this.#bytes > MOST_BYTES || this.#inFlight >= IN_FLIGHT) return
    void this.#load(most)
  }

  async #load(most: number): Promise<void> {
    const { table, onError, clock } = this.#worker.options
    const { owner } = this.#worker
    this.#looking = 'yes'
    const before = this.#after
    let found = 0
    try {
      const held = new Map([...this.#lanes].map(([key, { jobs, queued }]) => [key, jobs.length + queued]))
      // One of a lane is enough to see whether it is still held up.
      for (const [key, until] of this.#heldUp) held.set(key, until > clock.now() ? this.#deepest : this.#deepest - 1)
      const { ordered: isOrdered, maxBody } = this.settings
      const atOnce = Math.max(QUEUED, Math.min(most, 100, Math.floor(MOST_BYTES / 2 / (maxBody + 1))))
      const known = this.#isUnsure || this.#unwanted.size > 0 ? this.#known() : undefined
      const room = { most: atOnce, perLane: this.#deepest, held }
      const asked = { owner, route: this.#name, isOrdered, after: before, known, ...room }
      const { rows, next } = await table.claim(asked)
      this.#isUnsure = false
      this.#unwanted.clear()
      this.#after = next
      // It was taken for dead meanwhile, so these are free again.
      if (owner !== this.#worker.owner) return
      found = this.#enter(rows, owner)
      if (this.#isLeaving) this.leave()
      else for (const lane of [...this.#lanes.values()]) this.#pump(lane)
    } catch (error) {
      this.#isUnsure = true
      onError(error as Error)
      return
    } finally {
      const isAgain = (this.#looking as string) === 'again'
      this.#looking = 'no'
      // From the first lane again, or on to the lanes that it has not seen.
      if (isAgain || found > 0 || (before !== '' && this.#after === '')) setImmediate(() => this.look())
    }
  }

  /** @returns how many of them are this instance's to send */
  #enter(rows: readonly ClaimedRow[], owner: string): number {
    const { unwritten } = this.#worker
    const broken = new Set<string>()
    for (const { id, lane, head, body, attempts } of rows) {
      const key = lane.toString('hex')
      // Its last result is in the table, but that was not heard of. If it is written again it frees the delivery, so that is done now,
      // and with those behind it.
      if (unwritten.has(id)) broken.add(key)
      if (broken.has(key)) {
        this.#unwanted.add(id)
        continue
      }
      const place = this.#places
      this.#places += 1
      const fresh = { attempt: undefined, isSent: false, isCancelled: false }
      const job: Job = { id, place, body, attempts, owner, ...fresh, lane: this.#laneOf(key), head: JSON.parse(head) }
      this.jobs.set(id, job)
      this.#bytes += body.length
      job.lane.jobs.push(job)
    }
    return rows.length - this.#unwanted.size
  }

  /** What it has, or had until results are written. */
  #known(): string[] {
    const unwritten = [...this.#worker.unwritten].filter(id => !this.#unwanted.has(id))
    return [...this.jobs.keys(), ...unwritten]
  }

  #laneOf(key: string): Lane {
    const known = this.#lanes.get(key)
    if (known !== undefined) return known
    const isHeldUp = this.#heldUp.delete(key)
    const lane = { key, jobs: [], queued: 0, busy: 0, pausedUntil: -Infinity, isHeldUp, wake: undefined }
    this.#lanes.set(key, lane)
    return lane
  }

  #pump(lane: Lane): void {
    const { clock } = this.#worker.options
    while (lane.jobs.length > 0 && !this.#isLeaving) {
      if (lane.pausedUntil > clock.now()) {
        lane.wake?.()
        lane.wake = clock.at(lane.pausedUntil, () => this.#pump(lane))
        return
      }
      if (lane.queued >= QUEUED || (this.settings.ordered && lane.busy > 0) || this.#inFlight >= IN_FLIGHT) return
      this.#begin(lane.jobs.shift()!)
    }
    if (lane.jobs.length > 0 || lane.busy > 0) return
    lane.wake?.()
    this.#lanes.delete(lane.key)
  }

  #begin(job: Job): void {
    const { lane } = job
    if (!this.#worker.isAlive) return this.#worker.lose()
    lane.queued += 1
    lane.busy += 1
    const { context, attempt = (options: AttemptOptions) => new Attempt(options) } = this.#worker.options
    job.attempt = attempt({
      context,
      route: this.#name,
      head: job.head,
      body: job.body,
      mayLeave: () => this.#owns(job) && this.#worker.isAlive,
      sent: () => this.#sent(job),
      ended: end => this.#ended(job, end),
    })
    job.attempt.begin()
  }

  #owns(job: Job): boolean {
    return this.jobs.get(job.id) === job
  }

  #sent(job: Job): void {
    if (job.isSent || !this.#owns(job)) return
    job.isSent = true
    job.lane.queued -= 1
    this.#inFlight += 1
    this.#worker.noteSent(job)
    if (job.lane.isHeldUp) this.#worker.holdUp(job.lane.key, 0)
    job.lane.isHeldUp = false
    // Not now: it is called while the engine releases.
    queueMicrotask(() => {
      this.#pump(job.lane)
      if (job.lane.jobs.length * 2 < this.#deepest) this.look()
    })
  }

  #ended(job: Job, end: AttemptEnd): void {
    if (!this.#owns(job)) return
    const { lane } = job
    if (job.isSent) this.#inFlight -= 1
    else lane.queued -= 1
    job.attempt = undefined
    const isTried = end.fate === 'tried' || (end.outcome === 'refused' && problemOf(end).status !== 503)
    if (isTried) this.#tried(job, end)
    else this.#notSent(job, end)
    this.#pump(lane)
  }

  #notSent(job: Job, end: AttemptEnd): void {
    const { lane } = job
    if (job.isCancelled) return this.#over(job, { state: 'cancelled', tried: 0, delay: 0 })
    if (neverFits(end)) return this.#over(job, { state: 'dead', tried: 0, delay: 0, error: end.problem })
    if (this.#isLeaving || job.isSent) return this.#over(job, { state: 'waiting', tried: 0, delay: 0 })
    lane.busy -= 1
    const behind = lane.jobs.findIndex(({ place }) => place > job.place)
    lane.jobs.splice(behind < 0 ? lane.jobs.length : behind, 0, job)
    // Where many lanes contend for little room, they do not all ask for each place.
    const retryAfterMs = Math.max(problemOf(end).retryAfterMs ?? AGAIN, this.#lanes.size)
    lane.pausedUntil = this.#worker.options.clock.now() + retryAfterMs
    if (retryAfterMs > LONG) this.#holdUp(lane, retryAfterMs)
  }

  /** It takes no room from others meanwhile. */
  #holdUp({ key, jobs }: Lane, ms: number): void {
    this.#heldUp.set(key, this.#worker.options.clock.now() + Math.min(ms, RECHECKED))
    if (this.#heldUp.size > HELD_UP) this.#heldUp.delete(this.#heldUp.keys().next().value!)
    this.#worker.holdUp(key, ms)
    this.#giveBack(jobs)
  }

  #tried(job: Job, { answer, problem }: AttemptEnd): void {
    if (answer !== undefined && !isFailure(answer.status)) {
      const head = JSON.stringify({ status: answer.status, headers: answer.headers })
      return this.#over(job, { state: 'done', tried: 1, delay: 0, answer: head, answerBody: answer.body })
    }
    const { random, wallNow } = this.#worker.options
    const { attempts, backoff, maxBackoff, keep } = this.settings
    const longest = Math.min(maxBackoff, backoff * 2 ** Math.min(job.attempts, 60))
    const named = answer && namedPause(joinedFields(answer.headers), wallNow())
    const kept = answer && {
      answer: JSON.stringify({ status: answer.status, headers: answer.headers }),
      answerBody: answer.body,
    }
    const detail = `the upstream answered ${answer?.status}`
    const error = answer
      ? JSON.stringify({ type: 'about:blank', title: detail, status: answer.status, detail })
      : problem
    const state = job.attempts + 1 >= attempts ? 'dead' : 'waiting'
    this.#over(job, { state, tried: 1, delay: Math.min(named ?? random() * longest, keep), error, ...kept })
  }

  /** It is not this instance's any more once that is written. */
  #over(job: Job, result: Omit<Result, 'id' | 'owner' | 'attempts'>): void {
    const { lane } = job
    this.#drop(job)
    const { state, tried } = result
    if (state !== 'waiting' || tried === 1)
      this.#worker.options.recorded(this.#name, state === 'waiting' ? 'retry' : state)
    const written = this.#worker.record(job, result)
    if (!this.settings.ordered) lane.busy -= 1
    else {
      // Those behind it wait for it, here or elsewhere.
      if (state === 'waiting') this.#giveBack(lane.jobs)
      void written.then(() => {
        lane.busy -= 1
        if (this.#lanes.get(lane.key) === lane) this.#pump(lane)
        this.look()
      })
    }
  }

  #drop(job: Job): void {
    this.jobs.delete(job.id)
    this.#bytes -= job.body.length
  }

  #giveBack(jobs: Job[]): void {
    for (const job of jobs.splice(0)) {
      this.#drop(job)
      void this.#worker.record(job, { state: job.isCancelled ? 'cancelled' : 'waiting', tried: 0, delay: 0 })
    }
  }

  cancel(id: string): void {
    const job = this.jobs.get(id)
    if (job === undefined || job.isSent) return
    job.isCancelled = true
    if (job.attempt !== undefined) return job.attempt.abort()
    const { jobs } = job.lane
    this.#giveBack(jobs.splice(jobs.indexOf(job), 1))
    this.#pump(job.lane)
  }

  /** Nothing more is begun. What waits in the proxy is given back when it has left the queue. */
  leave(): void {
    this.#isLeaving = true
    this.#cancelPoll?.()
    for (const { jobs } of this.#lanes.values()) this.#giveBack(jobs)
    for (const job of [...this.jobs.values()]) if (!job.isSent) job.attempt?.abort()
  }

  abort(): void {
    for (const job of [...this.jobs.values()]) job.attempt?.abort()
  }

  /** What it had may be another's now. */
  lose(): void {
    const jobs = [...this.jobs.values()]
    this.jobs.clear()
    for (const lane of this.#lanes.values()) {
      lane.wake?.()
      lane.jobs.length = 0
    }
    this.#lanes.clear()
    this.#bytes = 0
    this.#inFlight = 0
    for (const job of jobs) job.attempt?.abort()
  }
}

/** It may go well if it is sent again. */
function isFailure(status: number): boolean {
  return status >= 500 || status === 408 || status === 425 || status === 429
}

interface Problem {
  readonly status?: number
  readonly retryAfterMs?: number
  readonly 'violated-policies'?: readonly string[]
}

/** A bucket has rejected it and names no time: it costs more than the bucket can hold. */
function neverFits(end: AttemptEnd): boolean {
  const problem = problemOf(end)
  return problem['violated-policies'] !== undefined && problem.retryAfterMs === undefined
}

function problemOf({ problem }: AttemptEnd): Problem {
  try {
    return JSON.parse(problem ?? '{}')
  } catch {
    return {}
  }
}
