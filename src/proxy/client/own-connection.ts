/**
 * A client's connection that we read ourselves.
 *
 * It takes one request at a time. What comes behind a request waits here unparsed, and from `MOST_WAITING` bytes on in the
 * kernel: then the client feels it. It always reads on as long as little waits, because only a read notices a hang-up.
 *
 * It is `open`, a `stream` (its socket belongs to a tunnel), or `ending` (what comes is read and dropped).
 */
import type { Socket } from 'node:net'
import type { Deadlines, Watched } from '../deadlines.js'
import { createExchange } from '../exchange/create-exchange.js'
import { UpgradeExchange } from '../exchange/upgrade-exchange.js'
import type { PeerAddress } from '../http/client-address.js'
import { BODY_BUFFER, type ByteBudget, HeldBytes } from '../http/connection/byte-budget.js'
import type { ClientConnection, OpenConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import type { LeastRate } from '../http/connection/least-rate.js'
import { watchOver } from '../http/connection/linger.js'
import { malformed } from '../http/reply.js'
import { joinedFields, ProtocolError } from '../http1/fields.js'
import { type RequestHead, RequestParser, type RequestSink } from '../http1/request-parser.js'
import type { ClientTimeouts } from './client-timeouts.js'
import type { ConnectionHome } from './connection-home.js'
import { Http2Connection } from './http2-connection.js'
import { KeptBytes } from './kept-bytes.js'
import { type AnsweredConnection, OwnAnswer } from './own-answer.js'
import { type BodySource, OwnBody } from './own-body.js'
import { RefusedConnection } from './refused-connection.js'
import { shareInput } from './shared-input.js'

/** Bytes behind a request that are kept until it is answered. */
const MOST_WAITING = 64 * 1024

/** What a client of HTTP/2 sends first (RFC 9113 3.4). HTTP/1.1 knows no such method. */
const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')

export class OwnConnection
  implements ClientConnection, OpenConnection, AnsweredConnection, RequestSink, BodySource, Watched
{
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly socket: Socket
  readonly peer: string
  readonly peerKey: string
  readonly encrypted: boolean
  excess = false
  full = false
  isAhead = false
  current: PipelinedRequest | undefined
  readonly #home: ConnectionHome
  readonly #parser: RequestParser
  #mode: 'open' | 'stream' | 'ending' = 'open'
  /** The request that is being read or waits for its answer. */
  #request: RequestHead | undefined
  #answer: OwnAnswer | undefined
  #body: OwnBody | undefined
  /** Its head has come. It starts when all that came with it has been parsed. */
  #starting: PipelinedRequest | undefined
  /** Bytes of the body that came before somebody wanted it. */
  #early: KeptBytes | undefined
  /** Bytes that came behind the request. */
  #behind: KeptBytes | undefined
  /** What `#early` and `#behind` hold. */
  #held: HeldBytes | undefined
  /** The bytes that are being parsed, if they are our own and not those of the shared input. */
  #own: Buffer | undefined
  #paused = false
  /** How many bytes of the preface of HTTP/2 have come, and nothing else. -1: it speaks HTTP/1.1. */
  #preface = 0
  /** The rest of the body is dropped. */
  #isDiscarding = false
  /** Something has come since the last request. */
  #touched = false
  /** Its deadline is that of a head. */
  #awaitsHead = false
  /** Since when it has no request, in ms. */
  #idleSince: number
  /** The deadlines that watch it. */
  #deadlines: Deadlines | undefined
  #readChunk: ((chunk: Buffer) => void) | undefined
  #unwatchTotal: (() => void) | undefined

  constructor(home: ConnectionHome, accepted: Socket, { peer, peerKey }: PeerAddress) {
    this.#home = home
    this.encrypted = 'encrypted' in accepted
    this.socket = this.encrypted ? accepted : shareInput(accepted, this)
    if (this.encrypted) {
      // The handshake has said which protocol it speaks. TLS brings chunks of its own.
      this.#preface = -1
      this.#readChunk = chunk => void this.read(chunk, chunk.length)
      this.socket.on('data', this.#readChunk)
    }
    this.peer = peer
    this.peerKey = peerKey
    this.#parser = new RequestParser(this, home.headLimits, home.context.egress === undefined ? 'refused' : 'taken')
    this.socket.on('error', ignore).on('end', this.#ended).on('close', this.#closed)
    this.#idleSince = home.lastCalls.now()
    this.#watch(this.timeouts.opening)
  }

  get timeouts(): ClientTimeouts {
    return this.#home.timeouts
  }

  get budget(): ByteBudget {
    return this.#home.context.bodyBytes
  }

  get leastRate(): LeastRate | undefined {
    return this.#home.context.bodyLimits.leastRate
  }

  get unread(): boolean {
    return this.#paused
  }

  get alone(): boolean {
    return this.#behind === undefined
  }

  /** Nothing is going on. */
  get idle(): boolean {
    const isBusy = this.#request !== undefined || this.#behind !== undefined || this.#preface > 0
    return this.#mode === 'open' && !isBusy && this.#parser.isBetween
  }

  get requests(): readonly PipelinedRequest[] {
    return this.current === undefined ? [] : [this.current]
  }

  /** From its first byte on the head of a request has a deadline. */
  #watchHead(): void {
    if (this.#awaitsHead) return
    if (this.#home.context.draining) this.#callLast()
    else this.#watch(this.timeouts.headers)
    this.#awaitsHead = true
  }

  /** The server drains. The next request is waited for, for a short time in all. */
  #callLast(): void {
    const { lastCalls } = this.#home
    lastCalls.begin(this)
    if (this.#deadlines !== lastCalls.deadlines) this.#watch(lastCalls.deadlines)
  }

  #watch(deadlines: Deadlines | undefined): void {
    this.#awaitsHead = false
    if (this.#deadlines !== deadlines) this.#deadlines?.unwatch(this)
    this.#deadlines = deadlines
    deadlines?.watch(this)
  }

  /** @returns false if the stream of a tunnel takes no more */
  read(buffer: Buffer, end: number): boolean {
    if (this.#mode === 'open' && this.#preface >= 0) this.#readFirst(buffer, end)
    else if (this.#mode === 'open') this.#take(buffer, end)
    // Over TLS the stream has it already.
    else if (this.#mode === 'stream') return this.encrypted || this.socket.push(Buffer.from(buffer.subarray(0, end)))
    else this.#watch(this.#deadlines)
    return true
  }

  /** Reads on until it is known which protocol the client speaks. */
  #readFirst(buffer: Buffer, end: number): void {
    const seen = this.#preface
    const count = Math.min(PREFACE.length - seen, end)
    const bytes =
      seen === 0 ? buffer.subarray(0, end) : Buffer.concat([PREFACE.subarray(0, seen), buffer.subarray(0, end)])
    if (PREFACE.compare(buffer, 0, count, seen, seen + count) !== 0) {
      this.#preface = -1
      return this.#take(bytes, bytes.length)
    }
    this.#preface += count
    if (this.#preface === PREFACE.length) return this.#speakHttp2(Buffer.from(bytes))
    this.#touched = true
    this.#watchHead()
  }

  /** @param bytes all that has come */
  #speakHttp2(bytes: Buffer): void {
    this.#mode = 'ending'
    this.#watch(undefined)
    this.socket.off('error', ignore).off('end', this.#ended).off('close', this.#closed)
    this.socket.unshift(bytes)
    this.#home.replaced(this, new Http2Connection(this.#home, this.socket, this))
    this.#home.lastCalls.end(this)
  }

  #take(buffer: Buffer, end: number): void {
    const isBusy = this.#behind !== undefined || this.#request?.complete === true
    if (!isBusy) this.#parseFirst(buffer, end)
    else if (!this.full) this.#keepBehind(Buffer.from(buffer.subarray(0, end)))
  }

  #parseFirst(buffer: Buffer, end: number): void {
    this.isAhead = false
    this.#parse(buffer, end)
    if (this.#request !== undefined || this.#mode !== 'open') this.#home.lastCalls.end(this)
  }

  /** Parses up to the end of one request. What follows it waits. */
  #parse(buffer: Buffer, end: number): void {
    this.#touched = true
    if (this.#isDiscarding) this.#watch(this.#deadlines)
    let at = end
    try {
      at = this.#parser.read(buffer, 0, end)
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error
      this.#refuse(error.status, detailOf(error))
      return this.#start()
    }
    this.#start()
    if (this.#mode === 'stream') return this.#startUpgrade(Buffer.from(buffer.subarray(at, end)))
    if (this.#mode === 'ending') return
    if (at < end && !this.full) {
      const rest = buffer.subarray(at, end)
      this.#keepBehind(buffer === this.#own ? rest : Buffer.from(rest))
      if (this.#request === undefined) this.#goOnSoon()
    } else if (this.#request === undefined && this.#touched) this.#watchHead()
  }

  #keepBehind(bytes: Buffer): void {
    this.#behind ??= new KeptBytes()
    this.#behind.add(bytes)
    this.#keep(bytes.length)
    if (this.#behind.length >= MOST_WAITING || this.#held?.hasRoom === false) this.#pause()
  }

  /** Yields to other connections first, so that a client that sends ahead without end gets only its share. */
  #goOnSoon(): void {
    this.#home.context.inProgress += 1
    setImmediate(() => this.#goOn())
  }

  #goOn(): void {
    this.#parseBehind()
    const { context } = this.#home
    context.inProgress -= 1
    if (context.inProgress === 0) context.idle()
  }

  #parseBehind(): void {
    const behind = this.#behind
    if (this.#mode !== 'open' || behind === undefined || this.#request !== undefined) return
    const bytes = behind.joined()
    this.#behind = undefined
    this.#keep(-bytes.length)
    this.#own = bytes
    this.isAhead = true
    this.#parse(bytes, bytes.length)
    this.#own = undefined
    if (this.#behind === undefined) this.#resume()
  }

  head(head: RequestHead): void {
    this.#watch(undefined)
    this.#request = head
    if (head.method === 'CONNECT' || isWebSocket(head)) {
      this.#mode = 'stream'
      this.#parser.stop()
      return
    }
    this.#answer = new OwnAnswer(this, head)
    const exchange = createExchange(this.#home.context, this, head, this.#answer)
    this.current = exchange
    // A body, or the part of it, that has come with its head counts in the decision.
    if (head.framing.length === 0) exchange.start()
    else this.#starting = exchange
  }

  #start(): void {
    const starting = this.#starting
    this.#starting = undefined
    starting?.start()
  }

  body(buffer: Buffer, from: number, to: number): void {
    if (this.#isDiscarding || this.#body?.destroyed) return
    const bytes = Buffer.from(buffer.subarray(from, to))
    if (this.#body !== undefined) return this.#body.receive(bytes)
    this.#early ??= new KeptBytes()
    this.#early.add(bytes)
    this.#keep(bytes.length)
    if (this.#early.length >= BODY_BUFFER || this.#held?.hasRoom === false) this.#pause()
  }

  end(): void {
    const request = this.#request!
    request.complete = true
    if (this.#body?.destroyed === false) this.#body.finish()
    // Nothing more of the body can pile up, and only a read notices a hang-up.
    this.#resume()
    if (this.current === undefined && this.#request !== undefined) this.#requestOver()
  }

  openBody(client: string): OwnBody {
    const { budget } = this
    const isSized = this.#request!.framing.length !== undefined
    const leastRate = isSized && !this.#request!.complete ? this.leastRate : undefined
    const body = new OwnBody(this, { budget, client, leastRate })
    this.#body = body
    const early = this.#takeEarly()
    if (early !== undefined) body.receive(early.joined())
    if (this.#request!.complete) body.finish()
    else if (!body.ready) this.resumeBody()
    return body
  }

  bodyTooSlow(): void {
    this.#refuse(408, 'the request body came too slowly')
  }

  pauseBody(): void {
    if (this.#request?.complete === false) this.#pause()
  }

  resumeBody(): void {
    if (this.#behind === undefined) this.#resume()
  }

  /** From now on nobody wants the rest of the body. */
  discardBody(): void {
    if (this.#request === undefined || this.#request.complete || this.#isDiscarding) return
    this.#isDiscarding = true
    this.#takeEarly()
    this.#lingerOn()
    this.#resume()
  }

  #takeEarly(): KeptBytes | undefined {
    const early = this.#early
    if (early === undefined) return undefined
    this.#early = undefined
    this.#keep(-early.length)
    return early
  }

  #startUpgrade(rest: Buffer): void {
    const { socket } = this
    if (this.#readChunk !== undefined) socket.off('data', this.#readChunk)
    const res = new OwnAnswer(this, this.#request!)
    res.isLast = true
    this.#answer = res
    const exchange = new UpgradeExchange(this.#home.context, this, { req: this.#request!, res, head: rest })
    this.current = exchange
    exchange.start()
  }

  #refuse(status: number, detail: string): void {
    this.#parser.stop()
    this.last()
    if (this.#request === undefined) {
      this.#watch(undefined)
      const refusal = new RefusedConnection(this.#home.context, this, this.#parser.line, { status, detail })
      this.current = refusal
      refusal.start()
    } else if (this.current === undefined) this.socket.destroy()
    else this.current.onMalformed({ status, detail, close: true })
  }

  last(): void {
    this.full = true
    const behind = this.#behind
    if (behind === undefined) return
    this.#behind = undefined
    this.#keep(-behind.length)
  }

  done(): void {
    const answer = this.#answer
    this.current = undefined
    this.#answer = undefined
    if (answer?.isLast || this.full) this.#close()
    else if (this.#request!.complete) this.#requestOver()
    else this.discardBody()
  }

  /** The request has come and is answered. */
  #requestOver(): void {
    this.#request = undefined
    this.#body = undefined
    this.#takeEarly()
    this.#isDiscarding = false
    this.#touched = false
    this.#lingerNoMore()
    if (this.full) return this.#close()
    if (this.#behind !== undefined) return this.#goOnSoon()
    this.#idleSince = this.#home.lastCalls.now()
    // It ends by itself only if its client did not know yet when it got its answer.
    if (this.#home.context.draining) this.#callLast()
    else this.#watch(this.timeouts.idle)
    this.#resume()
  }

  /** The last answer has been sent. */
  #close(): void {
    const { socket } = this
    // Closing with unread bytes could cost the client this answer.
    const nothingUnread = !this.#paused && this.#behind === undefined && this.#request?.complete !== false
    if (this.#mode === 'open' && nothingUnread) {
      this.#mode = 'ending'
      socket.destroySoon()
    } else this.endConnection()
  }

  endConnection(): void {
    this.#mode = 'ending'
    this.#parser.stop()
    this.#lingerOn()
    if (!this.encrypted) this.socket.on('data', ignore)
    this.socket.end()
    this.socket.resume()
  }

  /** Bounds the time for which the client is read after its answer. */
  #lingerOn(): void {
    const { silence, total } = this.#home.context.linger
    this.#watch(silence)
    this.#unwatchTotal ??= watchOver(this.socket, total)
  }

  #lingerNoMore(): void {
    if (this.#unwatchTotal === undefined) return
    this.#unwatchTotal()
    this.#unwatchTotal = undefined
    this.#watch(undefined)
  }

  expired(): void {
    const isLate = this.#awaitsHead && this.#touched
    this.#deadlines = undefined
    if (isLate && this.#mode === 'open') this.#refuse(408, 'the request headers did not come in time')
    else this.socket.destroy()
    this.#home.lastCalls.end(this)
  }

  leave(): void {
    if (this.#mode !== 'open' || this.#request !== undefined || this.#behind !== undefined) return
    if (this.idle && !this.#home.lastCalls.isRecent(this.#idleSince)) return this.socket.destroySoon()
    const awaitsHead = this.#awaitsHead
    this.#callLast()
    this.#awaitsHead = awaitsHead
  }

  endUnused(): void {
    if (this.current === undefined) this.socket.destroySoon()
  }

  hangUp(): void {
    this.#gone()
    this.socket.destroy()
  }

  #gone(): void {
    const { current } = this
    this.current = undefined
    this.last()
    current?.abandon()
  }

  /** A FIN is a hang-up, as with nginx. An answer that is complete is still sent. */
  readonly #ended = (): void => {
    if (this.#mode !== 'open') return
    // What waits behind the request could not be answered.
    this.last()
    if (this.current === undefined || this.#answer?.isComplete) this.socket.end()
    else this.hangUp()
  }

  readonly #closed = (): void => {
    this.#mode = 'ending'
    this.#watch(undefined)
    this.#unwatchTotal?.()
    this.#answer?.closed()
    this.#takeEarly()
    this.#gone()
    this.#home.lastCalls.end(this)
    this.#home.closed(this)
  }

  #pause(): void {
    if (this.#paused) return
    this.#paused = true
    this.socket.pause()
  }

  #resume(): void {
    if (!this.#paused) return
    this.#paused = false
    this.socket.resume()
  }

  #keep(bytes: number): void {
    if (bytes === 0) return
    this.#held ??= new HeldBytes(this.budget, this.peerKey)
    this.#held.hold(this.#held.held + bytes)
  }
}

/** What a client is told. */
function detailOf({ status, message }: ProtocolError): string {
  return status === 400 ? malformed(message) : message
}

/** Only WebSockets are tunnelled. We could not limit the requests inside an h2c tunnel. */
function isWebSocket({ method, framing, httpVersionMinor, rawHeaders }: RequestHead): boolean {
  if (!framing.upgrade || method !== 'GET' || httpVersionMinor === 0 || framing.length !== 0) return false
  return joinedFields(rawHeaders)('upgrade')?.toLowerCase() === 'websocket'
}

function ignore(): void {}
