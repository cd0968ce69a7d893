/**
 * Pauses that instances on one store have in common. Who is told to pause tells the store; the others ask it about each key
 * that somebody waits for, and about all keys together, once a second and when the first call of a key comes.
 */
import type { Cancel, Clock } from '../../core/clock.js'
import type { MaybePromise, Store, UpstreamState } from '../../core/store.js'
import type { KeyQueue, KeyQueues } from '../key-queues.js'

/** How often it is asked, in ms. */
const INTERVAL = 1_000

/** What the way to the store and back may add to the end of a pause that is known, in ms. */
const SLACK = 250

export interface SharedPausesOptions {
  readonly store: Store
  readonly clock: Clock
  readonly queues: KeyQueues
  /** Others have paused a key, or all. */
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

  /** A call of this line has come. */
  watch(queue: KeyQueue, now: number): void {
    if (now - queue.askedAt >= INTERVAL) this.#ask(queue, now)
    if (now - this.#allAskedAt >= INTERVAL) this.#ask(undefined, now)
    this.#plan(now)
  }

  /** A pause was asked for here. */
  send(queue: KeyQueue | undefined, ms: number): void {
    if (queue === undefined) this.#ignoreAllUntil = -Infinity
    else queue.ignorePausesUntil = -Infinity
    const news = { pausedFor: ms, rate: undefined, rateFor: 0 }
    whenAnswered(() => this.#options.store.exchange(nameOf(queue), news), ignore)
  }

  /** A pause until then, in ms, was ended here: others may keep to it. */
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

/** A store that does not answer has nothing to say of pauses. */
function whenAnswered(ask: () => MaybePromise<UpstreamState>, then: (state: UpstreamState) => void): void {
  const answer = ask()
  if (answer instanceof Promise) answer.then(then, ignore)
  else then(answer)
}

function ignore(): void {}
