/** Everything that the calls of one shaper have in common: lines, buckets, pauses, and the store if there is one. */
import { randomUUID } from 'node:crypto'
import type { Cancel, Clock } from '../core/clock.js'
import { Keyspace } from '../core/keyspace.js'
import type { SharedBucket } from '../core/lane.js'
import type { BucketLimits } from '../core/limits.js'
import { Shaper } from '../core/shaper.js'
import { openStore } from '../stores/open.js'
import { Sharing } from '../stores/sharing.js'
import { ClosedError } from './errors.js'
import type { Report } from './events.js'
import { type KeyLine, KeyLines } from './key-lines.js'
import { LateStore } from './late-store.js'
import type { Changes, Settings } from './options.js'
import { SharedPauses } from './shared-pauses.js'

const BUCKET = 'outbound'

/** How late, in ms, a release may be and still count for its slot. */
export const GRACE = 0.5

/** A pause that is heard of again and again ends a little later each time, in ms. */
const SAME_PAUSE = 100

/** Somebody who waits for a decision or for a release. */
export interface Waiting {
  /** May be decided on now. */
  apply(): void
  /** Gives up. */
  abandon(error: Error): void
}

export class Traffic {
  readonly clock: Clock
  readonly report: Report
  readonly lines: KeyLines
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
  closed = false
  readonly pauses: SharedPauses | undefined
  readonly #keyspace: Keyspace
  #limits: BucketLimits
  #pausedUntil = -Infinity
  #untell: Cancel = () => false
  #onIdle = (): void => undefined

  constructor(settings: Settings, clock: Clock, report: Report) {
    const { rate, capacity, maxWait, maxInFlight, maxKeys, maxQueued, store } = settings
    this.clock = clock
    this.report = report
    this.maxWait = maxWait
    this.#limits = { name: BUCKET, rate, capacity, grace: GRACE }
    this.lines = new KeyLines(maxKeys, maxInFlight)
    if (store === undefined) {
      this.shaper = new Shaper({ clock, maxQueued })
      this.#keyspace = new Keyspace(maxKeys)
      return
    }
    const late = new LateStore('own' in store ? store.own : undefined)
    const onOutage = 'own' in store ? 'local' : store.onOutage
    const sharing = new Sharing({ store: late, onOutage, clock, id: randomUUID() })
    this.sharing = sharing
    this.shaper = new Shaper({
      clock,
      maxQueued,
      store: late,
      unanswered: (lane, askedAt) => sharing.unanswered(lane.stack, askedAt),
    })
    this.#keyspace = new Keyspace(maxKeys, (limits, key) => sharing.createBucket(limits, key))
    this.pauses = new SharedPauses({
      store: late,
      clock,
      lines: this.lines,
      heard: (line, ms) => {
        if (line !== undefined) this.#pauseLine(line, ms)
        else this.#pauseAll(ms)
      },
    })
    this.ready = false
    void this.#join(sharing, async () => {
      if ('own' in store) return
      late.opened(await openStore(store, clock, error => this.#complain(error)))
    })
  }

