import { constants, type OutgoingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { Deadlines } from '../deadlines.js'
import type { AnswerHead, AnswerOwner, ClientAnswer, ClientRequest, RequestBody, WholeAnswer } from '../http/client.js'
import type { ByteBudget } from '../http/connection/byte-budget.js'
import type { LeastRate } from '../http/connection/least-rate.js'
import { watchOver } from '../http/connection/linger.js'
import { unconfirmedBytes } from '../http/connection/send-queue.js'
import { http2Fields } from '../http2/fields.js'
import { breakOffSoon, resetSoon } from '../http2/reset.js'
import { Backlog, type BackloggedWriter } from './backlog.js'
import { KeptBytes } from './kept-bytes.js'

/**
 * Bytes. Node tells only of whole writes when the client has taken them, so an answer is written in pieces this small. One that
 * is no longer leaves with its head.
 */
const PIECE = 4 * 1024

/** An upstream's answer has a Date, or has none. */
const UNDATED = { sendDate: false }

/** Answers whose head waits for a body until the sockets of this turn of the event loop have been read. */
let waiting: Http2Answer[] = []

function sendHeads(): void {
  const answers = waiting
  waiting = []
  for (const answer of answers) answer.sendHead()
}

/** Answers that were short enough to leave at once. What has not left a turn of the event loop later waits for its client. */
let leaving: Http2Answer[] = []

function watchRests(): void {
  const answers = leaving
  leaving = []
  for (const answer of answers) answer.watchRest()
}

/** The stream that an answer goes to. */
interface AnsweredStream {
  readonly budget: ByteBudget
  /** Undefined: the client may be as slow as it likes. */
  readonly leastRate: LeastRate | undefined
  readonly socket: Parameters<typeof unconfirmedBytes>[0]
  openBody(client: string): RequestBody
  /** From now on nobody wants the rest of the body. */
  discardBody(): void
  /** The client has its answer and still sends. */
  lingerOn(): void
}

/** The answer to a request of HTTP/2. The window of the stream is the backpressure. */
export class Http2Answer implements ClientAnswer, BackloggedWriter {
  statusCode = 200
  headersSent = false
  owner: AnswerOwner | undefined = undefined
  /** The client still sends a body that nobody wants. */
  isBodyUnwanted = false
  /** Bytes that the client has taken. */
  taken = 0
  readonly grain = PIECE
  readonly #connection: AnsweredStream
  readonly #stream: ServerHttp2Stream
  readonly #request: ClientRequest
  /** A head that has not been sent. */
  #head: OutgoingHttpHeaders | undefined
  #isSized = false
  /** What has not been written, behind `#rest`. Undefined: nothing ever was. */
  #queue: KeptBytes | undefined
  /** What is written next. */
  #rest: Buffer | undefined
  /** Bytes that are being written. */
  #writing = 0
  /** The answer ends with what has been queued. */
  #isEnding = false
  #trailers: readonly string[] = []
  #onTaken: ((error?: Error | null) => void) | undefined
  #unwatch: (() => void) | undefined
  /** Set once the client has not taken something at once. */
  #backlog: Backlog | undefined
  #ahead = 0
  #client = ''

  constructor(connection: AnsweredStream, stream: ServerHttp2Stream, request: ClientRequest) {
    this.#connection = connection
    this.#stream = stream
    this.#request = request
  }

  openBody(client: string): RequestBody {
    return this.#connection.openBody(client)
  }

  writeContinue(): void {
    if (this.#isOpen) this.#stream.additionalHeaders({ ':status': 100 })
  }

  earlyHints(fields: readonly string[]): void {
    if (!this.#isOpen || this.#stream.headersSent) return
    this.#stream.additionalHeaders(http2Fields({ ':status': 103 }, fields))
  }

  get #isOpen(): boolean {
    return !this.#stream.destroyed && !this.#stream.closed
  }

  sendWhole({ status, headers, body }: WholeAnswer): void {
    this.statusCode = status
    this.headersSent = true
    if (!this.#isOpen) return
    const fields = http2Fields({ ':status': status }, headers)
    this.#stream.once('finish', this.#finished)
    if (body === '' || this.#request.method === 'HEAD') {
      this.#stream.respond(fields, { endStream: true })
      return
    }
    this.#stream.respond(fields)
    this.#stream.end(body, 'latin1')
  }

  limitFlush(deadlines: Deadlines): void {
    if (!this.#isOpen || this.#stream.writableFinished) return
    const destroy = (): void => breakOffSoon(this.#stream, 'the client does not take the answer')
    this.#unwatch = watchOver({ destroy }, deadlines)
  }

  start({ status, headers, length, ahead, client }: AnswerHead): void {
    this.statusCode = status
    this.#ahead = ahead
    this.#client = client
    this.#isSized = length !== undefined
    this.#head = http2Fields({ ':status': status }, headers)
    if (length === 0) return
    if (waiting.length === 0) setImmediate(sendHeads)
    waiting.push(this)
  }

  /** Sends the head if the body takes its time, as with server-sent events. */
  sendHead(): void {
    if (this.#head === undefined) return
    this.#begin()
    this.#leaves()
  }

  #begin(): void {
    const head = this.#takeHead()
    if (head === undefined) return
    const waitForTrailers = !this.#isSized || this.#trailers.length > 0
    this.#stream.once('finish', this.#finished)
    this.#stream.respond(head, { ...UNDATED, waitForTrailers })
    if (waitForTrailers) this.#stream.once('wantTrailers', this.#sendTrailers)
    this.#pump()
  }

  /** It may have left with its head. A backlog for each such answer would cost more than the answer. */
  #leaves(): void {
    if (this.waiting === 0) return
    if (leaving.length === 0) setImmediate(watchRests)
    leaving.push(this)
  }

  /** Its client is too slow if it does not take what still waits. */
  watchRest(): void {
    if (this.waiting === 0 || !this.#isOpen) return
    this.#backlog ??= this.#openBacklog()
    this.#backlog.grown()
  }

  /** Undefined: it has been sent, or can no longer be. */
  #takeHead(): OutgoingHttpHeaders | undefined {
    const head = this.#head
    this.#head = undefined
    if (head === undefined) return undefined
    this.headersSent = true
    return this.#isOpen ? head : undefined
  }

  readonly #sendTrailers = (): void => {
    if (this.#isOpen) this.#stream.sendTrailers(http2Fields({}, this.#trailers))
  }

  data(buffer: Buffer, from: number, to: number): boolean {
    const bytes = Buffer.from(buffer.subarray(from, to))
    if (this.waiting === this.#writing) this.#rest = bytes
    else {
      this.#queue ??= new KeptBytes()
      this.#queue.add(bytes)
    }
    if (this.#head !== undefined) {
      if (this.waiting <= PIECE) return true
      this.#begin()
    } else this.#pump()
    if (this.waiting === 0) return true
    this.#backlog ??= this.#openBacklog()
    return this.#backlog.grown()
  }

  #openBacklog(): Backlog {
    const { budget, leastRate } = this.#connection
    const onTooSlow = (): void => {
      this.owner?.takenTooSlowly()
      resetSoon(this.#stream, constants.NGHTTP2_CANCEL)
    }
    return new Backlog({
      writer: this,
      copies: 1,
      budget,
      leastRate,
      onTooSlow,
      client: this.#client,
      most: this.#ahead,
    })
  }

  /** Writes a piece, once the one before has been taken. */
  #pump(): void {
    if (this.#writing > 0 || !this.#isOpen) return
    const piece = this.#nextPiece()
    const isLast = this.#isEnding && this.waiting === 0
    if (piece === undefined) {
      if (this.#isEnding) this.#stream.end()
      return
    }
    this.#writing = piece.length
    if (isLast) this.#stream.end(piece, this.#written)
    else this.#stream.write(piece, this.#written)
  }

  #nextPiece(): Buffer | undefined {
    const from = this.#rest ?? this.#queue?.take()
    if (from === undefined || from.length <= PIECE) {
      this.#rest = undefined
      return from
    }
    this.#rest = from.subarray(PIECE)
    return from.subarray(0, PIECE)
  }

  readonly #written = (error?: Error | null): void => {
    this.taken += this.#writing
    this.#writing = 0
    if (!error) this.#pump()
    if (!error && this.waiting > 0) return
    const taken = this.#onTaken
    this.#onTaken = undefined
    taken?.(error)
  }

  get waiting(): number {
    return (this.#queue?.length ?? 0) + (this.#rest?.length ?? 0) + this.#writing
  }

  get destroyed(): boolean {
    return !this.#isOpen
  }

  onceTaken(run: (error?: Error | null) => void): void {
    this.#onTaken = run
  }

  unconfirmed(): Promise<number | undefined> {
    return unconfirmedBytes(this.#connection.socket)
  }

  onceDrained(run: () => void): void {
    this.#backlog!.onDrained = run
  }

  /** The stream has ended. */
  closed(): void {
    this.#head = undefined
    this.#queue = undefined
    this.#rest = undefined
    this.#backlog?.end()
    this.#unwatch?.()
  }

  complete(trailers: readonly string[]): void {
    this.#isEnding = true
    this.#trailers = trailers
    if (this.#head === undefined) {
      if (this.#isOpen) this.#pump()
      this.#backlog?.grown()
      return
    }
    if (trailers.length > 0) return this.sendHead()
    const head = this.#takeHead()
    if (head === undefined) return
    this.#stream.once('finish', this.#finished)
    this.#stream.respond(head, { ...UNDATED, endStream: this.waiting === 0 })
    if (this.waiting > 0) this.#pump()
    this.#leaves()
  }

  /** The client has been sent all of it. */
  readonly #finished = (): void => {
    this.#backlog?.end()
    this.#unwatch?.()
    this.#unwatch = undefined
    this.owner?.finished()
    if (this.isBodyUnwanted && this.#isOpen) this.#connection.lingerOn()
  }

  recall(): boolean {
    if (this.#head === undefined) return false
    this.#head = undefined
    this.#queue = undefined
    this.#rest = undefined
    return true
  }

  cut(flush?: Deadlines): void {
    this.#head = undefined
    const reset = (): void => breakOffSoon(this.#stream, 'the answer broke off')
    if (flush === undefined || this.waiting === 0 || !this.#isOpen) return reset()
    this.limitFlush(flush)
    this.#onTaken = reset
  }

  readRest(): void {
    this.#connection.discardBody()
  }
}
