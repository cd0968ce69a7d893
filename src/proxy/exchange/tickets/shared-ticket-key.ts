/**
 * The key of tickets that instances on one store make: the first one proposes its own, and the others take that over. They ask again
 * from time to time. So a store that was away, or that has lost its data, has the same key again.
 */
import type { Cancel, Clock } from '../../../core/clock.js'
import type { Store } from '../../../core/store.js'
import type { Tickets } from './tickets.js'

/** ms between two questions. */
const ASK_INTERVAL = 10_000

export interface SharedTicketKeyOptions {
  readonly clock: Clock
  readonly store: Pick<Store, 'board'>
  readonly tickets: Tickets
  /** Whether tickets are handed out. */
  isUsed(): boolean
}

export class SharedTicketKey {
  readonly #options: SharedTicketKeyOptions
  #cancel: Cancel | undefined
  #isClosed = false

  constructor(options: SharedTicketKeyOptions) {
    this.#options = options
  }

  /** Asks now, and again later. Resolves after the first answer. */
  async join(): Promise<void> {
    const { clock } = this.#options
    await this.ask()
    if (!this.#isClosed) this.#cancel = clock.at(clock.now() + ASK_INTERVAL, () => void this.join())
  }

  async ask(): Promise<void> {
    const { store, tickets, isUsed } = this.#options
    if (tickets.isConfigured || !isUsed()) return
    try {
      const key = await store.board?.agreeOnSecret(tickets.made)
      if (key !== undefined) tickets.agree(key)
    } catch {
      // The store is away. The key that was made here signs meanwhile.
    }
  }

  close(): void {
    this.#isClosed = true
    this.#cancel?.()
  }
}
