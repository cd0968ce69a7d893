/**
 * The store of a worker: the memory of its primary, at the other end of a pipe.
 *
 * The questions of one tick go in one message, and so do their answers. The next questions collect until that is answered
 * and, after a message of several, `APART` has passed. So questions of one client after another are sent at once, and a busy
 * worker sends few messages. Messages are answered in their order. News comes in between. Only moments have to be mapped, as
 * this process counts from its own start.
 */
import type { Duplex } from 'node:stream'
import { type Board, Listeners, type News, type Override, type View } from '../../core/board.js'
import {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  type GiveBackRequest,
  type LeaseAnswer,
  type LeaseRequest,
  type PromiseAnswer,
  type PromiseRequest,
  type Roll,
  type SettleRequest,
  type Store,
  StoreError,
} from '../../core/store.js'
import type { UpstreamState } from '../../core/upstream-state.js'
import { RoundTrip } from '../round-trip.js'
import { MACHINE, type StoreClock } from './clock.js'
import { type Frames, openFrames } from './frames.js'
import {
  type AnswerMessage,
  type AskedMessage,
  type AskedVerb,
  isNewsMessage,
  type NewsMessage,
  VERBS,
  type Verb,
} from './verbs.js'

/** ms. The least time from a message of several questions to the next. */
const APART = 1

export interface WorkerStoreOptions {
  /** To the primary. */
  readonly pipe: Duplex
  /** ms after which a question rejects */
  readonly timeout: number
  /** That of the machine, but in tests. */
  readonly clock?: StoreClock
}

export function createWorkerStore(options: WorkerStoreOptions): Store {
  return new WorkerStore(options)
}

interface Asked {
  answered(answer: unknown): void
  failed(error: StoreError): void
}

/** A message whose answer is yet to come. */
interface Message {
  /** When the first of its questions was asked, in ms: they may have waited for other answers. */
  readonly askedAt: number
  readonly deadline: number
  /** Emptied when nobody waits for the answer any more. */
  asked: readonly Asked[]
}

class WorkerStore implements Store {
  readonly #frames: Frames
  readonly #timeout: number
  readonly #clock: StoreClock
  /** The questions of the next message, and when the first of them was asked. */
  #questions: AskedVerb[] = []
  #asked: Asked[] = []
  #askedAt = 0
  /** When the last message of several questions was sent. */
  #busyAt = -Infinity
  #next: NodeJS.Timeout | undefined
  readonly #roundTrip = new RoundTrip()
  /** In the order in which they were sent. */
  readonly #messages: Message[] = []
  #watch: NodeJS.Timeout | undefined
  readonly #listeners = new Listeners()
  /** The moments at which requests came are exact. */
  readonly keepsOrder = true
  #isClosed = false

  readonly board: Board = {
    setOverride: override => this.#ask('setOverride', [override], answer => answer as boolean),
    endOverride: (bucket, key) => this.#ask('endOverride', [bucket, key], answer => answer as boolean),
    overrides: () => this.#ask('overrides', [], answer => answer as Override[]),
    show: (kind, id, text) => this.#ask('show', [kind, id, text], ignore),
    views: kind => this.#ask('views', [kind], answer => answer as View[]),
    agreeOnSecret: proposed => this.#ask('agreeOnSecret', [proposed], answer => answer as string),
  }

  constructor({ pipe, timeout, clock = MACHINE }: WorkerStoreOptions) {
    this.#timeout = timeout
    this.#clock = clock
    this.#frames = openFrames(pipe, value => this.#received(value as AnswerMessage | NewsMessage), this.#closed)
  }

  get horizon(): number {
    return this.#roundTrip.horizon
  }

