import type { Rejection, Ticket } from '../queue/lane.js'
import { LinkedList } from '../structures/linked-list.js'

/** Tickets that have left their lanes and whose waiters are still to be called, in order, also when one calls back in. */
export class CallbackQueue {
  readonly #ended = new LinkedList<Ticket>()
  /** Of those that had to make room for others. They are few, so tickets have no place for it. */
  readonly #rejections = new Map<Ticket, Rejection>()
  #calling = false

  push(ticket: Ticket, rejection?: Rejection): void {
    if (rejection !== undefined) this.#rejections.set(ticket, rejection)
    this.#ended.push(ticket)
  }

  /** Whether some are left that nobody is about to call. */
  get pending(): boolean {
    return !this.#calling && this.#ended.size > 0
  }

  /**
   * @param released called after each waiter that was released
   * @param newcomer its waiter is not called: it does not know its ticket yet
   */
  callAll(released: (ticket: Ticket) => void, newcomer?: Ticket): void {
    if (this.#calling) return
    this.#calling = true
    try {
      for (let ticket = this.#next(newcomer); ticket !== undefined; ticket = this.#next(newcomer)) {
        this.#ended.remove(ticket)
        const rejection = this.#rejections.size === 0 ? undefined : this.#rejections.get(ticket)
        if (rejection !== undefined) {
          this.#rejections.delete(ticket)
          ticket.waiter.reject(rejection)
        } else if (ticket.slot === undefined) ticket.waiter.expire(ticket.leftAt!)
        else {
          ticket.waiter.release(ticket.slot, ticket.leftAt!)
          released(ticket)
        }
      }
    } finally {
      this.#calling = false
    }
  }

  #next(newcomer: Ticket | undefined): Ticket | undefined {
    const { first } = this.#ended
    return first !== undefined && first === newcomer ? newcomer.next : first
  }
}
