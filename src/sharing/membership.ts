/**
 * Decides whether a shard of the store can be relied on. A store that is not a cluster has one.
 *
 * Without the shard each instance goes on alone with its share of every rate, 1 / N of the instances last seen (headcount.ts).
 * These transitions keep the sum at or below the rate all the time:
 *
 *     shared ----- an answer is missing ----> doubtful    releases nothing until a probe is answered or not
 *     doubtful --- the probe is not --------> alone       releases by its own clock, at its share
 *     doubtful --- the probe is answered ---> returning   releases by slots of the store *and* at its share
 *     alone ------ a probe is answered -----> returning
 *     returning -- after RETURN_MS ---------> shared      releases by slots of the store
 *
 * Instances notice the end of an outage a few probes apart. Until then each is alone or returning, so each keeps to its share.
 * RETURN_MS is longer: when an instance becomes `shared`, all others are bound by the slots of the store again. An instance
 * whose doubt ends with an answer returns in the same way: others may have asked a little earlier and be alone. It is `shared`
 * at once only if the shard has answered something asked after the question without an answer: then the outage was of another
 * shard, or shorter than an answer takes.
 */
import type { Cancel, Clock } from '../core/clock.js'
import type { BucketRef } from '../decider/record.js'
import type { Headcount } from './headcount.js'
import type { Roll, Store } from './store.js'

export type MembershipState = 'shared' | 'doubtful' | 'alone' | 'returning'
/** The interval of heartbeats while shared. */
const BEAT_MS = 1_000
/** The interval of probes otherwise. */
export const PROBE_MS = 100
/** For how long heartbeats are as frequent as probes: instances that start at once have to know of each other. */
const EARLY_MS = 1_000
const RETURN_MS = 1_000

/** Instances that are alone take turns: of each n slots of the whole rate one belongs to each. */
export interface Turn {
  /** The number of this instance among them, from 0. */
  readonly rank: number
  readonly instances: number
  /** The common beginning, in ms. */
  readonly epoch: number
}

export interface MembershipOptions {
  readonly store: Store
  readonly clock: Clock
  /** Unique among all instances. */
  readonly id: string
  /** As the store names it. Empty: the store is one, or its shards are not known yet. */
  readonly shard: string
  readonly headcount: Headcount
  changed(): void
  probed(): void
}

export class Membership {
  readonly #options: MembershipOptions
  state: MembershipState = 'shared'
  #startedAt = 0
  #returnedAt = 0
  #provenAt = -Infinity
  /** The time of the last question of any kind that was answered, in ms. */
  #heardAt = -Infinity
  /** Whether the shard has answered something that was asked after the question that put it in doubt. */
  #wasHeard = false
  #next: Cancel = () => false
  /** The stack of the unanswered request. Probes ask for it, because other parts of a store may still answer. */
  #suspect: readonly BucketRef[] | undefined
  #roll: Pick<Turn, 'rank' | 'epoch'> | undefined
  reason: string | undefined
  #closed = false
  #probed: Promise<boolean> = Promise.resolve(false)

  constructor(options: MembershipOptions) {
    this.#options = options
  }

  get ready(): boolean {
    return this.state === 'shared' || this.state === 'returning'
  }

  /** The share of every rate that belongs to this instance. */
  get share(): number {
    return this.state === 'alone' || this.state === 'returning' ? 1 / this.#options.headcount.instances : 1
  }

  /** This instance's turn while it is alone. Undefined: it does not know it. */
  get turn(): Turn | undefined {
    return this.#roll && { ...this.#roll, instances: this.#options.headcount.instances }
  }

  /** Starts the heartbeats. A shard that has not been tried is tried at once. */
  start(state: 'shared' | 'alone'): void {
    this.#startedAt = this.#options.clock.now()
    this.#enter(state)
    if (this.#provenAt === -Infinity && state === 'shared') void this.#beat()
    else this.#plan()
  }

  /** Reports that a question of this time had an answer. @param askedAt ms */
  answered(askedAt: number): void {
    if (askedAt > this.#heardAt) this.#heardAt = askedAt
  }

  /** Reports that a request about a stack had no answer. @param askedAt ms */
  failed(stack: readonly BucketRef[], askedAt: number): void {
    if (this.#closed || this.state === 'doubtful' || this.state === 'alone') return
    // The request was sent before the last answered probe, in an outage that is over.
    if (askedAt < this.#provenAt) return
    this.#suspect = stack
    this.#wasHeard = this.#heardAt > askedAt
    this.#enter(this.state === 'shared' ? 'doubtful' : 'alone')
    this.#next()
    void this.#beat()
  }

  /** Ends the heartbeats. If the store answers, it is told once, so that the others notice at once. */
  async leave(): Promise<void> {
    const isAnswering = this.#provenAt > -Infinity && this.ready
    this.#closed = true
    this.#next()
    // A beat that arrived later would register this instance again.
    if (!isAnswering || !(await this.#probed)) return
    const { store, id, shard } = this.#options
    try {
      await store.leave?.(id, shard)
    } catch {
      // The others notice the missing heartbeats.
    }
  }

  readonly #beat = async (): Promise<void> => {
    const answered = await this.probe()
    if (this.#closed) return
    if (answered) this.#proven()
    else if (this.state !== 'alone') {
      this.#wasHeard = false
      this.#enter(this.state === 'shared' ? 'doubtful' : 'alone')
    }
    this.#plan()
  }

  #proven(): void {
    const now = this.#options.clock.now()
    if (this.state === 'alone' || (this.state === 'doubtful' && !this.#wasHeard)) {
      this.#returnedAt = now
      this.#enter('returning')
    } else if (this.state === 'doubtful') this.#enter('shared')
    else if (this.state === 'returning' && now - this.#returnedAt >= RETURN_MS) this.#enter('shared')
  }

  /** Registers this instance. False: the shard does not answer. */
  probe(): Promise<boolean> {
    this.#probed = this.#ask().finally(this.#options.probed)
    return this.#probed
  }

  async #ask(): Promise<boolean> {
    const { store, id, shard, headcount, clock } = this.#options
    const sentAt = clock.now()
    let roll: Roll
    try {
      // A write with no effect, on the path that had failed. It comes first: a heartbeat may open another connection.
      if (this.#suspect !== undefined) {
        await store.admit({ stack: this.#suspect, cost: 0, maxWait: Infinity, claim: false })
      }
      roll = await store.beat(id, shard)
    } catch (error) {
      this.reason = (error as Error).message
      return false
    }
    this.#roll = roll
    this.#provenAt = sentAt
    this.reason = undefined
    headcount.seen(shard, roll, clock.now())
    return true
  }

  #plan(): void {
    if (this.#closed) return
    const { clock } = this.#options
    const now = clock.now()
    const beat = now - this.#startedAt < EARLY_MS ? PROBE_MS : BEAT_MS
    const interval = this.state === 'shared' ? beat : this.state === 'doubtful' ? 0 : PROBE_MS
    this.#next()
    this.#next = clock.at(now + interval, () => void this.#beat())
  }

  #enter(state: MembershipState): void {
    this.state = state
    if (state === 'shared') this.#suspect = undefined
    this.#options.changed()
  }
}
