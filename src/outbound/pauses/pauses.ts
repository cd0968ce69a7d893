/** Pauses: of a key or of all, told here or heard of from others who share the store. */
import type { Cancel, Clock } from '../../core/clock.js'
import type { Control } from '../../core/release/control.js'
import type { Store } from '../../core/store.js'
import type { EventReporter } from '../events.js'
import type { KeyQueue, KeyQueues } from '../key-queues.js'
import { SharedPauses } from './shared-pauses.js'

/** A pause that is heard of again and again ends a little later each time, in ms. */
const SAME_PAUSE = 100

export interface PausesOptions {
  readonly control: Control
  readonly clock: Clock
  readonly lines: KeyQueues
  readonly report: EventReporter
  /** Where others are told, and hear of it. */
  readonly store: Store | undefined
}

export class Pauses {
  readonly #options: PausesOptions
  readonly #shared: SharedPauses | undefined
  #allUntil = -Infinity
  #untellAll: Cancel = () => false

  constructor(options: PausesOptions) {
    this.#options = options
    const { store, clock, lines } = options
    if (store === undefined) return
    this.#shared = new SharedPauses({ store, clock, lines, heard: (line, ms) => this.#heard(line, ms) })
  }

  /** A call of this line has come. */
  watch(line: KeyQueue, now: number): void {
    this.#shared?.watch(line, now)
  }

  /** A line that is new is paused with all. */
  opened(line: KeyQueue): void {
    const left = this.allFor(this.#options.clock.now())
    if (left > 0) this.#options.control.pause(line.gate, left)
  }

  /** How much longer all are paused, in ms. */
  allFor(now: number): number {
    return Math.max(0, this.#allUntil - now)
  }

  pause(line: KeyQueue, ms: number): void {
    this.#shared?.tell(line, ms)
    this.#pause(line, ms)
  }

  /** Those to come included, and those whose pause was ended before. */
  pauseAll(ms: number): void {
    this.#shared?.tell(undefined, ms)
    const resumed = this.allFor(this.#options.clock.now()) < ms ? [] : [...this.#options.lines]
    this.#pauseAll(ms)
    // To those that are paused with all it is no news.
    for (const line of resumed) if (!line.gate.paused) this.#pause(line, ms)
  }

  resume(line: KeyQueue): void {
    if (line.gate.paused) this.#resume(line, true)
  }

  resumeAll(): void {
    const { clock, lines, report } = this.#options
    const told = this.#allUntil > clock.now()
    this.#shared?.resumed(undefined, this.#allUntil)
    this.#allUntil = -Infinity
    this.#untellAll()
    for (const line of lines) if (line.gate.paused) this.#resume(line, !told)
    if (told) report.tell('resumed', { key: undefined })
  }

  close(): void {
    this.#shared?.close()
  }

  #heard(line: KeyQueue | undefined, ms: number): void {
    if (line !== undefined) return this.#pause(line, ms)
    const known = this.allFor(this.#options.clock.now())
    if (ms > known) this.#pauseAll(ms, known > 0 && ms - known < SAME_PAUSE)
  }

  #pause(line: KeyQueue, ms: number): void {
    const { control, clock, report } = this.#options
    const now = clock.now()
    const known = line.gate.pausedFor(now)
    if (ms <= known) return
    control.pause(line.gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    line.cancelNotification()
    if (report.wants('resumed')) line.cancelNotification = this.#tellEnd(line.name, now + ms)
    report.tell('paused', { key: line.name, ms })
  }

  /** @param same it is the one that is known already: who has left it stays out of it */
  #pauseAll(ms: number, same = false): void {
    const { control, clock, lines, report } = this.#options
    const now = clock.now()
    const known = this.allFor(now)
    if (ms <= known) return
    this.#allUntil = now + ms
    for (const { gate } of lines) if (!same || gate.paused) control.pause(gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    this.#untellAll()
    if (report.wants('resumed')) this.#untellAll = this.#tellEnd(undefined, now + ms)
    report.tell('paused', { key: undefined, ms })
  }

  #resume(line: KeyQueue, told: boolean): void {
    this.#shared?.resumed(line, line.gate.due)
    line.cancelNotification()
    this.#options.control.resume(line.gate)
    if (told) this.#options.report.tell('resumed', { key: line.name })
  }

  #tellEnd(key: string | undefined, due: number): Cancel {
    return this.#options.clock.at(due, () => this.#options.report.tell('resumed', { key }))
  }
}
