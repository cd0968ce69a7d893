import type { Clock } from '../core/clock.js'
import { ignore, when } from '../core/maybe-promise.js'
import type { UpstreamState } from './board.js'
import type { Store } from './store.js'

/** ms between questions to the store about news of other instances, in case it was not told. */
export const ASK_INTERVAL = 1_000
/** ms. The way to the store and back may move the end of a known pause by this much. */
const SLACK = 250

export interface SharedPauseOptions {
  readonly store: Store
  readonly clock: Clock
  readonly name: string
  /** Called with what the store knows. A pause that was ended here is left out. */
  received(state: UpstreamState): void
}

/** A pause that instances on a store share. Without an answer of the store there is nothing to learn. */
export class SharedPause {
  readonly #options: SharedPauseOptions
  #askedAt = -Infinity
  /** Pauses that end before this time (ms) were ended here. */
  #ignoreUntil = -Infinity

  constructor(options: SharedPauseOptions) {
    this.#options = options
  }

  isDue(now: number): boolean {
    return now - this.#askedAt >= ASK_INTERVAL
  }

  send(ms: number): void {
    this.#ignoreUntil = -Infinity
    const { store, name } = this.#options
    when(store.exchange(name, { pausedFor: ms, rate: undefined, rateFor: 0 }), ignore)
  }

  exchange(news?: UpstreamState): void {
    const { store, clock, name } = this.#options
    this.#askedAt = clock.now()
    when(store.exchange(name, news), this.told)
  }

  /** A pause that lasts until `until` (ms) was ended here. Other instances may keep it. */
  resumed(until: number): void {
    this.#ignoreUntil = until
  }

  readonly told = (state: UpstreamState): void => {
    const { clock, received } = this.#options
    const isEnded = clock.now() + state.pausedFor <= this.#ignoreUntil + SLACK
    received(isEnded ? { ...state, pausedFor: 0 } : state)
  }
}
