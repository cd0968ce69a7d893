import type { ConnectionLimit } from './connection-limit.js'

/** The place and the connection of a WebSocket, from its release until it is closed. */
export class TunnelPlace {
  readonly #limit: ConnectionLimit
  /** How it leaves its place. Undefined: the request has it in the gate. */
  #leavePlace: (() => void) | undefined
  #leaveConnection: (() => void) | undefined

  /**
   * @param from where its request has a place: in the gate, or none yet
   * @param open called when it may connect, at once if possible
   */
  constructor(limit: ConnectionLimit, from: 'gate' | 'outside', open: () => void) {
    this.#limit = limit
    if (from === 'gate') {
      this.#leaveConnection = limit.budget.openTunnel(open)
      return
    }
    const giveUp = limit.enter(() => {
      this.#leavePlace = limit.leave
      this.#leaveConnection = (limit.countsAll ? limit.budget : limit.unbounded).openTunnel(open)
    })
    this.#leavePlace ??= giveUp
  }

  /** It is answered. Its request leaves the gate, and the connection stays. */
  answered(): void {
    if (this.#leavePlace !== undefined) return
    this.#limit.keepForTunnel()
    this.#leavePlace = () => this.#limit.tunnelClosed()
  }

  /** It is closed, or given up. */
  close(): void {
    this.#leaveConnection?.()
    this.#leaveConnection = undefined
    this.#leavePlace?.()
    this.#leavePlace = undefined
  }
}
