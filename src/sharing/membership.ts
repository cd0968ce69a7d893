/**
 * Whether the store can be relied on, and with how many others this instance shares it.
 *
 * While it cannot, each instance goes on alone with its share of the rate, 1 / N of the instances last seen, so that the
 * sum stays the rate. The way there and back is such that the sum never exceeds it:
 *
 *     shared ----- an answer is missing ----> doubtful    nothing is released until a probe has told
 *     doubtful --- so is the probe's -------> alone       releases by the own clock, at the share
 *     alone ------ a probe is answered -----> returning   releases by the store's slots *and* at the share
 *     returning -- for long enough ---------> shared
 *
 * Instances learn of an outage's end at different moments, at most some probes apart. In that time some are alone and some
 * are returning, and all of them keep to their share. Whoever becomes `shared` does so when all others are bound by the
 * store's slots again. N is the most that was seen lately, less those that have left in order: an empty registry (a store
 * that has lost its data) must not make everyone believe to be the only one.
 */
import type { Cancel, Clock } from '../core/clock.js'
import type { BucketRef, Store } from '../core/store.js'

export type MembershipState = 'shared' | 'doubtful' | 'alone' | 'returning'

/** ms */
const BEAT_MS = 1_000
const PROBE_MS = 100
const RETURN_MS = 1_000
/** An instance that starts alone may know of no others: it tries for longer than one answer takes. */
const JOIN_MS = 2_000

/** For how long, in ms, an instance that was seen counts. */
const MEMORY_MS = 30_000

/** What is known of the number of instances without the store. */
export interface LeastInstances {
  /** So many there are at least, this one included, until the store has told. */
  readonly assumed?: number | undefined
  /** So many there are at least, this one included, whatever the store tells. */
  readonly workers?: number | undefined
}

export interface MembershipOptions {
  readonly store: Store
  readonly clock: Clock
  /** Of this instance, unlike all others'. */
  readonly id: string
  readonly least?: LeastInstances | undefined
  /** The state or the number of instances has changed. */
  changed(): void
}

export class Membership {
  readonly #options: MembershipOptions
  #state: MembershipState = 'shared'
  #counts: { at: number; count: number }[] = []
  /** How many had left when the last beat was answered. */
  #departed = 0
  #returnedAt = 0
  /** When the last probe was sent that was answered, in ms. */
  #provenAt = -Infinity
  #next: Cancel = () => false
  /** Where an answer was missing: one that is answered elsewhere has not come back. */
  #suspect: readonly BucketRef[] | undefined
  /** Whether the store has told how many there are: all of them have been back for long enough, too. */
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

  /** How many instances there are, this one included, as far as is known. */
  get instances(): number {
    const { assumed = 1, workers = 1 } = this.#options.least ?? {}
    return Math.max(workers, this.#hasShared ? 1 : assumed, ...this.#counts.map(({ count }) => count))
  }

  /** Which part of every rate is this instance's own. */
  get share(): number {
    return this.#state === 'alone' || this.#state === 'returning' ? 1 / this.instances : 1
  }

  /** Announces this instance, and goes on doing so. False: the store does not answer. */
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

  /** A request to the store, about this stack and asked at this time in ms, had no answer. */
  failed(stack: readonly BucketRef[], askedAt: number): void {
    if (this.#closed || this.#state === 'doubtful' || this.#state === 'alone') return
    // What was lost in an outage that is over says nothing of now.
    if (askedAt < this.#provenAt) return
    this.#suspect = stack
    this.#enter(this.#state === 'shared' ? 'doubtful' : 'alone')
    this.#next()
    void this.#beat()
  }

  /** Ends the beats, and tells the others, if the store answers: it is asked once and not waited for longer than that. */
  async leave(): Promise<void> {
    const isAnswering = this.#hasShared && (this.#state === 'shared' || this.#state === 'returning')
    this.#closed = true
    this.#next()
    // A beat that came after it would bring this instance back.
    if (!isAnswering || !(await this.#probed)) return
    const { store, id } = this.#options
    try {
      await store.leave?.(id)
    } catch {
      // The others miss its beats.
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
      // Changes nothing, but is written down by the way that had failed; on its own, as a heartbeat may open a way for it.
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
