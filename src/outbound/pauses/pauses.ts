/** Pauses of one key or of all keys, made here or by other instances on the store. */
import type { Cancel, Clock } from '../../core/clock.js'
import type { Control } from '../../core/release/reconfigure.js'
import type { Store } from '../../core/store.js'
import type { EventReporter } from '../events.js'
import type { KeyQueue, KeyQueues } from '../key-queues.js'
import { SharedPauses } from './shared-pauses.js'

/** ms. The store reports a running pause again with a slightly later end. Smaller differences are the same pause. */
const SAME_PAUSE = 100

export interface PausesOptions {
  readonly control: Control
  readonly clock: Clock
  readonly queues: KeyQueues
  readonly reporter: EventReporter
  /** The store that spreads pauses to other instances. */
  readonly store: Store | undefined
}

export class Pauses {
  readonly #options: PausesOptions
  readonly #shared: SharedPauses | undefined
  #allUntil = -Infinity
  #cancelAllNotification: Cancel = () => false

  constructor(options: PausesOptions) {
    this.#options = options
    const { store, clock, queues } = options
    if (store === undefined) return
    this.#shared = new SharedPauses({ store, clock, queues, received: (queue, ms) => this.#received(queue, ms) })
  }

  /** A call of this queue has arrived. */
  watch(queue: KeyQueue, now: number): void {
    this.#shared?.watch(queue, now)
  }

  /** A new queue takes part in a pause of all keys. */
  opened(queue: KeyQueue): void {
    const left = this.allFor(this.#options.clock.now())
    if (left > 0) this.#options.control.pause(queue.gate, left)
  }

  /** ms that the pause of all keys still lasts. */
  allFor(now: number): number {
    return Math.max(0, this.#allUntil - now)
  }

  pause(queue: KeyQueue, ms: number): void {
    this.#shared?.send(queue, ms)
    this.#pause(queue, ms)
  }

  /** Pauses all keys: present ones, new ones, and those whose pause was ended early. */
  pauseAll(ms: number): void {
    this.#shared?.send(undefined, ms)
    const resumed = this.allFor(this.#options.clock.now()) < ms ? [] : [...this.#options.queues]
    this.#pauseAll(ms)
    // No news for queues that the pause of all keys covers.
    for (const queue of resumed) if (!queue.gate.paused) this.#pause(queue, ms)
  }

  resume(queue: KeyQueue): void {
    if (queue.gate.paused) this.#resume(queue, true)
  }

  resumeAll(): void {
    const { clock, queues, reporter } = this.#options
    const allPaused = this.#allUntil > clock.now()
    this.#shared?.resumed(undefined, this.#allUntil)
    this.#allUntil = -Infinity
    this.#cancelAllNotification()
    for (const queue of queues) if (queue.gate.paused) this.#resume(queue, !allPaused)
    if (allPaused) reporter.notify('resumed', { key: undefined })
  }

  close(): void {
    this.#shared?.close()
  }

  #received(queue: KeyQueue | undefined, ms: number): void {
    if (queue !== undefined) return this.#pause(queue, ms)
    const known = this.allFor(this.#options.clock.now())
    if (ms > known) this.#pauseAll(ms, known > 0 && ms - known < SAME_PAUSE)
  }

  #pause(queue: KeyQueue, ms: number): void {
    const { control, clock, reporter } = this.#options
    const now = clock.now()
    const known = queue.gate.pausedFor(now)
    if (ms <= known) return
    control.pause(queue.gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    queue.cancelNotification()
    if (reporter.wants('resumed')) queue.cancelNotification = this.#notifyAtEnd(queue.name, now + ms)
    reporter.notify('paused', { key: queue.name, ms })
  }

  /** @param same the pause is already known: queues that left it early stay out of it */
  #pauseAll(ms: number, same = false): void {
    const { control, clock, queues, reporter } = this.#options
    const now = clock.now()
    const known = this.allFor(now)
    if (ms <= known) return
    this.#allUntil = now + ms
    for (const { gate } of queues) if (!same || gate.paused) control.pause(gate, ms)
    if (known > 0 && ms - known < SAME_PAUSE) return
    this.#cancelAllNotification()
    if (reporter.wants('resumed')) this.#cancelAllNotification = this.#notifyAtEnd(undefined, now + ms)
    reporter.notify('paused', { key: undefined, ms })
  }

  #resume(queue: KeyQueue, notify: boolean): void {
    this.#shared?.resumed(queue, queue.gate.due)
    queue.cancelNotification()
    this.#options.control.resume(queue.gate)
    if (notify) this.#options.reporter.notify('resumed', { key: queue.name })
  }

  #notifyAtEnd(key: string | undefined, due: number): Cancel {
    return this.#options.clock.at(due, () => this.#options.reporter.notify('resumed', { key }))
  }
}
