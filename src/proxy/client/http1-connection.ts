/**
 * A client's connection that we read ourselves.
 *
 * It takes one request at a time. What comes behind a request waits here unparsed, and from `MOST_WAITING` bytes on in the
 * kernel: then the client feels it. It always reads on as long as little waits, because only a read notices a hang-up.
 *
 * It is `open`, a `stream` (its socket belongs to a tunnel), or `ending` (what comes is read and dropped).
 */

import { STATUS_CODES } from 'node:http'
import { Socket } from 'node:net'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { ProxyContext } from '../context.js'
import { type Deadlines, Watched } from '../deadlines.js'
import { createExchange, Exchange } from '../exchange/exchange.js'
import { type ByteBudget, HeldBytes } from '../http/byte-budget.js'
import type { ClientConnection, OpenConnection, PipelinedRequest, Reply } from '../http/client.js'
import type { PeerAddress } from '../http/client-address.js'
import { joinedFields, ProtocolError } from '../http/fields.js'
import { type LeastRate, watchOver } from '../http/pace.js'
import { malformed } from '../http/reply.js'
import type { RequestRecord } from '../observe/observer.js'
import { BODY_BUFFER, type BodySource, ClientBody } from './body.js'
import type { ClientTimeouts, ConnectionHome } from './home.js'
import { type AnsweredConnection, Http1Answer } from './http1-answer.js'
import { Http2Connection } from './http2-connection.js'
import { KeptBytes } from './kept-bytes.js'
import { type RequestHead, RequestParser, type RequestSink } from './request-parser.js'

/** Bytes behind a request that are kept until it is answered. */
const MOST_WAITING = 64 * 1024
/** What a client of HTTP/2 sends first (RFC 9113 3.4). HTTP/1.1 knows no such method. */
const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n')

