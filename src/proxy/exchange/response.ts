import type { IncomingMessage } from 'node:http'
import type { ProxyContext } from '../context.js'
import type { ClientAnswer } from '../http/client-answer.js'
import type { ClientConnection } from '../http/connection.js'
import { lingerAndClose, lingerOver, watchOver } from '../http/linger.js'
import { type Reply, sendReply } from '../http/reply.js'

/** Our own answers to a client, and what happens to its connection after an answer. */
export class ClientResponse {
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #req: IncomingMessage
  readonly #res: ClientAnswer
  /** The connection closes after this answer. */
  #last = false

  constructor(context: ProxyContext, connection: ClientConnection, req: IncomingMessage, res: ClientAnswer) {
    this.#context = context
    this.#connection = connection
    this.#req = req
    this.#res = res
  }

  /** @param more further headers, names and values in turn */
  reply(reply: Reply, more: readonly string[]): void {
    sendReply(this.#res, reply, [...(reply.headers ?? []), ...more, ...this.closing(reply.close)])
    if (this.#req.socket.writableLength > 0) this.#res.once('close', watchOver(this.#req.socket, this.#context.flush))
  }

  /**
   * Decides whether the connection closes after the answer.
   *
   * @returns the `Connection` header, name and value, or nothing
   */
  closing(must = false): readonly string[] {
    const { alone, full } = this.#connection
    if (!must && !(alone && (full || this.#context.draining))) return NOTHING
    this.#last = true
    this.#connection.last()
    return CLOSE
  }

  /**
   * Reads what the client still sends after the answer. Unread bytes would hide its next request.
   *
   * @param hasBody whether the request may have a body
   */
  linger(hasBody: boolean): void {
    if (!hasBody || this.#req.complete) return
    if (this.#last || !this.#res.shouldKeepAlive) lingerAndClose(this.#req, this.#context.linger)
    else lingerOver(this.#req, this.#context.linger)
  }
}

const NOTHING: readonly string[] = []
const CLOSE: readonly string[] = ['Connection', 'close']
