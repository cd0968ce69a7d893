/**
 * How many requests wait, and which client has most of them. A client is any text that stands for it.
 *
 * Most clients have a single request. So they take little: the ticket itself is what the map holds, and all such tickets form
 * one chain. From its second request on a client has a chain of its own, and a place in a heap.
 */
import { DueHeap, type Timed } from '../structures/due-heap.js'
import { ownText } from '../structures/text.js'

/** A request, as far as its client is concerned. The fields are those of `WaitingClients`. */
export interface ClientEntry<E extends ClientEntry<E>> {
  readonly arrivedAt: number
  client: string | ClientChain<E> | undefined
  /** Its neighbours among those of its client, or among those that are alone. */
  older: E | undefined
  newer: E | undefined
}

/** Requests in the order in which they came, linked by `older` and `newer`. */
class Chain<E extends ClientEntry<E>> {
  size = 0
  newest: E | undefined = undefined
  #oldest: E | undefined = undefined

  /** One that comes back came before the others. */
  add(ticket: E): void {
    const { newest } = this
    this.size += 1
    if (newest === undefined) {
      this.newest = ticket
      this.#oldest = ticket
    } else if (ticket.arrivedAt >= newest.arrivedAt) {
      ticket.older = newest
      newest.newer = ticket
      this.newest = ticket
    } else {
      ticket.newer = this.#oldest
      this.#oldest!.older = ticket
      this.#oldest = ticket
    }
  }

  remove(ticket: E): void {
    const { older, newer } = ticket
    this.size -= 1
    if (newer === undefined) this.newest = older
    else newer.older = older
    if (older === undefined) this.#oldest = newer
    else older.newer = newer
    ticket.older = undefined
    ticket.newer = undefined
  }
}

/** The requests of a client that has had several at once. */
export class ClientChain<E extends ClientEntry<E>> extends Chain<E> implements Timed {
  place = -1

  constructor(readonly client: string) {
    super()
  }
}

export class WaitingClients<E extends ClientEntry<E>> {
  /** How many requests wait, those of no client included. */
  size = 0
  readonly #byClient = new Map<string, E | ClientChain<E>>()
  readonly #singles = new Chain<E>()
  /** Clients with a chain of their own. The one with most requests is the lowest. */
  readonly #heaviest = new DueHeap<ClientChain<E>>()

  get clients(): number {
    return this.#byClient.size
  }

  /** @param client undefined: its requests make no room for others, and nobody makes room for them */
  add(ticket: E, client: string | undefined): void {
    this.size += 1
    if (client === undefined) return
    const known = this.#byClient.get(client)
    if (known === undefined) {
      ticket.client = client
      this.#singles.add(ticket)
      this.#byClient.set(client, ticket)
      return
    }
    const chain = known instanceof ClientChain ? known : this.#chainOf(client, known)
    ticket.client = chain
    chain.add(ticket)
    this.#heaviest.move(chain, -chain.size)
  }

  remove(ticket: E): void {
    this.size -= 1
    const { client } = ticket
    ticket.client = undefined
    if (client === undefined) return
    if (typeof client === 'string') {
      this.#singles.remove(ticket)
      this.#byClient.delete(client)
      return
    }
    client.remove(ticket)
    if (client.size > 0) return this.#heaviest.move(client, -client.size)
    this.#heaviest.remove(client)
    this.#byClient.delete(client.client)
  }

  /** The newest request of the client that has most. Undefined: none has more than this one. */
  newestOfHeavier(client: string | undefined): E | undefined {
    if (client === undefined) return undefined
    const known = this.#byClient.get(client)
    const own = known instanceof ClientChain ? known.size : known === undefined ? 0 : 1
    const heaviest = this.#heaviest.next
    const most = heaviest?.size ?? 0
    if (most > Math.max(1, own)) return heaviest!.newest
    return own === 0 ? (this.#singles.newest ?? heaviest?.newest) : undefined
  }

  /** A client has its second request: it gets a chain. Its text is kept longer than its first request from now on. */
  #chainOf(client: string, first: E): ClientChain<E> {
    const own = ownText(client)
    const chain = new ClientChain<E>(own)
    this.#singles.remove(first)
    first.client = chain
    chain.add(first)
    this.#heaviest.add(chain, -chain.size)
    // Setting it alone would keep the old text.
    this.#byClient.delete(client)
    this.#byClient.set(own, chain)
    return chain
  }
}
