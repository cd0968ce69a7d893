import { type IncomingMessage, ServerResponse } from 'node:http'
import { isNamed } from '../http1/fields.js'

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

/** An answer with a known length. */
export interface WholeAnswer {
  readonly status: number
  readonly reason: string
  /** Names and values in turn, Content-Length among them. */
  readonly headers: readonly string[]
  /** One byte for each character. */
  readonly body: string
}

/** The answer to a client. A whole answer goes out in one write, past most of what Node does for an answer in pieces. */
export class ClientAnswer<Request extends IncomingMessage = IncomingMessage> extends ServerResponse<Request> {
  /** Sends and ends the answer. Nothing has been sent before. */
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

let second = 0
let date = ''

/** The date for a `Date` header. It changes once a second. */
function httpDate(): string {
  const now = Math.floor(Date.now() / 1_000)
  if (now !== second) {
    second = now
    date = new Date(now * 1_000).toUTCString()
  }
  return date
}
