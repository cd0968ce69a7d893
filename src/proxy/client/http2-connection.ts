/**
 * A client's connection over HTTP/2. Node reads its frames (nghttp2), and each stream is a request of its own.
 *
 * What a client can make us do is bounded:
 * - `MOST_STREAMS` requests at a time, and the window of each.
 * - Resets of requests without an answer, by the client or by us: `RESETS` at once, and `RESETS_PER_SECOND`. A client beyond that
 *   loses its connection (CVE-2023-44487, CVE-2025-8671).
 * - Heads: as many bytes and fields as over HTTP/1.1. Node refuses one with twice that, in however many frames it comes. Such streams,
 *   and heads that are answered 431, count as resets.
 * - The memory of heads counts in the buffers of their client.
 * - Frames that are invalid, or that ask for an answer, by Node and nghttp2.
 */
import {
  constants,
  type IncomingHttpHeaders,
  performServerHandshake,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import type { Socket } from 'node:net'
import type { ProxyContext } from '../context.js'
import { type Deadlines, Watched } from '../deadlines.js'
import { createExchange } from '../exchange/exchange.js'
import { type ByteBudget, HeldBytes } from '../http/byte-budget.js'
import type { ClientConnection, OpenConnection, PipelinedRequest } from '../http/client.js'
import type { PeerAddress } from '../http/client-address.js'
import { DeadSessionWatch, MAX_SENT_HEAD, resetSoon } from '../http/http2.js'
import { type LeastRate, watchOver } from '../http/pace.js'
import { NO_ROOM } from '../http/reply.js'
import { type BodySource, ClientBody } from './body.js'
import type { ConnectionHome } from './home.js'
import { Http2Answer } from './http2-answer.js'
import { Http2Request } from './http2-request.js'

const MOST_STREAMS = 128
/** The most of them that have their answer while their client still sends. One more takes the place of the oldest. */
const MOST_LINGERING = MOST_STREAMS / 2
/** How many requests may be reset at once, and how many a second on average. As nghttp2 bounds those that clients reset. */
const RESETS = 1_000
const RESETS_PER_SECOND = 33
const PSEUDO_FIELDS = 4
/** How many resets a head counts that is answered 431. */
const LONG_HEAD = 50
/** Frames that break the rules of a stream, and streams that are refused, before the connection ends. */
const MOST_INVALID = 100

export class Http2Connection extends Watched implements OpenConnection {
  excess = false
  readonly socket: Socket
  readonly peer: string
  readonly peerKey: string
  readonly certificate: string | undefined
  readonly encrypted: boolean
  readonly #home: ConnectionHome
  readonly http2: ServerHttp2Session
  readonly #streams = new Set<Http2Stream>()
  /** The oldest first. */
  readonly #lingering = new Set<Http2Stream>()
  #idleSince: number
  #deadlines: Deadlines | undefined
  /** Resets that are left, at the time of the last one. */
  #resets = RESETS
  #resetAt: number
  /** Of the last stream that was seen here. Node tells nothing of those that it refuses. */
  #lastId = -1
  /** It ends in the next turn of the event loop. Streams that come by then are not looked at. */
  #isAbused = false

  /** @param socket bytes that were read from it have been given back to its stream */
  constructor(home: ConnectionHome, socket: Socket, { peer, peerKey, certificate }: PeerAddress) {
    super()
    this.#home = home
    this.socket = socket
    this.peer = peer
    this.peerKey = peerKey
    this.certificate = certificate
    this.encrypted = 'encrypted' in socket
    this.#resetAt = home.context.clock.now()
    this.http2 = performServerHandshake(socket, {
      maxHeaderListPairs: 2 * home.headLimits.maxHeaders + PSEUDO_FIELDS,
      maxSendHeaderBlockLength: MAX_SENT_HEAD,
      maxSessionInvalidFrames: MOST_INVALID,
      maxSessionRejectedStreams: MOST_INVALID,
      settings: {
        maxConcurrentStreams: MOST_STREAMS,
        initialWindowSize: STREAM_WINDOW,
        maxHeaderListSize: 2 * home.headLimits.maxHeaderSize,
      },
    })
    this.http2
      .on('error', ignore)
      .on('stream', this.#onStream)
      .once('remoteSettings', this.#opened)
      .on('close', this.#closed)
    // A FIN is a hang-up, as over HTTP/1.1.
    socket.on('end', () => this.http2.destroy())
    this.#idleSince = home.lastCalls.now()
    this.#watch(home.timeouts.opening)
    new DeadSessionWatch(this, home.looks)
  }

  get context(): ProxyContext {
    return this.#home.context
  }

  get requests(): PipelinedRequest[] {
    return [...this.#streams].flatMap(({ current }) => current ?? [])
  }

  readonly #opened = (): void => {
    if (this.#streams.size === 0 && !this.context.draining) this.#watch(this.#home.timeouts.idle)
  }

  #watch(deadlines: Deadlines | undefined): void {
    if (this.#deadlines !== deadlines) this.#deadlines?.unwatch(this)
    this.#deadlines = deadlines
    deadlines?.watch(this)
  }

  get hasUnanswered(): boolean {
    for (const stream of this.#streams) if (stream.isUnanswered) return true
    return false
  }

  readonly #onStream = (
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    _flags: number,
    raw: readonly string[] = [],
  ): void => {
    const body = stream.endAfterHeaders ? 'none' : 'follows'
    const request = new Http2Request({ headers, raw, body }, this.#home.headLimits)
    this.#countResets(this.#skippedBefore(stream.id!) + (request.refusal?.status === 431 ? LONG_HEAD : 0))
    if (this.#isAbused) return void stream.on('error', ignore)
    this.#watch(undefined)
    const started = new Http2Stream(this, stream, request)
    this.#streams.add(started)
    started.start()
    this.#home.lastCalls.end(this)
  }

  streamDone(): void {
    if (this.context.leaving) this.http2.close()
  }

  lingers(stream: Http2Stream): void {
    this.#lingering.add(stream)
    if (this.#lingering.size <= MOST_LINGERING) return
    const [oldest] = this.#lingering
    this.#lingering.delete(oldest!)
    oldest!.endConnection()
  }

  streamOver(stream: Http2Stream, how: 'answered' | 'reset'): void {
    this.#streams.delete(stream)
    this.#lingering.delete(stream)
    if (how === 'reset') this.#countResets(1)
    if (this.http2.destroyed || this.#isAbused || this.#streams.size > 0) return
    this.#idleSince = this.#home.lastCalls.now()
    this.#watch(this.#home.timeouts.idle)
  }

  #countResets(count: number): void {
    if (count <= 0 || this.#isAbused || this.http2.destroyed) return
    const now = this.context.clock.now()
    this.#resets = Math.min(RESETS, this.#resets + ((now - this.#resetAt) * RESETS_PER_SECOND) / 1_000) - count
    this.#resetAt = now
    if (this.#resets >= 0) return
    const code = constants.NGHTTP2_ENHANCE_YOUR_CALM
    this.#isAbused = true
    this.http2.goaway(code)
    // Not at once: see `resetSoon`.
    setImmediate(() => this.http2.destroy(new Error('too many resets'), code))
  }

  #skippedBefore(id: number): number {
    const skipped = Math.max(0, (id - this.#lastId) / 2 - 1)
    this.#lastId = id
    return skipped
  }

  looked(): void {
    const { lastProcStreamID = 0 } = this.http2.state
    if (lastProcStreamID > this.#lastId) this.#countResets(this.#skippedBefore(lastProcStreamID) + 1)
  }

  expired(): void {
    this.#deadlines = undefined
    if (this.context.draining) this.http2.close()
    else this.http2.destroy()
  }

  last(): void {
    this.http2.close()
  }

  leave(): void {
    const { lastCalls } = this.#home
    if (this.#streams.size > 0 || !lastCalls.isRecent(this.#idleSince)) return this.http2.close()
    lastCalls.begin(this)
    this.#watch(lastCalls.deadlines)
  }

  endUnused(): void {
    this.http2.close()
  }

  readonly #closed = (): void => {
    this.#watch(undefined)
    this.#home.lastCalls.end(this)
    this.#home.closed(this)
  }
}

/** Bytes of a body that a client may send before we read any of it: the window of a stream. */
export const STREAM_WINDOW = 65_535
/** Bytes of a body that are read and dropped after the answer. A client that sends more has read past the answer. */
const MOST_DROPPED = 2 * STREAM_WINDOW

/**
 * One stream of a client. To its exchange it is a connection with one request. A reset of it is a hang-up.
 *
 * What the client sends is read only as fast as it is taken: without a read its window stays shut. What fits into the window may
 * come all the same, so it counts as held while the stream is not read.
 */
export class Http2Stream implements ClientConnection, BodySource {
  readonly peer: string
  readonly peerKey: string
  readonly socket: Socket
  readonly certificate: string | undefined
  readonly encrypted: boolean
  readonly unread = false
  readonly alone = true
  readonly full = false
  readonly isAhead = false
  current: PipelinedRequest | undefined
  readonly #connection: Http2Connection
  readonly #stream: ServerHttp2Stream
  readonly #request: Http2Request
  readonly #answer: Http2Answer
  #body: ClientBody | undefined
  /** The window that may fill while the body is not read. Undefined: no body follows the head. */
  #window: HeldBytes | undefined
  /** The client whose head counts. Undefined: it does not. */
  #headOf: string | undefined
  #isOver = false
  #lingerNoMore: (() => void) | undefined

  constructor(connection: Http2Connection, stream: ServerHttp2Stream, request: Http2Request) {
    this.peer = connection.peer
    this.peerKey = connection.peerKey
    this.certificate = connection.certificate
    this.socket = connection.socket
    this.encrypted = connection.encrypted
    this.#connection = connection
    this.#stream = stream
    this.#request = request
    this.#answer = new Http2Answer(this, stream, request)
    stream.on('error', ignore).on('aborted', this.#closed).on('close', this.#closed)
  }

  get excess(): boolean {
    return this.#connection.excess
  }

  get budget(): ByteBudget {
    return this.#connection.context.bodyBytes
  }

  get leastRate(): LeastRate | undefined {
    return this.#connection.context.bodyLimits.leastRate
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

  openBody(client: string): ClientBody {
    const { budget } = this
    const leastRate = this.#request.unsized || this.#request.complete ? undefined : this.leastRate
    const body = new ClientBody(this, { budget, client, leastRate })
    this.#body = body
    this.#window?.hold(0)
    // What has come is there at once.
    for (let chunk = this.#take(); chunk !== null; chunk = this.#take()) body.receive(chunk)
    // All of it may have been read, though the stream has not told it yet.
    const isRead = this.#stream.readableLength === 0 && this.#stream.state.remoteClose === 1
    if (this.#stream.readableEnded || isRead) this.#ended()
    else this.#stream.on('data', (chunk: Buffer) => this.#body!.receive(chunk)).on('end', () => this.#ended())
    if (body.ready) this.#stream.pause()
    return body
  }

  #take(): Buffer | null {
    return this.#stream.readableLength === 0 ? null : (this.#stream.read() as Buffer | null)
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

  bodyGoesTo(body: ClientBody): void {
    this.#body = body
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
    current?.end('hang-up')
    // A reset without an error would wait until what has come is read.
    if (this.#stream.rstCode === constants.NGHTTP2_NO_ERROR) this.#stream.destroy()
  }
}

function ignore(): void {}
