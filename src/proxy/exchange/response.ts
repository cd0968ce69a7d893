import type { ProxyContext } from '../context.js'
import type { ClientAnswer } from '../http/client.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import { type Reply, sendReply } from '../http/reply.js'

/** Our own answers to a client, and what happens to its connection after an answer. */
export class ClientResponse {
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #res: ClientAnswer

  constructor(context: ProxyContext, connection: ClientConnection, res: ClientAnswer) {
    this.#context = context
    this.#connection = connection
    this.#res = res
  }

  /** @param more further headers, names and values in turn, those of `closing` among them */
  reply(reply: Reply, more: readonly string[]): void {
    sendReply(this.#res, reply, more)
    this.#res.limitFlush(this.#context.flush)
  }

  /**
   * Decides whether the connection closes after the answer.
   *
   * @returns the `Connection` header, name and value, or nothing
   */
  closing(must = false): readonly string[] {
    const { alone, full } = this.#connection
    if (!must && !(alone && (full || this.#context.leaving))) return NOTHING
    this.#connection.last()
    return CLOSE
  }
}

const NOTHING: readonly string[] = []
const CLOSE: readonly string[] = ['Connection', 'close']
