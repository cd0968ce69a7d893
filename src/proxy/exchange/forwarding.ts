/** Sends one released request to the upstream and streams the answer back, with backpressure both ways. */
import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import type { PassThrough } from 'node:stream'
import type { Fields } from '../../http/quota/field-values.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { Watched } from '../deadlines.js'
import type { ClientAnswer } from '../http/client-answer.js'
import { MAX_HINTS, passEarlyHints } from '../http/early-hints.js'
import { clientHeaders } from '../http/headers.js'
import { isIdempotent, type RequestFacts } from '../http/request.js'
import { joinedFields } from '../http1/fields.js'
import type { ResponseHead } from '../http1/response-parser.js'
import type { ResponseHandler, UpstreamConnection } from '../http1/upstream-connection.js'
import type { Upstream } from '../upstream/upstream.js'
import { describeError, isDisconnect } from '../upstream/upstream-error.js'

/**
 * How forwarding ended. After `failed` nothing has been written to the client. After `broken` the client's socket is
 * destroyed.
 */
export type ForwardEnd = { readonly kind: 'answered' } | Failure | { readonly kind: 'broken'; readonly detail: string }

export interface Failure {
  readonly kind: 'failed'
  readonly status: 408 | 502 | 504
  readonly detail: string
  readonly cause?: Error
  /**
   * The request may be sent once more (RFC 9110 9.2.2). It is idempotent, has no body, and may have met the close of an
   * idle connection.
   */
  readonly repeatable?: boolean
}

/** The exchange that is being forwarded. */
export interface ForwardOwner {
  /** Headers to add to the answer: names and values in turn. */
  answerHeaders(status: number): readonly string[]
  /**
   * The head of the answer has arrived.
   *
   * @returns undefined if the answer goes to the client. A function if another forwarding will send the request again;
   *   call it when this one is over
   */
  answered(status: number, fields: Fields): (() => void) | undefined
  /** Called once, unless the forwarding was aborted or the request will be sent again. */
  forwarded(end: ForwardEnd): void
}

export interface ForwardOptions {
  readonly upstream: Upstream
  /** Whether the request has a place in the upstream's gate. */
  readonly gated: boolean
  readonly facts: RequestFacts
  /** Headers for the upstream: names and values in turn. */
  readonly headers: string[]
  /** Null: the request has no body. */
  readonly body: PassThrough | null
  readonly req: IncomingMessage
  readonly res: ClientAnswer
  readonly owner: ForwardOwner
}

/** The head of an answer that has not been sent yet. */
interface UnsentHead {
  readonly status: number
  readonly reason: string
  /** Names and values in turn. */
  readonly headers: string[]
  /** Bytes of the body. */
  readonly length: number
}

/** Bytes. A body up to this size is copied and sent together with its head. */
const SMALL = 16 * 1024

