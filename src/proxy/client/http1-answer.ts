import type { Deadlines } from '../deadlines.js'
import type { AnswerHead, AnswerOwner, ClientAnswer, RequestBody, WholeAnswer } from '../http/client.js'
import { fieldLines, isNamed } from '../http/fields.js'
import { afterReads, watchOver } from '../http/pace.js'
import { httpDate } from '../http/reply.js'
import { Backlog, SocketWriter } from './backlog.js'
import type { ClientTimeouts } from './home.js'
import type { AnsweredStream } from './http2-answer.js'
import type { RequestHead } from './request-parser.js'

/** Bytes. A body up to this size is copied into the text of its head, or of its chunk. */
const SMALL = 16 * 1024
const CLOSE = 'Connection: close\r\n'
/** A head waits that long for a body. */
const sendHeadSoon = afterReads<Http1Answer>(answer => answer.sendHead())

export interface AnsweredConnection extends Omit<AnsweredStream, 'lingerOn'> {
  readonly encrypted: boolean
  readonly timeouts: ClientTimeouts
}

/** An answer that our own server sends. A head and a small body leave in one write. */
export class Http1Answer implements ClientAnswer {
  statusCode = 200
  headersSent = false
  owner: AnswerOwner | undefined = undefined
  isLast: boolean
  isComplete = false
  readonly #connection: AnsweredConnection
  readonly #request: RequestHead
  #head = ''
  #chunked = false
  #continued = false
  #unwatch: (() => void) | undefined
  /** Set once the client has not taken something at once. */
  #backlog: Backlog | undefined
  #ahead = 0
  #client = ''

  constructor(connection: AnsweredConnection, request: RequestHead) {
    this.#connection = connection
    this.#request = request
    this.isLast = !request.framing.persistent
  }

  openBody(client: string): RequestBody {
    return this.#connection.openBody(client)
  }

  writeContinue(): void {
    this.#continued = true
    this.#connection.socket.write('HTTP/1.1 100 Continue\r\n\r\n', 'latin1')
  }

  earlyHints(fields: readonly string[]): void {
    const { socket } = this.#connection
    if (!socket.writableNeedDrain) socket.write(`HTTP/1.1 103 Early Hints\r\n${fieldLines(fields)}\r\n`, 'latin1')
  }

