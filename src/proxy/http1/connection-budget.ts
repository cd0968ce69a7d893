import { type Linked, LinkedList } from '../../core/structures/linked-list.js'

/** Opens connections out of a budget. */
export interface BudgetUser {
  /** There may be room. */
  useRoom(): void
  /** Closes a connection that is not in use. False: there is none. */
  closeUnused(): boolean
}

/** A connection that is not a pool's and that waits for room. */
class WaitingTunnel implements Linked<WaitingTunnel> {
  list: object | undefined = undefined
  previous: WaitingTunnel | undefined = undefined
  next: WaitingTunnel | undefined = undefined
  readonly open: () => void

  constructor(open: () => void) {
    this.open = open
  }
}

/** How many connections several pools and tunnels may have together. Those that are being opened count. */
export class ConnectionBudget {
  readonly #users = new Set<BudgetUser>()
  readonly #tunnels = new LinkedList<WaitingTunnel>()
  #most = Infinity
  #beside: ConnectionBudget | undefined
  #open = 0

  get open(): number {
    return this.#open
  }

  get hasRoom(): boolean {
    return this.#open + (this.#beside?.open ?? 0) < this.#most
  }

  /** A tunnel waits for room: no connection is to be kept. */
  get crowded(): boolean {
    return this.#tunnels.size > 0
  }

  /**
   * Sets the bound. Connections above it stay open.
   *
   * @param beside its connections count, too
   */
  limit(most: number, beside?: ConnectionBudget): void {
    this.#beside?.leave(this)
    this.#beside = beside
    beside?.join(this)
    this.#most = most
    this.useRoom()
  }

  join(user: BudgetUser): void {
    this.#users.add(user)
  }

  leave(user: BudgetUser): void {
    this.#users.delete(user)
  }

  opened(): void {
    this.#open += 1
  }

  closed(): void {
    this.#open -= 1
    this.useRoom()
  }

  /**
   * Takes the room of a tunnel. Unused connections make room for it.
   *
   * @param open called when there is room, at once if possible
   * @returns gives the room back, or gives up waiting for it. To be called once
   */
  openTunnel(open: () => void): () => void {
    const waiting = new WaitingTunnel(open)
    this.#tunnels.push(waiting)
    this.useRoom()
    return () => {
      if (!this.#tunnels.remove(waiting)) this.closed()
    }
  }

  useRoom(): void {
    while (this.crowded && this.hasRoom) {
      this.opened()
      this.#tunnels.shift()!.open()
    }
    // Its close makes room, and comes here again.
    if (this.crowded && this.closeUnused()) return
    for (const user of this.#users) user.useRoom()
  }

  closeUnused(): boolean {
    for (const user of this.#users) if (user.closeUnused()) return true
    return false
  }
}
