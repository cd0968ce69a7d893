/**
 * Sends one released request to the upstream and streams the answer back, with backpressure both ways. It uses undici's
 * dispatch with raw headers.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { PassThrough } from 'node:stream'
import { type Dispatcher, errors } from 'undici'
import { type Fields, fieldsOf } from '../../http/quota/field-values.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { Watched } from '../deadlines.js'
import { MAX_HINTS, passEarlyHints } from '../http/early-hints.js'
import { clientHeaders } from '../http/headers.js'
import { writeWhole } from '../http/reply.js'
import { isIdempotent, type RequestFacts } from '../http/request.js'
import { announce, type Reusing } from '../upstream/connection-reuse.js'
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
  readonly res: ServerResponse
  readonly owner: ForwardOwner
}

/** Bytes. A body up to this size is copied and sent together with its head. */
const SMALL = 16 * 1024

export class Forwarding implements Dispatcher.DispatchHandler, Watched, Reusing {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  reused = false
  readonly #options: ForwardOptions
  #controller: Dispatcher.DispatchController | undefined
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'discarding' | 'flushing' | 'over' = 'starting'
  /** Early hints received. */
  #hints = 0
  /** The answer if the client does not get it, and the callback for its end. */
  #unwanted: UnwantedAnswer | undefined
  #onDiscarded: (() => void) | undefined
  /** The length of a body that is small enough to be copied and sent together with its head. */
  #smallLength: number | undefined
  /** Part of the body has arrived. */
  #begun = false

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
    const method = facts.method as Dispatcher.HttpMethod
    // Without `servername` undici would open a separate connection for each Host.
    const dispatched = { path: facts.target, method, headers, body, reset: false, servername: upstream.authority }
    const pool = gated ? upstream.pool : upstream.ungatedPool
    pool.dispatch(dispatched, this)
  }

  /** Gives up. The upstream's connection is closed, or the upstream never sees the request. */
  abort(): void {
    if (this.#phase === 'over') return
    this.#finish()
    this.#controller?.abort(new errors.RequestAbortedError())
  }

  flushed(): void {
    if (this.#phase === 'flushing') this.#finish()
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#phase === 'over') {
      controller.abort(new errors.RequestAbortedError())
      return
    }
    announce(this)
    const { upstream, body } = this.#options
    if (body === null || body.readableEnded) this.#await()
    else {
      this.#phase = 'uploading'
      upstream.progress.watch(this)
    }
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number, headers: object, message?: string): void {
    if (this.#phase === 'over') return
    const { res, req, upstream, facts, owner } = this.#options
    if (status < 200) {
      if (status !== 103 || req.httpVersionMinor === 0 || this.#hints === MAX_HINTS) return
      this.#hints += 1
      passEarlyHints(req, controller.rawHeaders as Buffer[])
      return
    }
    const { 'transfer-encoding': coding, 'content-length': length } = headers as Record<string, string | undefined>
    if (coding !== undefined && String(coding).toLowerCase() !== 'chunked') {
      this.#fail(502, `the upstream uses an unknown transfer coding (${coding})`)
      controller.abort(new errors.RequestAbortedError())
      return
    }
    this.#onDiscarded = upstream.quota && owner.answered(status, fieldsOf(headers))
    if (this.#onDiscarded !== undefined) {
      this.#phase = 'discarding'
      upstream.answer.unwatch(this)
      this.#unwanted = new UnwantedAnswer(upstream.clock, controller)
      return
    }
    const bodiless = facts.method === 'HEAD' || status === 204 || status === 304
    const body = bodiless || req.httpVersionMinor === 0 ? 'unchunked' : 'chunkable'
    const answer = clientHeaders(controller.rawHeaders as Buffer[], body)
    for (const part of owner.answerHeaders(status)) answer.push(part)
    res.sendDate = false
    res.writeHead(status, message !== undefined && /[^\t\x20-\x7e]/.test(message) ? '' : message, answer)
    this.#phase = 'answering'
    if (Number(length) <= SMALL) this.#smallLength = Number(length)
    upstream.answer.unwatch(this)
    if (bodiless) this.#complete()
    else {
      upstream.progress.watch(this)
      if (this.#smallLength === undefined) process.nextTick(Forwarding.#sendHead, this)
    }
  }

  /** Sends the head at once if the body takes its time, as with server-sent events. */
  static #sendHead(forwarding: Forwarding): void {
    if (forwarding.#phase === 'answering' && !forwarding.#begun) forwarding.#options.res.write('', 'latin1')
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#unwanted?.read(chunk.length)
    if (this.#phase !== 'answering') return
    const { res, upstream } = this.#options
    upstream.progress.watch(this)
    this.#begun = true
    const taken = chunk.length === this.#smallLength ? writeWhole(res, chunk.toString('latin1')) : res.write(chunk)
    if (taken) return
    controller.pause()
    res.once('drain', () => {
      if (this.#phase !== 'answering') return
      upstream.progress.watch(this)
      controller.resume()
    })
  }

  onResponseEnd(controller: Dispatcher.DispatchController): void {
    if (this.#phase === 'discarding') this.#finish()
    if (this.#phase !== 'answering') return
    const { res } = this.#options
    const raw = (controller.rawTrailers ?? []) as Buffer[]
    if (raw.length > 0 && res.chunkedEncoding) {
      const trailers: [string, string][] = []
      for (let at = 0; at < raw.length; at += 2)
        trailers.push([raw[at]!.toString('latin1'), raw[at + 1]!.toString('latin1')])
      res.addTrailers(trailers)
    }
    this.#complete()
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    if (this.#phase === 'over' || this.#phase === 'flushing') return
    if (this.#phase === 'discarding') this.#finish()
    else if (this.#phase === 'answering') {
      this.#break(`the answer broke off: ${error.message}`)
    } else {
      this.#fail(...describeError(error), error)
    }
  }

  /** The deadline of the current phase has passed. */
  expired(): void {
    const { body } = this.#options
    const controller = this.#controller
    const late = new errors.RequestAbortedError('too late')
    if (this.#phase === 'waiting') this.#fail(504, 'the upstream did not answer in time')
    else if (this.#phase === 'uploading' && body?.writableNeedDrain) this.#fail(504, 'the upstream stopped reading')
    else if (this.#phase === 'uploading') this.#fail(408, 'the request body stopped coming')
    else this.#break('the answer stopped coming, or its client stopped reading')
    controller?.abort(late)
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
    const { res, upstream, owner } = this.#options
    upstream.answer.unwatch(this)
    // A client that stops reading must not hold the connection for ever.
    upstream.progress.watch(this)
    this.#phase = 'flushing'
    this.#releaseBody()
    res.end()
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
    return this.reused && body === null && isIdempotent(facts.method) && isDisconnect(error)
  }
}

function reset(socket: Socket): void {
  // Only plain TCP can send a reset. In TLS the missing close_notify tells a cut from an end.
  if (!('encrypted' in socket)) socket.resetAndDestroy()
}
