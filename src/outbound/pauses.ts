/** Pauses of one key or of all keys, made here or by other instances on the store. */

import type { Cancel, Clock } from '../core/clock.js'
import type { Gate } from '../core/queue/lane.js'
import type { Engine } from '../core/release/release-engine.js'
import { growPause, PAUSE_STEP } from '../http/quota/pause-rule.js'
import type { News } from '../sharing/board.js'
import { ASK_INTERVAL, SharedPause } from '../sharing/shared-pause.js'
import type { Store } from '../sharing/store.js'
import type { EventReporter } from './events.js'
import type { KeyQueue, KeyQueues } from './key-queues.js'

/** ms. The store reports a running pause again with a slightly later end. Smaller differences are the same pause. */
const SAME_PAUSE = PAUSE_STEP / 2

interface PausesOptions {
  readonly control: Engine
  readonly clock: Clock
  readonly queues: KeyQueues
  readonly reporter: EventReporter
  /** The store that spreads pauses to other instances. */
  readonly store: Store | undefined
  /** One queue or all are about to pause: calls that could not wait so long may leave it. */
  pausing(): void
  /** One queue or all pause for this many ms. */
  paused(ms: number): void
  /** A pause of one queue or of all was ended early. */
  resumed(): void
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

  /** An answer asks for a pause of `ms`. */
  announced(queue: KeyQueue, ms: number): void {
    const left = queue.gate.pausedFor(this.#options.clock.now())
    const grown = growPause(left, ms)
    if (grown > left) this.pause(queue, grown)
  }

  pause(queue: KeyQueue, ms: number): void {
    this.#shared?.of(queue).send(ms)
    this.#pause(queue, ms)
  }

  /** Pauses all keys: present ones, new ones, and those whose pause was ended early. */
  pauseAll(ms: number): void {
    this.#shared?.of(undefined).send(ms)
    const resumed = this.allFor(this.#options.clock.now()) < ms ? [] : [...this.#options.queues]
    this.#pauseAll(ms, this.#gates())
    // No news for queues that the pause of all keys covers.
    for (const queue of resumed) if (!queue.gate.paused) this.#pause(queue, ms)
  }

  resume(queue: KeyQueue): void {
    if (!queue.gate.paused) return
    this.#resume(queue)
    this.#options.resumed()
    this.#options.reporter.notify('resumed', { key: queue.name })
  }

  resumeAll(): void {
    const { clock, queues, reporter } = this.#options
    const allPaused = this.#allUntil > clock.now()
    this.#shared?.of(undefined).resumed(this.#allUntil)
    this.#allUntil = -Infinity
    this.#cancelAllNotification()
    if (!allPaused) {
      for (const queue of queues) this.resume(queue)
      return
    }
    for (const queue of queues) if (queue.gate.paused) this.#resume(queue)
    this.#options.resumed()
    reporter.notify('resumed', { key: undefined })
  }

  close(): void {
    this.#shared?.close()
  }

  #received(queue: KeyQueue | undefined, ms: number): void {
    if (queue !== undefined) return this.#pause(queue, ms)
    const known = this.allFor(this.#options.clock.now())
    const gates = this.#gates()
    // Queues that left a known pause early stay out of it.
    this.#pauseAll(ms, isSame(known, ms) ? gates.filter(({ paused }) => paused) : gates)
  }

  #pause(queue: KeyQueue, ms: number): void {
    const { control, clock, reporter } = this.#options
    const now = clock.now()
    const known = queue.gate.pausedFor(now)
    if (ms <= known) return
    this.#options.pausing()
    control.pause(queue.gate, ms)
    this.#options.paused(ms)
    if (isSame(known, ms)) return
    queue.cancelNotification()
    if (reporter.wants('resumed')) queue.cancelNotification = this.#notifyAtEnd(queue.name, now + ms)
    reporter.notify('paused', { key: queue.name, ms })
  }

  #gates(): Gate[] {
    return Array.from(this.#options.queues, ({ gate }) => gate)
  }

  /** @param gates those to close now; new ones follow */
  #pauseAll(ms: number, gates: readonly Gate[]): void {
    const { control, clock, reporter } = this.#options
    const now = clock.now()
    const known = this.allFor(now)
    if (ms <= known) return
    this.#allUntil = now + ms
    this.#options.pausing()
    for (const gate of gates) control.pause(gate, ms)
    this.#options.paused(ms)
    if (isSame(known, ms)) return
    this.#cancelAllNotification()
    if (reporter.wants('resumed')) this.#cancelAllNotification = this.#notifyAtEnd(undefined, now + ms)
    reporter.notify('paused', { key: undefined, ms })
  }

