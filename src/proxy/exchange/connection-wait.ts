import type { Cancel, Clock } from '../../core/clock.js'

/** How long a request waits for a connection to its upstream, from its first failure on. */
export class ConnectionWait {
  isOver = false
  readonly #cancel: Cancel

  /** @param hold ms */
  constructor(clock: Clock, hold: number, onOver: () => void) {
    this.#cancel = clock.at(clock.now() + hold, () => {
      this.isOver = true
      onOver()
    })
  }

  end(): void {
    this.#cancel()
  }
}
