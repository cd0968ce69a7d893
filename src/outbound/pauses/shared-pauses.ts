/**
 * Pauses that instances on one store share. An instance that pauses tells the store. The others ask the store about
 * each key with waiting calls, and about all keys together: once a second, and when the first call of a key comes.
 */
import type { Cancel, Clock } from '../../core/clock.js'
import type { MaybePromise, Store, UpstreamState } from '../../core/store.js'
import type { KeyQueue, KeyQueues } from '../key-queues.js'

/** ms between questions to the store. */
const INTERVAL = 1_000

/** ms. The way to the store and back may move the end of a known pause by this much. */
const SLACK = 250

export interface SharedPausesOptions {
  readonly store: Store
  readonly clock: Clock
  readonly queues: KeyQueues
  /** Another instance has paused a key, or all. */
  received(queue: KeyQueue | undefined, ms: number): void
}

export class SharedPauses {
  readonly #options: SharedPausesOptions
  #allAskedAt = -Infinity
  #ignoreAllUntil = -Infinity
  #next: Cancel | undefined
  #closed = false

  constructor(options: SharedPausesOptions) {
    this.#options = options
  }

  /** A call of this queue has arrived. */
  watch(queue: KeyQueue, now: number): void {
    if (now - queue.askedAt >= INTERVAL) this.#ask(queue, now)
    if (now - this.#allAskedAt >= INTERVAL) this.#ask(undefined, now)
    this.#plan(now)
  }

  /** Sends a pause to the other instances. */
  send(queue: KeyQueue | undefined, ms: number): void {
    if (queue === undefined) this.#ignoreAllUntil = -Infinity
    else queue.ignorePausesUntil = -Infinity
    const news = { pausedFor: ms, rate: undefined, rateFor: 0 }
    whenAnswered(() => this.#options.store.exchange(nameOf(queue), news), ignore)
  }

  /** A pause that lasts until `until` (ms) was ended here. Other instances may keep it. */
  resumed(queue: KeyQueue | undefined, until: number): void {
    if (queue === undefined) this.#ignoreAllUntil = until
    else queue.ignorePausesUntil = until
  }

  close(): void {
    this.#closed = true
    this.#next?.()
  }

  #plan(now: number): void {
    if (this.#next === undefined && !this.#closed) this.#next = this.#options.clock.at(now + INTERVAL, this.#tick)
  }

  readonly #tick = (): void => {
    this.#next = undefined
    const { clock, queues } = this.#options
    const now = clock.now()
    let awaited = false
    for (const queue of queues) {
      if (queue.waiting === 0 && !queue.gate.paused) continue
      awaited = true
      this.#ask(queue, now)
    }
    if (!awaited) return
    this.#ask(undefined, now)
    this.#plan(now)
  }

  #ask(queue: KeyQueue | undefined, askedAt: number): void {
    if (queue === undefined) this.#allAskedAt = askedAt
    else queue.askedAt = askedAt
    whenAnswered(
      () => this.#options.store.exchange(nameOf(queue)),
      ({ pausedFor }) => {
        const known = (queue === undefined ? this.#ignoreAllUntil : queue.ignorePausesUntil) + SLACK
        if (pausedFor > 0 && this.#options.clock.now() + pausedFor > known) this.#options.received(queue, pausedFor)
      },
    )
  }
}

function nameOf(queue: KeyQueue | undefined): string {
  return queue === undefined ? 'all' : `key:${queue.name}`
}

/** Without an answer there are no pauses to learn of. */
function whenAnswered(ask: () => MaybePromise<UpstreamState>, then: (state: UpstreamState) => void): void {
  const answer = ask()
  if (answer instanceof Promise) answer.then(then, ignore)
  else then(answer)
}

function ignore(): void {}
