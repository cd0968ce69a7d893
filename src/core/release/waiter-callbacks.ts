import type { Ticket } from '../queue/lane.js'
import { LinkedList } from '../structures/linked-list.js'

/** Tickets that have left their lanes and whose waiters are still to be called, in order, also when one calls back in. */
export class CallbackQueue {
  readonly #ended = new LinkedList<Ticket>()
  #calling = false

  push(ticket: Ticket): void {
    this.#ended.push(ticket)
  }

  /** @param released called after each waiter that was released */
  callAll(released: (ticket: Ticket) => void): void {
    if (this.#calling) return
    this.#calling = true
    try {
      for (let ticket = this.#ended.shift(); ticket !== undefined; ticket = this.#ended.shift()) {
        if (ticket.rejection !== undefined) ticket.waiter.reject(ticket.rejection)
        else if (ticket.slot === undefined) ticket.waiter.expire(ticket.leftAt!)
        else {
          ticket.waiter.release(ticket.slot, ticket.leftAt!)
          released(ticket)
        }
      }
    } finally {
      this.#calling = false
    }
  }
}
