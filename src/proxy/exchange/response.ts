import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ProxyContext } from '../context.js'
import type { ClientConnection } from '../http/connection.js'
import { lingerOver, watchOver } from '../http/linger.js'
import { type Reply, sendReply } from '../http/reply.js'

/** A request's way back to its client: answers of ours, and what becomes of the connection after an answer. */
export class ClientResponse {
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #req: IncomingMessage
  readonly #res: ServerResponse
  /** The connection ends with the answer. */
  #last = false

  constructor(context: ProxyContext, connection: ClientConnection, req: IncomingMessage, res: ServerResponse) {
    this.#context = context
    this.#connection = connection
    this.#req = req
    this.#res = res
  }

  /**
   * @param more headers besides, names and values in turn
   * @param hasBody whether the request may have one
   */
  reply(reply: Reply, more: readonly string[], hasBody: boolean): void {
    sendReply(this.#res, reply, [...(reply.headers ?? []), ...more, ...this.closing(reply.close)])
    this.linger(hasBody)
    if (this.#req.socket.writableLength > 0) this.#res.once('close', watchOver(this.#req.socket, this.#context.flush))
  }

  /** Ends the connection with the answer if it should end: the header that says so, name and value. */
  closing(must = false): readonly string[] {
    const { alone, full } = this.#connection
    if (!must && !(alone && (full || this.#context.draining))) return NOTHING
    this.#last = true
    this.#connection.last()
    return CLOSE
  }

  /** After the answer: what the client still sends has to be read by somebody, or its next request never is. */
  linger(hasBody: boolean): void {
    if (hasBody && !this.#req.complete)
      lingerOver(this.#req, this.#last || !this.#res.shouldKeepAlive, this.#context.linger)
  }
}

const NOTHING: readonly string[] = []
const CLOSE: readonly string[] = ['Connection', 'close']