  admit(request: AdmitRequest): Promise<Admission> {
    return this.#ask('admit', [request], answer => {
      const admission = answer as Admission
      if (!admission.admitted || admission.claim === undefined) return admission
      return { ...admission, claim: this.#readClaim(admission.claim) }
    })
  }

  claim(request: ClaimRequest): Promise<ClaimAnswer> {
    const { notBefore, ...rest } = request
    const theirs = notBefore === undefined ? rest : { ...rest, notBefore: this.#clock.theirs(notBefore) }
    return this.#ask('claim', [theirs], answer => this.#readClaim(answer as ClaimAnswer))
  }

  lease(request: LeaseRequest): Promise<LeaseAnswer> {
    const { ours } = this.#clock
    return this.#ask('lease', [this.#inTheirTime(request)], answer => {
      const { slots, nextAt, until, roomFrom, roomUntil, ...rest } = answer as LeaseAnswer
      const times = { nextAt: ours(nextAt), until: ours(until), roomFrom: ours(roomFrom), roomUntil: ours(roomUntil) }
      return { ...rest, ...times, slots: slots.map(slot => ({ ...slot, at: ours(slot.at) })) }
    })
  }

  #inTheirTime(request: LeaseRequest): LeaseRequest {
    const demand = request.demand.map(({ arrivals, ...rest }) =>
      arrivals === undefined
        ? rest
        : { ...rest, arrivals: { ...arrivals, times: arrivals.times.map(this.#clock.theirs) } },
    )
    return { ...request, demand }
  }

  giveBack(request: GiveBackRequest): Promise<void> {
    return this.#ask('giveBack', [request], ignore)
  }

  settle(request: SettleRequest): Promise<readonly number[]> {
    return this.#ask('settle', [request], answer => answer as readonly number[])
  }

  promise(request: PromiseRequest): Promise<PromiseAnswer> {
    return this.#ask('promise', [request], answer => answer as PromiseAnswer)
  }

  reset(bucket: BucketRef): Promise<void> {
    return this.#ask('reset', [bucket], ignore)
  }

  beat(id: string): Promise<Roll> {
    return this.#ask('beat', [id], answer => {
      const roll = answer as Roll
      return { ...roll, epoch: this.#clock.ours(roll.epoch) }
    })
  }

  leave(id: string): Promise<void> {
    return this.#ask('leave', [id], ignore)
  }

  exchange(upstream: string, news?: UpstreamState): Promise<UpstreamState> {
    return this.#ask('exchange', [upstream, news], answer => answer as UpstreamState)
  }

  listen(listener: (news: News) => void): () => void {
    return this.#listeners.add(listener)
  }

  async close(): Promise<void> {
    this.#frames.close()
  }

  #readClaim(claim: ClaimAnswer): ClaimAnswer {
    const { ours } = this.#clock
    if (!claim.granted) return { granted: false, freeAt: claim.freeAt.map(ours) }
    const { at, from, token } = claim.slot
    return { granted: true, slot: { at: ours(at), from: ours(from), token } }
  }

  #ask<T>(verb: Verb, input: readonly unknown[], read: (answer: unknown) => T): Promise<T> {
    if (this.#isClosed) return Promise.reject(new StoreError('the primary is gone'))
    return new Promise<T>((resolve, reject: (error: StoreError) => void) => {
      if (this.#questions.push([VERBS.indexOf(verb), ...input]) === 1) {
        this.#askedAt = this.#clock.now()
        setImmediate(this.#flush)
      }
      const answered = (answer: unknown): void => {
        try {
          resolve(read(answer))
        } catch (cause) {
          reject(new StoreError('the answer of the primary cannot be read', { cause }))
        }
      }
      this.#asked.push({ answered, failed: reject })
    })
  }

  readonly #flush = (): void => {
    if (this.#questions.length === 0 || this.#messages.some(({ asked }) => asked.length > 0)) return
    const now = this.#clock.now()
    if (now - this.#busyAt < APART) {
      this.#next ??= setTimeout(this.#flushNext, APART)
      return
    }
    if (this.#questions.length > 1) this.#busyAt = now
    const message = { askedAt: this.#askedAt, deadline: this.#askedAt + this.#timeout, asked: this.#asked }
    const questions = this.#questions
    this.#questions = []
    this.#asked = []
    this.#messages.push(message)
    const { horizon, back } = this.#roundTrip
    this.#frames.send({ deadline: message.deadline, horizon, back, questions } satisfies AskedMessage)
    // The first of its questions may have waited for other answers.
    this.#watch ??= setTimeout(this.#look, Math.max(0, Math.ceil(message.deadline - now)))
  }

  readonly #flushNext = (): void => {
    this.#next = undefined
    this.#flush()
  }

  #received(received: AnswerMessage | NewsMessage): void {
    if (isNewsMessage(received)) this.#listeners.tell(received.news)
    else this.#answered(received)
  }

  #answered(answers: AnswerMessage): void {
    const message = this.#messages.shift()
    if (message === undefined) return
    const took = this.#clock.now() - message.askedAt
    // Moments of the machine's clock are mapped exactly, so an answer is late by its way.
    this.#roundTrip.learn(took, took)
    if (typeof answers === 'string') fail(message, answers)
    else for (const [place, { answered }] of message.asked.entries()) answered(answers[place])
    this.#flush()
  }

  /** Fails what the primary has not answered in time. It looks once in each `timeout`, or when the next one is due. */
  readonly #look = (): void => {
    // If this process was held up, the answers may be there already.
    setImmediate(() => {
      this.#watch = undefined
      const now = this.#clock.now()
      for (const message of this.#messages) {
        if (message.asked.length === 0) continue
        if (message.deadline > now) {
          this.#watch = setTimeout(this.#look, Math.ceil(message.deadline - now))
          return
        }
        fail(message, 'the primary did not answer in time')
      }
      this.#flush()
    })
  }

  readonly #closed = (): void => {
    this.#isClosed = true
    clearTimeout(this.#watch)
    clearTimeout(this.#next)
    const unsent = { askedAt: 0, deadline: 0, asked: this.#asked }
    this.#questions = []
    for (const message of [...this.#messages.splice(0), unsent]) fail(message, 'the primary is gone')
  }
}

function fail(message: Message, reason: string): void {
  const { asked } = message
  message.asked = []
  for (const { failed } of asked) failed(new StoreError(reason))
}

function ignore(): void {}
