import { constants, type OutgoingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { Deadlines } from '../deadlines.js'
import type { ByteBudget } from '../http/byte-budget.js'
import type { AnswerHead, AnswerOwner, ClientAnswer, ClientRequest, RequestBody, WholeAnswer } from '../http/client.js'
import { breakOffSoon, http2Fields, resetSoon } from '../http/http2.js'
import { afterReads, type LeastRate, watchOver } from '../http/pace.js'
import { Backlog, type BackloggedWriter, unconfirmedBytes } from './backlog.js'
import { KeptBytes } from './kept-bytes.js'

/** Bytes. Node tells only of whole writes, so an answer is written in pieces this small. A shorter one leaves with its head. */
const PIECE = 4 * 1024
/** An upstream's answer has a Date, or has none. */
const UNDATED = { sendDate: false }
/** A head waits that long for a body. */
const sendHeadSoon = afterReads<Http2Answer>(answer => answer.sendHead())
/** What has not left with its head by then waits for its client. A backlog for each such answer would cost more than that. */
const watchRestSoon = afterReads<Http2Answer>(answer => answer.watchRest())

export interface AnsweredStream {
  readonly budget: ByteBudget
  readonly leastRate: LeastRate | undefined
  readonly socket: Parameters<typeof unconfirmedBytes>[0]
  openBody(client: string): RequestBody
  discardBody(): void
  /** The client has its answer and still sends. */
  lingerOn(): void
}

/** The answer to a request of HTTP/2. The window of the stream is the backpressure. */
export class Http2Answer implements ClientAnswer, BackloggedWriter {
  statusCode = 200
  headersSent = false
  owner: AnswerOwner | undefined = undefined
  isBodyUnwanted = false
  taken = 0
  readonly grain = PIECE
  readonly #connection: AnsweredStream
  readonly #stream: ServerHttp2Stream
  readonly #request: ClientRequest
  #head: OutgoingHttpHeaders | undefined
  #isSized = false
  /** What has not been written, behind `#rest`. Undefined: nothing ever was. */
  #queue: KeptBytes | undefined
  #rest: Buffer | undefined
  #writing = 0
  #isEnding = false
  #trailers: readonly string[] = []
  #onTaken: ((error?: Error | null) => void) | undefined
  #unwatch: (() => void) | undefined
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
    sendHeadSoon(this)
  }

  sendHead(): void {
    if (this.#head === undefined) return
    this.#begin()
    if (this.waiting > 0) watchRestSoon(this)
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
    const [client, most] = [this.#client, this.#ahead]
    return new Backlog({ writer: this, copies: 1, budget, leastRate, onTooSlow, client, most })
  }

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
    if (this.waiting > 0) watchRestSoon(this)
  }

  readonly #finished = (): void => {
    this.#backlog?.end()
    this.#unwatch?.()
    this.#unwatch = undefined
    this.owner?.answerSent()
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
