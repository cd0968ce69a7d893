/**
 * One attempt: a stored request as a client of the proxy's own. It has no socket. Its exchange passes the buckets, waits and is
 * forwarded as any other, and its answer is kept.
 */
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import type { ProxyContext } from '../proxy/context.js'
import { Exchange } from '../proxy/exchange/exchange.js'
import type {
  AnswerHead,
  AnswerOwner,
  ClientAnswer,
  ClientConnection,
  ClientRequest,
  RequestBody,
  StoredRequest,
  WholeAnswer,
} from '../proxy/http/client.js'
import type { Outcome } from '../proxy/observe/observer.js'

/** A request without its body, as it is stored. */
export interface StoredHead {
  readonly method: string
  readonly target: string
  /** Names and values in turn. */
  readonly headers: readonly string[]
  /** Who sent it, as its keys and `X-Forwarded-For` say. */
  readonly peer: string
  readonly peerKey: string
  readonly certificate?: string | undefined
  readonly encrypted: boolean
  readonly claims: readonly (readonly [string, string])[]
}

/** How an attempt ended. */
export interface AttemptEnd {
  readonly outcome: Outcome
  readonly fate: 'tried' | 'untried'
  /** The upstream's answer, if all of it came. */
  readonly answer: { readonly status: number; readonly headers: readonly string[]; readonly body: Buffer } | undefined
  /** What the proxy said in its place: a problem document. */
  readonly problem: string | undefined
}

export interface AttemptOptions {
  readonly context: ProxyContext
  readonly route: string
  readonly head: StoredHead
  readonly body: Buffer
  /** Whether it may still be sent. Asked at its release. */
  mayLeave(): boolean
  sent(): void
  /** Called once, not during `begin`. */
  ended(end: AttemptEnd): void
}

/** Bytes of an answer that are kept. */
const KEPT = 65_536

export class Attempt implements ClientConnection, ClientAnswer, StoredRequest {
  readonly peer: string
  readonly peerKey: string
  readonly certificate: string | undefined
  readonly encrypted: boolean
  readonly route: string
  readonly claims: ReadonlyMap<string, string>
  readonly excess = false
  readonly unread = false
  readonly alone = false
  readonly full = false
  readonly isAhead = false
  readonly taken = 0
  statusCode = 0
  headersSent = false
  owner: AnswerOwner | undefined
  readonly socket = undefined as unknown as Socket
  readonly #options: AttemptOptions
  readonly #exchange: Exchange
  #outcome: Outcome = 'cancelled'
  #fate: AttemptEnd['fate'] = 'untried'
  #headers: readonly string[] = []
  #pieces: Buffer[] = []
  #kept = 0
  #isWhole = false
  #problem: string | undefined
  #isOver = false

  constructor(options: AttemptOptions) {
    const { context, head, route } = options
    this.#options = options
    this.peer = head.peer
    this.peerKey = head.peerKey
    this.certificate = head.certificate
    this.encrypted = head.encrypted
    this.route = route
    this.claims = new Map(head.claims)
    const request: ClientRequest = {
      method: head.method,
      url: head.target,
      httpVersionMinor: 1,
      rawHeaders: head.headers,
      complete: true,
      stored: this,
    }
    this.#exchange = new Exchange(context, this, request, this)
  }

  begin(): void {
    this.#exchange.start()
  }

  /** Takes it back, or breaks it off. */
  abort(): void {
    if (this.#isOver) return
    this.#exchange.end('hang-up')
    this.#end()
  }

  mayLeave(): boolean {
    if (this.#options.mayLeave()) return true
    this.hangUp()
    return false
  }

  sent(): void {
    this.#options.sent()
  }

  ended(outcome: Outcome, fate: AttemptEnd['fate']): void {
    this.#outcome = outcome
    this.#fate = fate
  }

  #end(): void {
    if (this.#isOver) return
    this.#isOver = true
    const answer = this.#isWhole
      ? { status: this.statusCode, headers: this.#headers, body: Buffer.concat(this.#pieces) }
      : undefined
    const end = { outcome: this.#outcome, fate: this.#fate, answer, problem: this.#problem }
    queueMicrotask(() => this.#options.ended(end))
  }

  /** The exchange has given all that it has to say. */
  #answered(): void {
    queueMicrotask(() => {
      if (this.#isOver) return
      this.owner!.answerSent()
      this.#end()
    })
  }

  openBody(): RequestBody {
    return new StoredBody(this.#options.body)
  }

  sendWhole({ status, body }: WholeAnswer): void {
    this.statusCode = status
    this.headersSent = true
    this.#problem = Buffer.from(body, 'latin1').toString()
    this.#answered()
  }

  start({ status, headers }: AnswerHead): void {
    this.statusCode = status
    this.headersSent = true
    this.#headers = headers
  }

  data(buffer: Buffer, from: number, to: number): boolean {
    const piece = Buffer.from(buffer.subarray(from, Math.min(to, from + KEPT - this.#kept)))
    this.#kept += piece.length
    if (piece.length > 0) this.#pieces.push(piece)
    return true
  }

  cut(): void {
    this.hangUp()
  }

  hangUp(): void {
    queueMicrotask(() => this.abort())
  }

  complete(): void {
    this.#isWhole = true
    this.#answered()
  }

  recall(): boolean {
    this.headersSent = false
    this.#pieces = []
    this.#kept = 0
    return true
  }

  writeContinue(): void {}
  earlyHints(): void {}
  limitFlush(): void {}
  onceDrained(): void {}
  readRest(): void {}
  last(): void {}
  done(): void {}
  endConnection(): void {}
}

/** A body that is there as a whole, and may be sent again. */
class StoredBody extends Readable implements RequestBody {
  readonly held = true
  readonly whole = true
  readonly ready = true
  onProgress: () => void = () => {}
  onReady: () => void = () => {}
  readonly pieces: readonly Uint8Array[]
  readonly #bytes: Buffer

  constructor(bytes: Buffer) {
    super()
    this.#bytes = bytes
    this.pieces = [bytes]
    // An abort destroys it with an error that is reported elsewhere.
    this.on('error', () => {})
  }

  override _read(): void {
    this.push(this.#bytes)
    this.push(null)
  }

  buffer(): void {}

  readAhead(done: () => void): void {
    setImmediate(done)
  }

  again(): RequestBody {
    return new StoredBody(this.#bytes)
  }
}
