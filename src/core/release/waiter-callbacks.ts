import type { Ticket } from '../queue/lane.js'
import { LinkedList } from '../structures/linked-list.js'

/** Tickets that have left their lanes, whose waiters are still to be told: in order, also when one calls back in. */
export class CallbackQueue {
  readonly #ended = new LinkedList<Ticket>()
  #telling = false

  push(ticket: Ticket): void {
    this.#ended.push(ticket)
  }

  /** @param released called after each waiter that was told to go has gone */
  tell(released: (ticket: Ticket) => void): void {
    if (this.#telling) return
    this.#telling = true
    try {
      for (let ticket = this.#ended.shift(); ticket !== undefined; ticket = this.#ended.shift()) {
        if (ticket.rejection !== undefined) ticket.waiter.reject(ticket.rejection)
        else if (ticket.slot === undefined) ticket.waiter.expire(ticket.leftAt)
        else {
          ticket.waiter.release(ticket.slot, ticket.leftAt)
          released(ticket)
        }
      }
    } finally {
      this.#telling = false
    }
  }
}
