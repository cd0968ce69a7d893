import { constants, type ServerHttp2Stream } from 'node:http2'
import type { Socket } from 'node:net'
import type { ProxyContext } from '../context.js'
import { createExchange } from '../exchange/create-exchange.js'
import type { PeerAddress } from '../http/client-address.js'
import { type ByteBudget, HeldBytes } from '../http/connection/byte-budget.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import type { LeastRate } from '../http/connection/least-rate.js'
import { watchOver } from '../http/connection/linger.js'
import { NO_ROOM } from '../http/reply.js'
import { resetSoon } from '../http2/reset.js'
import { Http2Answer } from './http2-answer.js'
import type { Http2Request } from './http2-request.js'
import { type BodySource, OwnBody } from './own-body.js'

/** Bytes of a body that a client may send before we read any of it: the window of a stream. */
export const STREAM_WINDOW = 65_535

/**
 * Bytes of a body that are read and dropped after the answer. What exceeds one window was allowed after the answer, so a client
 * that sends more has read past it.
 */
const MOST_DROPPED = 2 * STREAM_WINDOW

/** The connection of a stream. */
export interface StreamCarrier extends PeerAddress {
  readonly context: ProxyContext
  readonly socket: Socket
  readonly encrypted: boolean
  readonly excess: boolean
  readonly budget: ByteBudget
  readonly leastRate: LeastRate | undefined
  /** It takes no further stream. */
  last(): void
  /** A stream has its answer, and still reads what its client sends. */
  lingers(stream: Http2Stream): void
  /** A stream has its answer. */
  streamDone(): void
  /** @param how whether it was over before its request was answered */
  streamOver(stream: Http2Stream, how: 'answered' | 'reset'): void
}

/**
 * One stream of a client. To its exchange it is a connection with one request. A reset of it is a hang-up.
 *
 * What the client sends is read only as fast as it is taken: without a read its window stays shut. What fits into the window may
 * come all the same, so it counts as held while the stream is not read.
 */
export class Http2Stream implements ClientConnection, BodySource {
  readonly unread = false
  readonly alone = true
  readonly full = false
  current: PipelinedRequest | undefined
  readonly #connection: StreamCarrier
  readonly #stream: ServerHttp2Stream
  readonly #request: Http2Request
  readonly #answer: Http2Answer
  #body: OwnBody | undefined
  /** The window that may fill while the body is not read. Undefined: no body follows the head. */
  #window: HeldBytes | undefined
  /** The client whose head counts. Undefined: it does not. */
  #headOf: string | undefined
  #isOver = false
  #lingerNoMore: (() => void) | undefined