  sendWhole({ status, reason, headers, body }: WholeAnswer): void {
    // The client may leave its body out. Then the next request would be taken for it.
    if (this.#request.framing.expectsContinue && !this.#continued) this.isLast = true
    const lines = this.#linesOf(headers)
    const content = this.#request.method === 'HEAD' ? '' : body
    this.statusCode = status
    this.headersSent = true
    const { socket } = this.#connection
    socket.write(`HTTP/1.1 ${status} ${reason}\r\n${lines}Date: ${httpDate()}\r\n\r\n${content}`, 'latin1')
    this.#finish()
  }

  #linesOf(headers: readonly string[]): string {
    for (let at = 0; at < headers.length; at += 2) {
      // We add this header ourselves only to end the connection.
      if (!isNamed(headers[at]!, 'connection')) continue
      this.isLast = true
      return fieldLines(headers)
    }
    return fieldLines(headers) + (this.isLast ? CLOSE : this.#connection.timeouts.keepAlive)
  }

  limitFlush(deadlines: Deadlines): void {
    const { socket } = this.#connection
    if (socket.writableLength === 0) return
    const unwatch = watchOver(socket, deadlines)
    this.#unwatch = unwatch
    socket.once('close', unwatch)
  }

  start({ status, reason, headers, length, ahead, client }: AnswerHead): void {
    this.statusCode = status
    this.#ahead = ahead
    this.#client = client
    this.#chunked = length === undefined && this.#request.httpVersionMinor === 1
    // Only the end of the connection tells a client of HTTP/1.0 where the body ends.
    if (length === undefined && !this.#chunked) this.isLast = true
    const coding = this.#chunked ? 'Transfer-Encoding: chunked\r\n' : ''
    const lines = length === 0 ? this.#emptyLength(status, headers) : coding
    this.#head = `HTTP/1.1 ${status} ${reason}\r\n${this.#linesOf(headers)}${lines}\r\n`
    if (length === 0) return
    sendHeadSoon(this)
  }

  #emptyLength(status: number, headers: readonly string[]): string {
    if (this.#request.method === 'HEAD' || status === 204 || status === 304) return ''
    for (let at = 0; at < headers.length; at += 2) if (isNamed(headers[at]!, 'content-length')) return ''
    return 'Content-Length: 0\r\n'
  }

  /** Sends the head if the body takes its time, as with server-sent events. */
  sendHead(): void {
    if (this.#head !== '') this.#connection.socket.write(this.#takeHead(), 'latin1')
  }

  #takeHead(): string {
    const head = this.#head
    this.#head = ''
    this.headersSent = true
    return head
  }

  data(buffer: Buffer, from: number, to: number): boolean {
    const { socket } = this.#connection
    const head = this.#takeHead()
    const size = this.#chunked ? `${(to - from).toString(16)}\r\n` : ''
    const end = this.#chunked ? '\r\n' : ''
    if (to - from <= SMALL) socket.write(head + size + buffer.toString('latin1', from, to) + end, 'latin1')
    else {
      socket.cork()
      if (head !== '' || size !== '') socket.write(head + size, 'latin1')
      socket.write(Buffer.from(buffer.subarray(from, to)))
      if (end !== '') socket.write(end, 'latin1')
      socket.uncork()
    }
    if (socket.writableLength === 0) return true
    this.#backlog ??= this.#openBacklog()
    return this.#backlog.grown()
  }

  #openBacklog(): Backlog {
    const { socket, encrypted, budget, leastRate } = this.#connection
    const onTooSlow = (): void => {
      this.owner?.takenTooSlowly()
      socket.destroy()
    }
    const writer = new SocketWriter(socket)
    const [client, most, copies] = [this.#client, this.#ahead, encrypted ? 2 : 1]
    return new Backlog({ writer, copies, budget, leastRate, onTooSlow, client, most })
  }

  get taken(): number {
    return this.#backlog?.taken ?? 0
  }

  onceDrained(run: () => void): void {
    this.#backlog!.onDrained = run
  }

  closed(): void {
    this.#backlog?.end()
  }

  complete(trailers: readonly string[]): void {
    const end = this.#chunked ? `0\r\n${fieldLines(trailers)}\r\n` : ''
    const text = this.#takeHead() + end
    if (text !== '') this.#connection.socket.write(text, 'latin1')
    this.#backlog?.grown()
    this.#finish()
  }

  /** The answer is over when the socket has taken all of it. */
  #finish(): void {
    this.isComplete = true
    const { socket } = this.#connection
    if (socket.writableLength === 0) return this.#finished()
    socket.write('', 'latin1', error => {
      if (!error) this.#finished()
    })
  }

  #finished(): void {
    this.#backlog?.end()
    if (this.#unwatch !== undefined) {
      this.#unwatch()
      this.#connection.socket.off('close', this.#unwatch)
    }
    this.owner?.answerSent()
  }

  recall(): boolean {
    if (this.#head === '') return false
    this.#head = ''
    this.isLast = !this.#request.framing.persistent
    return true
  }

  cut(flush?: Deadlines): void {
    this.#head = ''
    const { socket, encrypted } = this.#connection
    const isOld = this.#request.httpVersionMinor === 0
    // For a client of HTTP/1.0 a FIN would look like the end of the body. Only plain TCP can send a reset.
    if (isOld && !encrypted && socket.remoteAddress !== undefined) socket.resetAndDestroy()
    else if (isOld || flush === undefined) socket.destroy()
    else {
      // The length, or the last chunk, says that the answer is not whole.
      this.isLast = true
      this.limitFlush(flush)
      this.#finish()
    }
  }

  readRest(): void {
    this.#connection.discardBody()
  }
}
