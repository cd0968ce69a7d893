/**
 * Decides whether the store can be relied on, and how many instances share it.
 *
 * Without the store each instance goes on alone with its share of every rate: 1 / N of the instances last seen. So the sum
 * over all instances stays the rate. These transitions keep the sum at or below the rate all the time:
 *
 *     shared ----- an answer is missing ----> doubtful    releases nothing until a probe is answered or not
 *     doubtful --- the probe is not --------> alone       releases by its own clock, at its share
 *     alone ------ a probe is answered -----> returning   releases by slots of the store *and* at its share
 *     returning -- after RETURN_MS ---------> shared      releases by slots of the store
 *
 * Instances notice the end of an outage at different times, at most a few probes apart. In that time each is alone or
 * returning, so each keeps to its share. RETURN_MS is longer than that: when an instance becomes `shared`, all others
 * are bound by the slots of the store again.
 *
 * N is the largest number seen lately, less the instances that have left in order. A store that has lost its data has an
 * empty registry, and must not make every instance believe that it is the only one.
 */
import type { Cancel, Clock } from '../core/clock.js'
import type { BucketRef, Store } from '../core/store.js'

export type MembershipState = 'shared' | 'doubtful' | 'alone' | 'returning'

/** Intervals of heartbeats while shared, and of probes otherwise; how long an instance is `returning`. */
const BEAT_MS = 1_000
const PROBE_MS = 100
const RETURN_MS = 1_000
/** How long a start waits for the store. An instance that starts alone knows of no others. */
const JOIN_MS = 2_000

/** How long a number of instances counts after it was seen, in ms. */
const MEMORY_MS = 30_000

/** Lower bounds on the number of instances, this one included. */
export interface LeastInstances {
  /** Holds until the store has answered. */
  readonly assumed?: number | undefined
  /** Always holds. */
  readonly workers?: number | undefined
}

export interface MembershipOptions {
  readonly store: Store
  readonly clock: Clock
  /** Unique among all instances. */
  readonly id: string
  readonly least?: LeastInstances | undefined
  /** The state or the number of instances has changed. */
  changed(): void
}

export class Membership {
  readonly #options: MembershipOptions
  #state: MembershipState = 'shared'
  #counts: { at: number; count: number }[] = []
  /** How many instances had left at the last answered beat. */
  #departed = 0
  #returnedAt = 0
  /** The time of the last probe that was answered, in ms. */
  #provenAt = -Infinity
  #next: Cancel = () => false
  /** The stack of the unanswered request. Probes ask for it, because other parts of a store may still answer. */
  #suspect: readonly BucketRef[] | undefined
  /** Whether the store has told the number of instances. */
  #hasShared = false
  #closed = false
  /** The last probe. */
  #probed: Promise<boolean> = Promise.resolve(false)

  constructor(options: MembershipOptions) {
    this.#options = options
  }

  get state(): MembershipState {
    return this.#state
  }

  /** The known number of instances, this one included. */
  get instances(): number {
    const { assumed = 1, workers = 1 } = this.#options.least ?? {}
    return Math.max(workers, this.#hasShared ? 1 : assumed, ...this.#counts.map(({ count }) => count))
  }

  /** The share of every rate that belongs to this instance. */
  get share(): number {
    return this.#state === 'alone' || this.#state === 'returning' ? 1 / this.instances : 1
  }

  /** Registers this instance and starts its heartbeats. False: the store does not answer. */
  async join(): Promise<boolean> {
    const { clock } = this.#options
    const deadline = clock.now() + JOIN_MS
    let answered = await this.#probe()
    while (!answered && clock.now() < deadline) {
      await new Promise<void>(resolve => clock.at(clock.now() + PROBE_MS, resolve))
      answered = await this.#probe()
    }
    this.#enter(answered ? 'shared' : 'alone')
    this.#plan()
    return answered
  }

  /** Reports that a request about a stack had no answer. @param askedAt ms */
  failed(stack: readonly BucketRef[], askedAt: number): void {
    if (this.#closed || this.#state === 'doubtful' || this.#state === 'alone') return
    // The request was sent before the last answered probe, in an outage that is over.
    if (askedAt < this.#provenAt) return
    this.#suspect = stack
    this.#enter(this.#state === 'shared' ? 'doubtful' : 'alone')
    this.#next()
    void this.#beat()
  }

  /** Ends the heartbeats. If the store answers, it is told once, so that the others notice at once. */
  async leave(): Promise<void> {
    const isAnswering = this.#hasShared && (this.#state === 'shared' || this.#state === 'returning')
    this.#closed = true
    this.#next()
    // A beat that arrived later would register this instance again.
    if (!isAnswering || !(await this.#probed)) return
    const { store, id } = this.#options
    try {
      await store.leave?.(id)
    } catch {
      // The others notice the missing heartbeats.
    }
  }

  readonly #beat = async (): Promise<void> => {
    const answered = await this.#probe()
    if (this.#closed) return
    const { now } = this.#options.clock
    if (answered) {
      if (this.#state === 'doubtful') this.#enter('shared')
      else if (this.#state === 'alone') {
        this.#returnedAt = now()
        this.#enter('returning')
      } else if (this.#state === 'returning' && now() - this.#returnedAt >= RETURN_MS) this.#enter('shared')
    } else if (this.#state !== 'alone') this.#enter(this.#state === 'shared' ? 'doubtful' : 'alone')
    this.#plan()
  }

  #probe(): Promise<boolean> {
    this.#probed = this.#ask()
    return this.#probed
  }

  async #ask(): Promise<boolean> {
    const { store, id } = this.#options
    const before = this.instances
    const sentAt = this.#options.clock.now()
    try {
      // A write with no effect, on the path that had failed. It comes first: a heartbeat may open another connection.
      if (this.#suspect !== undefined) {
        await store.admit({ stack: this.#suspect, cost: 0, maxWait: Infinity, claim: false })
      }
      const count = await store.beat(id)
      this.#remember(count, store.left ?? 0)
      this.#provenAt = sentAt
    } catch {
      return false
    }
    if (this.instances !== before) this.#options.changed()
    return true
  }

  #remember(count: number, departed: number): void {
    const at = this.#options.clock.now()
    const newlyDeparted = Math.max(0, departed - this.#departed)
    this.#departed = departed
    this.#counts = this.#counts
      .map(seen => ({ ...seen, count: seen.count - newlyDeparted }))
      .filter(seen => seen.at > at - MEMORY_MS && seen.count > count)
    this.#counts.push({ at, count })
  }

  #plan(): void {
    if (this.#closed) return
    const { clock } = this.#options
    const interval = this.#state === 'shared' ? BEAT_MS : this.#state === 'doubtful' ? 0 : PROBE_MS
    this.#next()
    this.#next = clock.at(clock.now() + interval, () => void this.#beat())
  }

  #enter(state: MembershipState): void {
    this.#state = state
    if (state === 'shared') {
      this.#suspect = undefined
      this.#hasShared = true
    }
    this.#options.changed()
  }
}