  constructor(connection: StreamCarrier, stream: ServerHttp2Stream, request: Http2Request) {
    this.#connection = connection
    this.#stream = stream
    this.#request = request
    this.#answer = new Http2Answer(this, stream, request)
    stream.on('error', ignore).on('aborted', this.#closed).on('close', this.#closed)
  }

  get peer(): string {
    return this.#connection.peer
  }

  get peerKey(): string {
    return this.#connection.peerKey
  }

  get socket(): Socket {
    return this.#connection.socket
  }

  get encrypted(): boolean {
    return this.#connection.encrypted
  }

  get excess(): boolean {
    return this.#connection.excess
  }

  get budget(): ByteBudget {
    return this.#connection.budget
  }

  get leastRate(): LeastRate | undefined {
    return this.#connection.leastRate
  }

  get isAhead(): boolean {
    return false
  }

  get isUnanswered(): boolean {
    return this.current !== undefined && !this.#stream.headersSent
  }

  start(): void {
    const { context } = this.#connection
    const exchange = createExchange(context, this, this.#request, this.#answer)
    this.current = exchange
    const refusal = this.#request.refusal ?? (this.#request.complete || this.#reserve() ? undefined : NO_ROOM)
    if (refusal !== undefined) exchange.onMalformed(refusal)
    exchange.start()
  }

  /** @returns false if there is no room for its window */
  #reserve(): boolean {
    if (this.budget.isFull(this.peerKey)) return false
    this.#window = new HeldBytes(this.budget, this.peerKey)
    this.#window.hold(Math.min(STREAM_WINDOW, this.#request.contentLength ?? STREAM_WINDOW))
    return true
  }

  holdHead(client: string): boolean {
    if (this.budget.isOverfull(client)) return false
    this.#headOf = client
    this.budget.changeHeads(client, this.#request.memory)
    return true
  }

  #dropHead(): void {
    if (this.#headOf !== undefined) this.budget.changeHeads(this.#headOf, -this.#request.memory)
    this.#headOf = undefined
  }

  openBody(client: string): OwnBody {
    const { budget } = this
    const leastRate = this.#request.unsized || this.#request.complete ? undefined : this.leastRate
    const body = new OwnBody(this, { budget, client, leastRate })
    this.#body = body
    this.#window?.hold(0)
    // What has come is there at once.
    for (let chunk = this.#take(); chunk !== null; chunk = this.#take()) body.receive(chunk)
    if (this.#stream.readableEnded || this.#hasEnded()) this.#ended()
    else this.#stream.on('data', (chunk: Buffer) => body.receive(chunk)).on('end', () => this.#ended())
    if (body.ready) this.#stream.pause()
    return body
  }

  #take(): Buffer | null {
    return this.#stream.readableLength === 0 ? null : (this.#stream.read() as Buffer | null)
  }

  /** All of the body has been read, though the stream has not told it yet. */
  #hasEnded(): boolean {
    return this.#stream.readableLength === 0 && this.#stream.state.remoteClose === 1
  }

  #ended(): void {
    if (this.#isOver || this.#request.complete) return
    this.#request.complete = true
    this.#window?.hold(0)
    if (this.#body?.destroyed === false) this.#body.finish()
  }

  pauseBody(): void {
    if (this.#request.complete || this.#isOver) return
    this.#stream.pause()
    this.#window?.hold(STREAM_WINDOW)
  }

  resumeBody(): void {
    if (this.#request.complete || this.#isOver) return
    this.#window?.hold(0)
    this.#stream.resume()
  }

  bodyTooSlow(): void {
    this.current?.onMalformed({ status: 408, detail: 'the request body came too slowly' })
  }

  /** Nobody wants the rest of the body. It is read and dropped once the client has its answer. */
  discardBody(): void {
    if (!this.#request.complete) this.#answer.isBodyUnwanted = true
  }

  /**
   * A reset without an error may follow a whole answer (RFC 9113 8.1), but clients such as curl 7.88 lose an answer that they have not
   * read by then. So what still comes is dropped for a while.
   */
  lingerOn(): void {
    let left = MOST_DROPPED
    const drop = (chunk: Buffer): void => {
      left -= chunk.length
      if (left < 0) this.endConnection()
    }
    this.#window?.hold(0)
    this.#stream.removeAllListeners('data').on('data', drop).resume()
    this.#lingerNoMore = watchOver({ destroy: () => this.endConnection() }, this.#connection.context.linger.silence)
    this.#connection.lingers(this)
  }

  /** Other streams go on, unless the connection is one too many. */
  last(): void {
    if (this.excess) this.#connection.last()
  }

  done(): void {
    this.current = undefined
    this.#dropHead()
    this.#connection.streamDone()
  }

  endConnection(): void {
    this.#stream.removeAllListeners('data')
    resetSoon(this.#stream, constants.NGHTTP2_NO_ERROR)
  }

  hangUp(): void {
    resetSoon(this.#stream, constants.NGHTTP2_CANCEL)
  }

  readonly #closed = (): void => {
    if (this.#isOver) return
    this.#isOver = true
    this.#answer.closed()
    this.#lingerNoMore?.()
    this.#window?.hold(0)
    this.#dropHead()
    const { current } = this
    this.current = undefined
    this.#connection.streamOver(this, current === undefined ? 'answered' : 'reset')
    current?.abandon()
    // A reset without an error would wait until what has come is read.
    if (this.#stream.rstCode === constants.NGHTTP2_NO_ERROR) this.#stream.destroy()
  }
}

function ignore(): void {}