export class Http1Connection
  extends Watched
  implements ClientConnection, OpenConnection, AnsweredConnection, RequestSink, BodySource
{
  readonly socket: Socket
  readonly peer: string
  readonly peerKey: string
  readonly certificate: string | undefined
  readonly encrypted: boolean
  excess = false
  full = false
  isAhead = false
  current: PipelinedRequest | undefined
  readonly #home: ConnectionHome
  readonly #parser: RequestParser
  /** Of TLS, and of a stream that is no socket of the kernel. All others read into one buffer. */
  readonly #bringsChunks: boolean
  #mode: 'open' | 'stream' | 'ending' = 'open'
  #request: RequestHead | undefined
  #answer: Http1Answer | undefined
  #body: ClientBody | undefined
  #starting: PipelinedRequest | undefined
  /** Bytes of the body that came before somebody wanted it. */
  #early: KeptBytes | undefined
  #behind: KeptBytes | undefined
  #held: HeldBytes | undefined
  #own: Buffer | undefined
  #paused = false
  /** How many bytes of the preface of HTTP/2 have come, and nothing else. -1: it speaks HTTP/1.1. */
  #preface = 0
  /** Bytes that came behind a request since the process ends. */
  #late = 0
  #isDiscarding = false
  #touched = false
  #awaitsHead = false
  /** Since when it has no request, in ms. */
  #idleSince: number
  #deadlines: Deadlines | undefined
  #readChunk: ((chunk: Buffer) => void) | undefined
  #unwatchTotal: (() => void) | undefined

  constructor(home: ConnectionHome, accepted: Socket, { peer, peerKey, certificate }: PeerAddress) {
    super()
    this.#home = home
    this.encrypted = 'encrypted' in accepted
    this.#bringsChunks = this.encrypted || !isOfKernel(accepted)
    // What came with a PROXY header.
    const early = !this.#bringsChunks && accepted.readableLength > 0 ? (accepted.read() as Buffer) : undefined
    this.socket = this.#bringsChunks ? accepted : shareInput(accepted, this)
    if (early !== undefined) process.nextTick(() => this.read(early, early.length))
    // The handshake has said which protocol it speaks.
    if (this.encrypted) this.#preface = -1
    if (this.#bringsChunks) {
      this.#readChunk = chunk => void this.read(chunk, chunk.length)
      this.socket.on('data', this.#readChunk)
    }
    this.peer = peer
    this.peerKey = peerKey
    this.certificate = certificate
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

  get idle(): boolean {
    const isBusy = this.#request !== undefined || this.#behind !== undefined || this.#preface > 0
    return this.#mode === 'open' && !isBusy && this.#parser.isBetween
  }

  get requests(): readonly PipelinedRequest[] {
    return this.current === undefined ? [] : [this.current]
  }

  #watchHead(): void {
    if (this.#awaitsHead) return
    if (this.#home.context.draining) this.#callLast()
    else this.#watch(this.timeouts.headers)
    this.#awaitsHead = true
  }

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

  read(buffer: Buffer, end: number): boolean {
    if (this.#mode === 'open' && this.#preface >= 0) this.#readFirst(buffer, end)
    else if (this.#mode === 'open') this.#take(buffer, end)
    // A stream that brings chunks has it already.
    else if (this.#mode === 'stream')
      return this.#bringsChunks || this.socket.push(Buffer.from(buffer.subarray(0, end)))
    else this.#watch(this.#deadlines)
    return true
  }

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
    if (isBusy) {
      if (!this.full) this.#keepBehind(Buffer.from(buffer.subarray(0, end)))
      if (this.#home.context.draining) this.#late += end
      return
    }
    this.isAhead = false
    this.#parse(buffer, end)
    if (this.#request !== undefined || this.#mode !== 'open') this.#home.lastCalls.end(this)
  }

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
    setImmediate(() => {
      this.#parseBehind()
      const { context } = this.#home
      context.inProgress -= 1
      if (context.inProgress === 0) context.idle()
    })
  }

  #parseBehind(): void {
    const behind = this.#behind
    if (this.#mode !== 'open' || behind === undefined || this.#request !== undefined) return
    const bytes = behind.joined()
    this.#behind = undefined
    this.#keep(-bytes.length)
    this.#own = bytes
    this.isAhead = true
    // A client that never stops would keep the process for ever.
    if (this.#late > 2 * MOST_WAITING) this.last()
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
    this.#answer = new Http1Answer(this, head)
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

  openBody(client: string): ClientBody {
    const { budget } = this
    const isSized = this.#request!.framing.length !== undefined
    const leastRate = isSized && !this.#request!.complete ? this.leastRate : undefined
    const body = new ClientBody(this, { budget, client, leastRate })
    this.#body = body
    const early = this.#takeEarly()
    if (early !== undefined) body.receive(early.joined())
    if (this.#request!.complete) body.finish()
    else if (!body.ready) this.resumeBody()
    return body
  }

  bodyGoesTo(body: ClientBody): void {
    this.#body = body
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
    const res = new Http1Answer(this, this.#request!)
    res.isLast = true
    this.#answer = res
    const exchange = new Exchange(this.#home.context, this, this.#request!, res)
    exchange.upgrade(rest)
    this.current = exchange
    exchange.start()
  }

  #refuse(status: number, detail: string): void {
    this.#parser.stop()
    this.last()
    if (this.#request === undefined) {
      this.#watch(undefined)
      this.current = REFUSED
      refuseConnection(this.#home.context, this, this.#parser.line, { status, detail })
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
    if (!this.#bringsChunks) this.socket.on('data', ignore)
    this.socket.end()
    this.socket.resume()
  }

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
    const { lastCalls } = this.#home
    const isLate = this.#awaitsHead && this.#touched
    const isLastCall = this.#deadlines === lastCalls.deadlines
    this.#deadlines = undefined
    if (isLate && this.#mode === 'open') this.#refuse(408, 'the request headers did not come in time')
    // What came while this process stood still is read first.
    else if (isLastCall)
      return void setImmediate(() => this.idle && this.#deadlines === undefined && this.socket.destroy())
    else this.socket.destroy()
    lastCalls.end(this)
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
    current?.end('hang-up')
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

function detailOf({ status, message }: ProtocolError): string {
  return status === 400 ? malformed(message) : message
}

/** Only WebSockets are tunnelled. We could not limit the requests inside an h2c tunnel. */
function isWebSocket({ method, framing, httpVersionMinor, rawHeaders }: RequestHead): boolean {
  if (!framing.upgrade || method !== 'GET' || httpVersionMinor === 0 || framing.length !== 0) return false
  return joinedFields(rawHeaders)('upgrade')?.toLowerCase() === 'websocket'
}

function ignore(): void {}

/** All plain connections of clients read into it. What a read brings is used up or copied before the next one. */
const INPUT = Buffer.allocUnsafeSlow(64 * 1024)

/** Node does not declare this field. It is the same in Node 20, 22 and 24. */
function isOfKernel(socket: Socket): boolean {
  return (socket as { _handle?: object | null })._handle != null
}

/**
 * Reads an accepted socket into a buffer that all sockets share. Node offers that for sockets that connect, and not for
 * those that a server accepts. So the connection moves to a new socket.
 *
 * @param accepted what was read of it has been taken
 * @returns the socket to use from now on. It emits no `data` until the reader gives bytes back with `push`
 */
function shareInput(accepted: Socket, reader: Pick<Http1Connection, 'read'>): Socket {
  // Node does not declare this field. It is the same in Node 20, 22 and 24.
  const from = accepted as unknown as { _handle: object | null }
  const handle = from._handle
  from._handle = null
  accepted.destroy()
  const callback = (end: number): boolean => reader.read(INPUT, end)
  const options = { handle, allowHalfOpen: true, readable: true, writable: true, onread: { buffer: INPUT, callback } }
  const socket = new Socket(options as ConstructorParameters<typeof Socket>[0])
  socket.read(0)
  return socket
}

/** Stands for a request that cannot be read, and has been answered. */
const REFUSED: PipelinedRequest = {
  inFlight: false,
  start: () => undefined,
  end: () => undefined,
  onMalformed: () => undefined,
}

/** Ends a connection whose bytes are no valid request. The problem document is its last answer. @param line its begin */
function refuseConnection({ observer }: ProxyContext, connection: ClientConnection, line: string, reply: Reply): void {
  const { socket } = connection
  const { status, detail } = reply
  if (!socket.writable) return
  const [, method = '', target = ''] = LINE.exec(line) ?? []
  observer.finished?.({ ...UNREADABLE, method, target, failure: { detail } }, 'refused', status)
  const title = STATUS_CODES[status]!
  const body = JSON.stringify({ type: 'about:blank', title, status, detail })
  socket.write(
    `HTTP/1.1 ${status} ${title}\r\nContent-Type: application/problem+json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  )
  connection.endConnection()
}

/** A method and a target, or what stands in their place. */
const LINE = /^([^ \r\n]+)(?: +([^ \r\n]+))?/

const UNREADABLE: RequestRecord = {
  route: '',
  method: '',
  target: '',
  stack: [],
  keys: [],
  cost: 0,
  costs: undefined,
  settled: undefined,
  isSettling: false,
  priority: DEFAULT_PRIORITY,
  wait: 0,
  predictedWait: undefined,
  upstreamTime: undefined,
  retries: 0,
  inFlight: false,
  givenUp: undefined,
  rejection: undefined,
  failure: undefined,
  onTrial: false,
  coalesced: false,
  header: () => undefined,
}
