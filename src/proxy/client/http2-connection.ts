/**
 * A client's connection over HTTP/2. Node reads its frames (nghttp2), and each stream is a request of its own.
 *
 * What a client can make us do is bounded:
 * - `MOST_STREAMS` requests at a time, and the window of each (http2-stream.ts).
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
import type { Deadlines, Watched } from '../deadlines.js'
import type { PeerAddress } from '../http/client-address.js'
import type { ByteBudget } from '../http/connection/byte-budget.js'
import type { OpenConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import type { LeastRate } from '../http/connection/least-rate.js'
import { DeadSessionWatch } from '../http2/dead-session.js'
import { MAX_SENT_HEAD } from '../http2/fields.js'
import type { ConnectionHome } from './connection-home.js'
import { Http2Request } from './http2-request.js'
import { Http2Stream, STREAM_WINDOW, type StreamCarrier } from './http2-stream.js'

/** The most streams of a connection at a time. */
const MOST_STREAMS = 128

/** The most of them that have their answer while their client still sends. One more takes the place of the oldest. */
const MOST_LINGERING = MOST_STREAMS / 2

/** How many requests may be reset at once, and how many a second on average. As nghttp2 bounds those that clients reset. */
const RESETS = 1_000
const RESETS_PER_SECOND = 33

/** Of a request. */
const PSEUDO_FIELDS = 4

/** How many resets a head counts that is answered 431. */
const LONG_HEAD = 50

/** Frames that break the rules of a stream, and streams that are refused, before the connection ends. */
const MOST_INVALID = 100

export class Http2Connection implements OpenConnection, StreamCarrier, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  excess = false
  readonly socket: Socket
  readonly peer: string
  readonly peerKey: string
  readonly encrypted: boolean
  readonly #home: ConnectionHome
  readonly http2: ServerHttp2Session
  readonly #streams = new Set<Http2Stream>()
  /** The oldest first. */
  readonly #lingering = new Set<Http2Stream>()
  /** Since when it has no streams, in ms. */
  #idleSince: number
  /** The deadlines that watch it. */
  #deadlines: Deadlines | undefined
  /** Resets that are left, at the time of the last one. */
  #resets = RESETS
  /** ms of the clock. */
  #resetAt: number
  /** Of the last stream that was seen here. Node tells nothing of those that it refuses. */
  #lastId = -1
  /** It ends in the next turn of the event loop. Streams that come by then are not looked at. */
  #isAbused = false

  /** @param socket bytes that were read from it have been given back to its stream */
  constructor(home: ConnectionHome, socket: Socket, { peer, peerKey }: PeerAddress) {
    this.#home = home
    this.socket = socket
    this.peer = peer
    this.peerKey = peerKey
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

  get budget(): ByteBudget {
    return this.context.bodyBytes
  }

  get leastRate(): LeastRate | undefined {
    return this.context.bodyLimits.leastRate
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
    if (this.http2.destroyed || this.#isAbused) return
    if (this.#streams.size > 0) return
    this.#idleSince = this.#home.lastCalls.now()
    this.#watch(this.#home.timeouts.idle)
  }

  /** Not at once: see `resetSoon`. */
  #endAbused(): void {
    const code = constants.NGHTTP2_ENHANCE_YOUR_CALM
    this.#isAbused = true
    this.http2.goaway(code)
    setImmediate(() => this.http2.destroy(new Error('too many resets'), code))
  }

  #countResets(count: number): void {
    if (count <= 0 || this.#isAbused || this.http2.destroyed) return
    const now = this.context.clock.now()
    this.#resets = Math.min(RESETS, this.#resets + ((now - this.#resetAt) * RESETS_PER_SECOND) / 1_000) - count
    this.#resetAt = now
    if (this.#resets < 0) this.#endAbused()
  }

  /** How many streams have been refused since the last one, before this one. */
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

function ignore(): void {}