export class Forwarding implements ResponseHandler, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly #options: ForwardOptions
  #connection: UpstreamConnection | undefined
  /** Gives up waiting for a connection. */
  #leave: (() => void) | undefined
  /** The connection had served a request before this one. */
  #reused = false
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'discarding' | 'flushing' | 'over' = 'starting'
  /** Early hints received. */
  #hints = 0
  /** The body of a small answer. One byte for each character. */
  #body = ''
  /** The answer if the client does not get it, and the callback for its end. */
  #unwanted: UnwantedAnswer | undefined
  #onDiscarded: (() => void) | undefined
  /** The head of a small answer. It is sent with its body if that follows at once. */
  #unsent: UnsentHead | undefined
  /** Part of the body has arrived. */
  #begun = false
  /** The client takes less than the upstream sends. */
  #paused = false

  constructor(options: ForwardOptions) {
    this.#options = options
    const { body, req } = options
    if (body !== null) {
      req.on('data', this.#progress)
      // The client does not send again what was read ahead, but the upstream still takes it.
      body.on('drain', this.#progress)
      body.once('end', this.#uploaded)
    }
    const { upstream, facts, headers, gated } = options
    const { method, target, contentLength } = facts
    const pool = gated ? upstream.pool : upstream.ungatedPool
    this.#leave = pool.send({ method, target, headers, body, contentLength }, this)
  }

  /** Gives up. The upstream's connection is closed, or the upstream never sees the request. */
  abort(): void {
    if (this.#phase === 'over') return
    this.#finish()
    this.#drop()
  }

  flushed(): void {
    if (this.#phase === 'flushing') this.#finish()
  }

  sending(connection: UpstreamConnection): void {
    this.#leave = undefined
    this.#connection = connection
    this.#reused = connection.reused
    const { upstream, body } = this.#options
    if (body === null || body.readableEnded) this.#await()
    else {
      this.#phase = 'uploading'
      upstream.progress.watch(this)
    }
  }

  interim(status: number, fields: readonly string[]): void {
    const { req } = this.#options
    if (status !== 103 || req.httpVersionMinor === 0 || this.#hints === MAX_HINTS) return
    this.#hints += 1
    passEarlyHints(req, fields)
  }

  responseStarted({ status, reason, fields, length }: ResponseHead): void {
    const { res, req, upstream, facts, owner } = this.#options
    this.#onDiscarded = upstream.quota && owner.answered(status, joinedFields(fields))
    if (this.#onDiscarded !== undefined) {
      this.#phase = 'discarding'
      upstream.answer.unwatch(this)
      this.#unwanted = new UnwantedAnswer(upstream.clock, { abort: () => this.#stopDiscarding() })
      return
    }
    const bodiless = facts.method === 'HEAD' || status === 204 || status === 304
    const body = bodiless || req.httpVersionMinor === 0 ? 'unchunked' : 'chunkable'
    const answer = clientHeaders(fields, body)
    for (const part of owner.answerHeaders(status)) answer.push(part)
    res.sendDate = false
    const head = { status, reason: /[^\t\x20-\x7e]/.test(reason) ? '' : reason, headers: answer }
    this.#phase = 'answering'
    res.statusCode = status
    upstream.answer.unwatch(this)
    if (bodiless) {
      res.writeHead(status, head.reason, answer)
      this.#complete()
      res.end()
      return
    }
    upstream.progress.watch(this)
    if (length !== undefined && length <= SMALL) this.#unsent = { ...head, length }
    else res.writeHead(status, head.reason, answer)
    process.nextTick(Forwarding.#headAlone, this)
  }

  /** The head came without its body. A small body often follows at once, and then one write carries both. */
  static #headAlone(forwarding: Forwarding): void {
    if (forwarding.#begun) return
    if (forwarding.#unsent === undefined) Forwarding.#sendHead(forwarding)
    else setImmediate(Forwarding.#sendHead, forwarding)
  }

  /** Sends the head if the body takes its time, as with server-sent events. */
  static #sendHead(forwarding: Forwarding): void {
    if (forwarding.#phase !== 'answering' || forwarding.#begun) return
    forwarding.#writeHead()
    forwarding.#options.res.write('', 'latin1')
  }

  #writeHead(): void {
    if (this.#unsent === undefined) return
    const { status, reason, headers } = this.#unsent
    this.#unsent = undefined
    this.#options.res.writeHead(status, reason, headers)
  }

  responseData(buffer: Buffer, from: number, to: number): void {
    this.#unwanted?.read(to - from)
    if (this.#phase !== 'answering') return
    const { res, upstream } = this.#options
    upstream.progress.watch(this)
    this.#begun = true
    if (this.#unsent !== undefined && to - from === this.#unsent.length) {
      this.#body = buffer.toString('latin1', from, to)
      return
    }
    this.#writeHead()
    // A pause stops the reading, not the rest of what has been read.
    if (res.write(Buffer.from(buffer.subarray(from, to))) || this.#paused) return
    this.#paused = true
    this.#connection!.pause(this)
    res.once('drain', () => {
      this.#paused = false
      if (this.#phase !== 'answering') return
      upstream.progress.watch(this)
      this.#connection!.resume(this)
    })
  }

  responseEnded(trailers: readonly string[]): void {
    if (this.#phase === 'discarding') this.#finish()
    if (this.#phase !== 'answering') return
    const { res } = this.#options
    if (trailers.length > 0 && res.chunkedEncoding) {
      const pairs: [string, string][] = []
      for (let at = 0; at < trailers.length; at += 2) pairs.push([trailers[at]!, trailers[at + 1]!])
      res.addTrailers(pairs)
    }
    const whole = this.#unsent
    this.#complete()
    if (whole === undefined) res.end()
    else res.sendWhole({ ...whole, body: this.#body })
  }

  failed(error: Error): void {
    if (this.#phase === 'over' || this.#phase === 'flushing') return
    if (this.#phase === 'discarding') this.#finish()
    else if (this.#phase !== 'answering') this.#fail(...describeError(error), error)
    else if (this.#unsent === undefined) this.#break(`the answer broke off: ${error.message}`)
    else {
      this.#options.res.sendDate = true
      this.#fail(502, `the answer broke off: ${error.message}`)
    }
  }

  /** The deadline of the current phase has passed. */
  expired(): void {
    const { body } = this.#options
    if (this.#phase === 'waiting') this.#fail(504, 'the upstream did not answer in time')
    else if (this.#phase === 'uploading' && body?.writableNeedDrain) this.#fail(504, 'the upstream stopped reading')
    else if (this.#phase === 'uploading') this.#fail(408, 'the request body stopped coming')
    else this.#break('the answer stopped coming, or its client stopped reading')
    this.#drop()
  }

  /** Drops the rest of an unwanted answer. */
  #stopDiscarding(): void {
    this.#drop()
    if (this.#phase === 'discarding') this.#finish()
  }

  /** Gives up the request towards the upstream, wherever it is. */
  #drop(): void {
    this.#leave?.()
    this.#connection?.abort(this)
  }

  readonly #progress = (): void => {
    const moving = this.#phase === 'uploading' || this.#phase === 'answering'
    if (moving) this.#options.upstream.progress.watch(this)
  }

  readonly #uploaded = (): void => {
    if (this.#phase === 'uploading') this.#await()
  }

  #await(): void {
    this.#phase = 'waiting'
    this.#options.upstream.progress.unwatch(this)
    this.#options.upstream.answer.watch(this)
  }

  #complete(): void {
    const { upstream, owner } = this.#options
    upstream.answer.unwatch(this)
    // A client that stops reading must not hold the connection for ever.
    upstream.progress.watch(this)
    this.#phase = 'flushing'
    this.#releaseBody()
    owner.forwarded({ kind: 'answered' })
  }

  #fail(status: 408 | 502 | 504, detail: string, cause?: Error): void {
    this.#finish()
    const repeatable = cause !== undefined && this.#isRepeatable(cause)
    this.#options.owner.forwarded({ kind: 'failed', status, detail, repeatable, ...(cause !== undefined && { cause }) })
  }

  /** The client has part of the answer. Only a closed connection tells it that the rest will not come. */
  #break(detail: string): void {
    const answered = this.#phase === 'flushing'
    const { req, res, owner } = this.#options
    this.#finish()
    // For a client of HTTP/1.0 a FIN would look like the end of the body.
    if (req.httpVersionMinor === 0) reset(req.socket)
    res.destroy()
    if (!answered) owner.forwarded({ kind: 'broken', detail })
  }

  #finish(): void {
    this.#phase = 'over'
    const { upstream } = this.#options
    upstream.answer.unwatch(this)
    upstream.progress.unwatch(this)
    this.#unwanted?.ended()
    this.#releaseBody()
    this.#onDiscarded?.()
    this.#onDiscarded = undefined
  }

  /** Stops reading the body here. The code that answers the client reads the rest. */
  #releaseBody(): void {
    const { body, req } = this.#options
    if (body === null) return
    req.off('data', this.#progress)
    if (!req.readableEnded) req.unpipe(body)
    if (!body.readableEnded) body.destroy()
  }

  #isRepeatable(error: Error): boolean {
    const { body, facts } = this.#options
    return this.#reused && body === null && isIdempotent(facts.method) && isDisconnect(error)
  }
}

function reset(socket: Socket): void {
  // Only plain TCP can send a reset. In TLS the missing close_notify tells a cut from an end.
  if (!('encrypted' in socket)) socket.resetAndDestroy()
}