  async #join(sharing: Sharing, open: () => Promise<void>): Promise<void> {
    await open().catch((error: Error) => this.#complain(error))
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
  line(key: string, now: number): KeyLine | undefined {
    return this.lines.open(key, now, this.#opened)
  }

  readonly #opened = (line: KeyLine): void => {
    const left = this.#pausedUntil - this.clock.now()
    if (left > 0) this.shaper.control.pause(line.gate, left)
  }

  /** The bucket of a line, alone in its stack; undefined: there are too many. */
  stack(line: KeyLine, now: number): readonly SharedBucket[] | undefined {
    const bucket = this.#keyspace.find(this.limits, line.name, now)
    if (bucket === undefined) return undefined
    if (line.stack[0] !== bucket) line.stack = [bucket]
    return line.stack
  }

  /** Somebody has passed a gate and is gone. */
  leave({ gate }: KeyLine): void {
    gate.leave()
    if (gate.awaited) this.shaper.wake(gate)
  }

  /** The last call there was has ended. */
  idle(): void {
    if (this.report.wants('idle')) this.report.tell('idle')
    this.#onIdle()
  }

  /** @param key undefined: all, those to come included */
  pause(ms: number, key: string | undefined): void {
    const line = key === undefined ? undefined : this.line(key, this.clock.now())
    if (key !== undefined && line === undefined) return
    this.pauses?.tell(line, ms)
    if (line !== undefined) this.#pauseLine(line, ms)
    else this.#pauseAll(ms)
  }

  resume(key: string | undefined): void {
    if (key !== undefined) {
      const line = this.lines.get(key)
      if (line?.gate.paused) this.#resumeLine(line, true)
      return
    }
    const told = this.#pausedUntil > this.clock.now()
    this.pauses?.resumed(undefined, this.#pausedUntil)
    this.#pausedUntil = -Infinity
    this.#untell()
    for (const line of this.lines) if (line.gate.paused) this.#resumeLine(line, !told)
    if (told) this.report.tell('resumed', { key: undefined })
  }

  pausedFor(now: number): number {
    return Math.max(0, this.#pausedUntil - now)
  }

  #pauseLine(line: KeyLine, ms: number): void {
    const now = this.clock.now()
    const known = line.gate.pausedFor(now)
    if (ms <= known) return
    this.shaper.control.pause(line.gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    line.untell()
    if (this.report.wants('resumed')) line.untell = this.#tellEnd(line.name, now + ms)
    this.report.tell('paused', { key: line.name, ms })
  }

  #pauseAll(ms: number): void {
    const now = this.clock.now()
    const known = this.pausedFor(now)
    if (ms <= known) return
    this.#pausedUntil = now + ms
    for (const { gate } of this.lines) this.shaper.control.pause(gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    this.#untell()
    if (this.report.wants('resumed')) this.#untell = this.#tellEnd(undefined, now + ms)
    this.report.tell('paused', { key: undefined, ms })
  }

  #tellEnd(key: string | undefined, due: number) {
    return this.clock.at(due, () => this.report.tell('resumed', { key }))
  }

  #resumeLine(line: KeyLine, told: boolean): void {
    this.pauses?.resumed(line, line.gate.due)
    line.untell()
    this.shaper.control.resume(line.gate)
    if (told) this.report.tell('resumed', { key: line.name })
  }

  /** Levels stay; those who wait leave at the new rate, or expire at once where that is too slow for them. */
  update({ rate, capacity, maxWait, maxKeys, maxQueued }: Changes): void {
    this.#limits = { ...this.#limits, ...(rate !== undefined && { rate }), ...(capacity !== undefined && { capacity }) }
    this.maxWait = maxWait ?? this.maxWait
    this.shaper.maxQueued = maxQueued ?? this.shaper.maxQueued
    this.#keyspace.maxKeys = maxKeys ?? this.#keyspace.maxKeys
    this.lines.maxKeys = maxKeys ?? this.lines.maxKeys
    const { control } = this.shaper
    for (const bucket of this.#keyspace.all()) control.retune(bucket, this.limits)
    control.replan(
      Array.from(this.lines, line => line.gate),
      () => maxWait ?? Infinity,
    )
  }

  /** Lets nobody in; resolves when nobody waits and nothing runs, or after so many ms. */
  async drain(timeout: number): Promise<void> {
    this.closed = true
    if (this.calls > 0) {
      await new Promise<void>(resolve => {
        const cancel = timeout < Infinity ? this.clock.at(this.clock.now() + timeout, resolve) : undefined
        this.#onIdle = () => {
          cancel?.()
          resolve()
        }
      })
    }
    for (const call of [...this.waiting]) call.abandon(new ClosedError())
    this.pauses?.close()
    await this.sharing?.close()
  }
}