  #resume(queue: KeyQueue): void {
    this.#shared?.of(queue).resumed(queue.gate.due)
    queue.cancelNotification()
    this.#options.control.resume(queue.gate)
  }

  #notifyAtEnd(key: string | undefined, due: number): Cancel {
    return this.#options.clock.at(due, () => this.#options.reporter.notify('resumed', { key }))
  }
}

/** Whether a pause of `ms` more is the known one, moved slightly. */
function isSame(known: number, ms: number): boolean {
  return known > 0 && ms - known < SAME_PAUSE
}

/** The names in the store: of the pause of all keys, and what is before the name of a key. */
const ALL = 'all'
const KEY = 'key:'

interface SharedPausesOptions {
  readonly store: Store
  readonly clock: Clock
  readonly queues: KeyQueues
  received(queue: KeyQueue | undefined, ms: number): void
}

/**
 * The pauses of all keys, and of each key, that instances on one store share. The store tells of new ones. In case that is
 * lost it is asked about each key with waiting calls, and about all keys together: once a second, and when the first call of
 * a key comes.
 */
class SharedPauses {
  readonly #options: SharedPausesOptions
  readonly #all: SharedPause
  readonly #stopListening: (() => void) | undefined
  #next: Cancel | undefined
  #closed = false

  constructor(options: SharedPausesOptions) {
    this.#options = options
    this.#all = this.#create(undefined)
    this.#stopListening = options.store.listen?.(news => this.#told(news))
  }

  of(queue: KeyQueue | undefined): SharedPause {
    if (queue === undefined) return this.#all
    queue.sharedPause ??= this.#create(queue)
    return queue.sharedPause
  }

  watch(queue: KeyQueue, now: number): void {
    for (const pause of [this.of(queue), this.#all]) if (pause.isDue(now)) pause.exchange()
    this.#plan(now)
  }

  close(): void {
    this.#closed = true
    this.#next?.()
    this.#stopListening?.()
  }

  #told(news: News): void {
    if (news.about !== 'upstream') return
    const { name, state } = news
    if (name === ALL) return this.#all.told(state)
    const queue = name.startsWith(KEY) ? this.#options.queues.get(name.slice(KEY.length)) : undefined
    if (queue !== undefined) this.of(queue).told(state)
  }

  #create(queue: KeyQueue | undefined): SharedPause {
    const { store, clock, received } = this.#options
    const name = queue === undefined ? ALL : `${KEY}${queue.name}`
    return new SharedPause({ store, clock, name, received: ({ pausedFor }) => received(queue, pausedFor) })
  }

  #plan(now: number): void {
    if (this.#next === undefined && !this.#closed) this.#next = this.#options.clock.at(now + ASK_INTERVAL, this.#tick)
  }

  readonly #tick = (): void => {
    this.#next = undefined
    const { clock, queues } = this.#options
    const now = clock.now()
    let awaited = false
    for (const queue of queues) {
      if (queue.waiting === 0 && !queue.gate.paused) continue
      awaited = true
      this.of(queue).exchange()
    }
    if (!awaited) return
    this.#all.exchange()
    this.#plan(now)
  }
}
