/** Everything that the calls of one shaper have in common: lines, buckets, pauses, and the store if there is one. */
import { randomUUID } from 'node:crypto'
import type { BucketLimits } from '../core/bucket/limits.js'
import { BucketTable } from '../core/bucket-table.js'
import type { Clock } from '../core/clock.js'
import type { SharedBucket } from '../core/queue/lane.js'
import { Shaper } from '../core/shaper.js'
import { Sharing } from '../sharing/sharing.js'
import { openStore } from '../stores/open.js'
import { LateStore } from './deferred-store.js'
import { LastWait } from './drain-timer.js'
import { ClosedError, OverflowError } from './errors.js'
import type { EventReporter } from './events.js'
import { type KeyQueue, KeyQueues } from './key-queues.js'
import type { Changes, ShaperSettings } from './options.js'
import { Pauses } from './pauses/pauses.js'
import { GRACE, Wire } from './send-order.js'

const BUCKET = 'outbound'

/** When to try again, in ms, where it is places that are lacking and not room in a bucket. */
export const RETRY_ADMISSION_MS = 1_000

/** Somebody who waits for a decision or for a release. */
export interface Waiting {
  /** May be decided on now. */
  apply(): void
  /** Gives up. */
  abandon(error: Error): void
}

export class CallContext {
  readonly clock: Clock
  readonly report: EventReporter
  readonly lines: KeyQueues
  readonly shaper: Shaper
  readonly sharing: Sharing | undefined
  /** Those who wait, in the order in which they came. */
  readonly waiting = new Set<Waiting>()
  /** How many run, and how many there are with those who wait. */
  running = 0
  calls = 0
  maxWait: number
  /** Whether calls can be decided on. */
  ready = true
  /** Nobody comes in; and nobody waits or runs any more, or is to. */
  closed = false
  ended = false
  readonly pauses: Pauses
  readonly wire: Wire
  readonly #keyspace: BucketTable
  #limits: BucketLimits
  #lastWait: LastWait | undefined
  #drained: Promise<void> | undefined

  constructor(settings: ShaperSettings, clock: Clock, report: EventReporter) {
    const { rate, capacity, maxWait, maxInFlight, maxKeys, maxQueued, store } = settings
    this.clock = clock
    this.report = report
    this.maxWait = maxWait
    this.#limits = { name: BUCKET, rate, capacity, grace: GRACE }
    const lines = new KeyQueues(maxKeys, maxInFlight)
    this.lines = lines
    const inUse = (key: string): boolean => (lines.get(key)?.calls ?? 0) > 0
    if (store === undefined) {
      this.shaper = new Shaper({ clock, maxQueued })
      this.wire = new Wire(clock, this.shaper)
      this.pauses = new Pauses({ control: this.shaper.control, clock, lines, report, store: undefined })
      this.#keyspace = new BucketTable(maxKeys, undefined, inUse)
      return
    }
    const late = new LateStore('own' in store ? store.own : undefined)
    const onOutage = 'own' in store ? 'local' : store.onOutage
    const least = { assumed: 'own' in store ? undefined : store.instances }
    const sharing = new Sharing({ store: late, onOutage, clock, id: randomUUID(), least })
    this.sharing = sharing
    this.shaper = new Shaper({
      clock,
      maxQueued,
      store: late,
      unanswered: (lane, askedAt) => sharing.unanswered(lane.stack, askedAt),
    })
    this.wire = new Wire(clock, this.shaper)
    this.#keyspace = new BucketTable(maxKeys, (limits, key) => sharing.createBucket(limits, key), inUse)
    this.pauses = new Pauses({ control: this.shaper.control, clock, lines, report, store: late })
    this.ready = false
    void this.#join(sharing, async () => {
      if ('own' in store) return
      await late.opened(await openStore(store, clock, error => this.#complain(error)))
    })
  }

  async #join(sharing: Sharing, open: () => Promise<void>): Promise<void> {
    await open().catch((error: Error) => this.#complain(error))
    // Nobody is there any more who would leave again.
    if (this.ended) return
    const { shaper, clock } = this
    await sharing.join({
      shaper,
      clock,
      buckets: () => this.#keyspace.all(),
      gates: () => Array.from(this.lines, line => line.gate),
    })
    this.ready = true
    for (const call of [...this.waiting]) call.apply()
  }

  #complain(error: Error): void {
    if (this.report.wants('error')) this.report.tell('error', error)
  }

  /** Its share of what the limits allow, where there is a store. */
  get limits(): BucketLimits {
    return this.sharing?.limitsOf(this.#limits) ?? this.#limits
  }

  /** The line of a key; undefined: there are too many. */
  line(key: string, now: number): KeyQueue | undefined {
    return this.lines.open(key, now, this.#opened)
  }

  readonly #opened = (line: KeyQueue): void => this.pauses.opened(line)

  /** The bucket of a line, alone in its stack; undefined: there are too many. */
  stack(line: KeyQueue, now: number): readonly SharedBucket[] | undefined {
    const bucket = this.#keyspace.find(this.limits, line.name, now)
    if (bucket === undefined) return undefined
    if (line.stack[0] !== bucket) line.stack = [bucket]
    return line.stack
  }

  /** Somebody has passed a gate and is gone. */
  leave({ gate }: KeyQueue): void {
    gate.leave()
    if (gate.awaited) this.shaper.wake(gate)
  }

  /** The last call there was has ended. */
  idle(): void {
    if (this.report.wants('idle')) this.report.tell('idle')
    this.#lastWait?.end()
  }

  /**
   * @param key undefined: all, those to come included
   * @throws OverflowError where it is a new one and there are too many
   */
  pause(ms: number, key: string | undefined): void {
    if (key === undefined) return this.pauses.pauseAll(ms)
    const line = this.line(key, this.clock.now())
    if (line === undefined) throw new OverflowError('crowded', key, RETRY_ADMISSION_MS)
    this.pauses.pause(line, ms)
  }

  resume(key: string | undefined): void {
    if (key === undefined) return this.pauses.resumeAll()
    const line = this.lines.get(key)
    if (line !== undefined) this.pauses.resume(line)
  }

  /** Levels stay; those who wait leave at the new rate, or expire at once where that is too slow for them. */
  update({ rate, capacity, maxWait, maxKeys, maxQueued }: Changes): void {
    this.#limits = { ...this.#limits, ...(rate !== undefined && { rate }), ...(capacity !== undefined && { capacity }) }
    this.maxWait = maxWait ?? this.maxWait
    this.shaper.maxQueued = maxQueued ?? this.shaper.maxQueued
    this.#keyspace.maxKeys = maxKeys ?? this.#keyspace.maxKeys
    this.lines.maxKeys = maxKeys ?? this.lines.maxKeys
    const { control } = this.shaper
    for (const bucket of this.#keyspace.all()) control.setLimits(bucket, this.limits)
    control.replan(
      Array.from(this.lines, line => line.gate),
      () => maxWait ?? Infinity,
    )
  }

  /** Lets nobody in; resolves when nobody waits and nothing runs, or after the least `timeout` in ms of all calls. */
  drain(timeout: number): Promise<void> {
    this.closed = true
    this.#drained ??= this.#drain()
    this.#lastWait!.within(timeout)
    return this.#drained
  }

  async #drain(): Promise<void> {
    this.#lastWait = new LastWait(this.clock)
    if (this.calls === 0) this.#lastWait.end()
    await this.#lastWait.over
    this.ended = true
    for (const call of [...this.waiting]) call.abandon(new ClosedError())
    this.pauses.close()
    await this.sharing?.close()
  }
}
