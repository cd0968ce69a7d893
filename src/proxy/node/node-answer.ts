import { type IncomingMessage, ServerResponse } from 'node:http'
import type { Deadlines } from '../deadlines.js'
import type { ByteBudget } from '../http/byte-budget.js'
import type { AnswerHead, AnswerOwner, ClientAnswer, RequestBody, WholeAnswer } from '../http/client.js'
import { httpDate } from '../http/http-date.js'
import { closeSoftly, type LingerDeadlines, watchOver } from '../http/linger.js'
import { isNamed } from '../http1/fields.js'
import { BodyStream } from './body-stream.js'
import { lingerAndClose, lingerOver } from './read-rest.js'

/** Fields of Node that it does not declare. They are the same in Node 20, 22 and 24. */
interface Undeclared {
  _header: string | null
  _headerSent: boolean
  /** The connection closes after this answer. */
  _last: boolean
  /** ms */
  readonly _keepAliveTimeout: number
  readonly outputData: readonly unknown[]
  /** The client sends its body after a 100. */
  readonly _expect_continue: boolean
  readonly _sent100: boolean
}

/** Bytes. A body up to this size is copied and sent together with its head. */
const SMALL = 16 * 1024

/** The answer to a client through Node. A whole answer goes out in one write, past most of what Node does for pieces. */
export class NodeAnswer<Request extends IncomingMessage = IncomingMessage>
  extends ServerResponse<Request>
  implements ClientAnswer
{
  /** The head of a small answer. It is sent with its body if that follows at once. */
  #unsent: AnswerHead | undefined
  /** The body of a small answer. One byte for each character. */
  #body = ''
  /** A started answer that has no byte of its body yet. */
  #waits = false

  /** Called after Node has done its part. */
  set owner(owner: AnswerOwner) {
    this.once('finish', () => owner.finished())
  }

  openBody(budget: ByteBudget): RequestBody {
    return new BodyStream(this.req, budget)
  }

  interim(text: string): void {
    const { socket } = this.req
    if (!socket.writableNeedDrain) socket.write(text, 'latin1')
  }

  limitFlush(deadlines: Deadlines): void {
    const { socket } = this.req
    if (socket.writableLength > 0) this.once('close', watchOver(socket, deadlines))
  }

  start(head: AnswerHead): void {
    const { status, length } = head
    this.sendDate = false
    this.statusCode = status
    this.#waits = true
    if (length !== undefined && length > 0 && length <= SMALL) this.#unsent = head
    else this.writeHead(status, head.reason, head.headers as string[])
    if (length !== 0) process.nextTick(NodeAnswer.#headAlone, this)
  }

  /** The head came without its body. A small body often follows at once, and then one write carries both. */
  static #headAlone(answer: NodeAnswer): void {
    if (!answer.#waits) return
    if (answer.#unsent === undefined) NodeAnswer.#sendHead(answer)
    else setImmediate(NodeAnswer.#sendHead, answer)
  }

  /** Sends the head if the body takes its time, as with server-sent events. */
  static #sendHead(answer: NodeAnswer): void {
    if (!answer.#waits) return
    answer.#writeUnsent()
    answer.write('', 'latin1')
  }

  #writeUnsent(): void {
    if (this.#unsent === undefined) return
    const { status, reason, headers } = this.#unsent
    this.#unsent = undefined
    this.writeHead(status, reason, headers as string[])
  }

  data(buffer: Buffer, from: number, to: number): boolean {
    this.#waits = false
    if (this.#unsent !== undefined && to - from === this.#unsent.length) {
      this.#body = buffer.toString('latin1', from, to)
      return true
    }
    this.#writeUnsent()
    return this.write(Buffer.from(buffer.subarray(from, to)))
  }

  onceDrained(run: () => void): void {
    this.once('drain', run)
  }

  complete(trailers: readonly string[]): void {
    this.#waits = false
    if (trailers.length > 0 && this.chunkedEncoding) {
      const pairs: [string, string][] = []
      for (let at = 0; at < trailers.length; at += 2) pairs.push([trailers[at]!, trailers[at + 1]!])
      this.addTrailers(pairs)
    }
    const whole = this.#unsent
    this.#unsent = undefined
    if (whole === undefined) this.end()
    else this.sendWhole({ status: whole.status, reason: whole.reason, headers: whole.headers, body: this.#body })
  }

  recall(): boolean {
    if (this.#unsent === undefined) return false
    this.#waits = false
    this.#unsent = undefined
    this.sendDate = true
    return true
  }

  cut(): void {
    this.#waits = false
    const { socket } = this.req
    // For a client of HTTP/1.0 a FIN would look like the end of the body. Only plain TCP can send a reset.
    if (this.req.httpVersionMinor === 0 && !('encrypted' in socket)) socket.resetAndDestroy()
    this.destroy()
  }

  readRest(then: 'keep' | 'close', deadlines: LingerDeadlines): void {
    if (this.req.complete) return
    if (then === 'close' || !this.shouldKeepAlive) lingerAndClose(this.req, deadlines)
    else lingerOver(this.req, deadlines)
  }

  sendWhole({ status, reason, headers, body }: WholeAnswer): void {
    const { socket } = this
    const node = this as unknown as Undeclared
    if (socket === null || node.outputData.length > 0 || this.req.method === 'HEAD') {
      this.writeHead(status, reason, headers as string[])
      this.end(body, 'latin1')
      return
    }
    // The client may leave its body out. Then the next request would be taken for it.
    if (node._expect_continue && !node._sent100) this.shouldKeepAlive = false
    let text = `HTTP/1.1 ${status} ${reason}\r\n`
    let closes = !this.shouldKeepAlive
    let named = false
    for (let at = 0; at < headers.length; at += 2) {
      text += `${headers[at]}: ${headers[at + 1]}\r\n`
      // We add this header ourselves only to end the connection.
      if (isNamed(headers[at]!, 'connection')) named = closes = true
    }
    if (this.sendDate) text += `Date: ${httpDate()}\r\n`
    if (!named) text += closes ? CLOSE : keepAlive(node._keepAliveTimeout)
    this.statusCode = status
    this.finished = true
    node._header = text
    node._headerSent = true
    node._last = closes
    socket.write(`${text}\r\n${body}`, 'latin1', error => {
      if (!error) this.emit('finish')
    })
  }
}

const CLOSE = 'Connection: close\r\n'

/** @param ms how long an idle connection is kept; 0: for ever */
function keepAlive(ms: number): string {
  return ms === 0
    ? 'Connection: keep-alive\r\n'
    : `Connection: keep-alive\r\nKeep-Alive: timeout=${Math.floor(ms / 1_000)}\r\n`
}

/** The answer to an upgrade request, whose socket Node has given away. It is the last one. */
export class DetachedAnswer extends NodeAnswer {
  readonly #linger: Deadlines

  constructor(req: IncomingMessage, linger: Deadlines) {
    super(req)
    this.#linger = linger
  }

  override sendWhole(answer: WholeAnswer): void {
    const { socket } = this.req
    this.shouldKeepAlive = false
    this.assignSocket(socket)
    this.once('finish', () => closeSoftly(socket, this.#linger))
    super.sendWhole(answer)
  }
}
