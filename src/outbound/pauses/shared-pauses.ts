/**
 * The pauses of all keys, and of each key, that instances on one store share. The store tells of new ones. In case that is
 * lost it is asked about each key with waiting calls, and about all keys together: once a second, and when the first call of
 * a key comes.
 */
import type { News } from '../../core/board.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Store } from '../../core/store.js'
import { ASK_INTERVAL, SharedPause } from '../../sharing/shared-pause.js'
import type { KeyQueue, KeyQueues } from '../key-queues.js'

/** The names in the store: of the pause of all keys, and what is before the name of a key. */
const ALL = 'all'
const KEY = 'key:'

export interface SharedPausesOptions {
  readonly store: Store
  readonly clock: Clock
  readonly queues: KeyQueues
  /** Another instance has paused a key, or all. */
  received(queue: KeyQueue | undefined, ms: number): void
}

export class SharedPauses {
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

  /** The shared pause of a key; undefined: of all keys. */
  of(queue: KeyQueue | undefined): SharedPause {
    if (queue === undefined) return this.#all
    queue.sharedPause ??= this.#create(queue)
    return queue.sharedPause
  }

  /** A call of this queue has arrived. */
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
