/**
 * One released request on its way to the upstream and its answer on the way back, on undici's dispatch with raw
 * headers: streamed, with backpressure both ways.
 */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { PassThrough } from 'node:stream'
import { type Dispatcher, errors } from 'undici'
import { type Fields, fieldsOf } from '../../http/quota/field-values.js'
import type { Watched } from '../deadlines.js'
import { MAX_HINTS, passEarlyHints } from '../http/early-hints.js'
import { clientHeaders } from '../http/headers.js'
import { writeWhole } from '../http/reply.js'
import { isIdempotent, type RequestFacts } from '../http/request.js'
import { announce, type Reusing } from '../upstream/connection-reuse.js'
import type { Upstream } from '../upstream/upstream.js'
import { describeError, isDisconnect } from '../upstream/upstream-error.js'

/** How forwarding ended. After `failed` nothing has been written to the client; after `broken` its socket is gone. */
export type ForwardEnd = { readonly kind: 'answered' } | Failure | { readonly kind: 'broken'; readonly detail: string }

export interface Failure {
  readonly kind: 'failed'
  readonly status: 408 | 502 | 504
  readonly detail: string
  readonly cause?: Error
  /**
   * The request may be sent once more (RFC 9110 9.2.2): it is idempotent and has no body, and the close of an idle
   * connection may have met it on its way.
   */
  readonly repeatable?: boolean
}

/** Whose request it is. */
export interface ForwardOwner {
  /** What is added to the answer's headers: names and values in turn. */
  answerHeaders(status: number): readonly string[]
  /**
   * The head of the answer has come. A function: it is not handed on, the request will be sent anew by another forwarding;
   * to be called when this one is over.
   */
  answered(status: number, fields: Fields): (() => void) | undefined
  /** Called once, unless aborted or sent anew. */
  forwarded(end: ForwardEnd): void
}

export interface ForwardOptions {
  readonly upstream: Upstream
  /** It has a place in the upstream's gate. */
  readonly gated: boolean
  readonly facts: RequestFacts
  /** Towards the upstream: names and values in turn. */
  readonly headers: string[]
  /** The request's body if it has one. */
  readonly body: PassThrough | null
  readonly req: IncomingMessage
  readonly res: ServerResponse
  readonly owner: ForwardOwner
}

/** Bytes. */
const SMALL = 16 * 1024

/** What is read, in bytes, of an answer that nobody wants, so that its connection can be used again. */
const DUMP_LIMIT = 64 * 1024

export class Forwarding implements Dispatcher.DispatchHandler, Watched, Reusing {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  reused = false
  readonly #options: ForwardOptions
  #controller: Dispatcher.DispatchController | undefined
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'dumping' | 'flushing' | 'over' = 'starting'
  /** How many early hints have come. */
  #hints = 0
  /** What is left to read of an answer that nobody wants, in bytes, and whom to tell when it is over. */
  #dumpable = DUMP_LIMIT
  #onDumped: (() => void) | undefined
  /** The length of a body that is small enough to be copied, to leave with its head. */
  #smallLength: number | undefined
  /** Something of the body has come. */
  #begun = false

  constructor(options: ForwardOptions) {
    this.#options = options
    const { body, req } = options
    if (body !== null) {
      req.on('data', this.#progress)
      // Of what was read ahead the client does not send anything more, but the upstream takes it.
      body.on('drain', this.#progress)
      body.once('end', this.#uploaded)
    }
    const { upstream, facts, headers, gated } = options
    const method = facts.method as Dispatcher.HttpMethod
    // Without `servername` undici would open a connection of its own for each Host.
    const dispatched = { path: facts.target, method, headers, body, reset: false, servername: upstream.authority }
    const pool = gated ? upstream.pool : upstream.besides
    pool.dispatch(dispatched, this)
  }

  /** Gives up: the upstream's connection is closed, or never sees the request. */
  abort(): void {
    if (this.#phase === 'over') return
    this.#finish()
    this.#controller?.abort(new errors.RequestAbortedError())
  }

  /** Everything has been written to the client. */
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
      this.#fail(502, `the upstream's transfer coding is not known (${coding})`)
      controller.abort(new errors.RequestAbortedError())
      return
    }
    this.#onDumped = upstream.quota && owner.answered(status, fieldsOf(headers))
    if (this.#onDumped !== undefined) {
      this.#phase = 'dumping'
      upstream.answer.unwatch(this)
      upstream.dump.watch(this)
      return
    }
    const bodiless = facts.method === 'HEAD' || status === 204 || status === 304
    const answer = clientHeaders(controller.rawHeaders as Buffer[], !bodiless && req.httpVersionMinor > 0)
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

  /** Else it would wait for the body, which may take its time: events, for example. */
  static #sendHead(forwarding: Forwarding): void {
    if (forwarding.#phase === 'answering' && !forwarding.#begun) forwarding.#options.res.write('', 'latin1')
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#phase === 'dumping') {
      this.#dumpable -= chunk.length
      if (this.#dumpable < 0) controller.abort(new errors.RequestAbortedError())
    }
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
    if (this.#phase === 'dumping') this.#finish()
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
    if (this.#phase === 'dumping') this.#finish()
    else if (this.#phase === 'answering') {
      this.#break(`the answer broke off: ${error.message}`)
    } else {
      this.#fail(...describeError(error), error)
    }
  }

  /** The deadline of the phase has passed. */
  expired(): void {
    const { body } = this.#options
    const controller = this.#controller
    const late = new errors.RequestAbortedError('too late')
    if (this.#phase === 'waiting') this.#fail(504, 'the upstream did not answer in time')
    else if (this.#phase === 'uploading' && body?.writableNeedDrain) this.#fail(504, 'the upstream stopped reading')
    else if (this.#phase === 'uploading') this.#fail(408, 'the request body stopped coming')
    else if (this.#phase === 'dumping') this.#finish()
    else this.#break('the answer or its reader stopped')
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
    // A client that does not take the rest must not hold it for ever.
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

  /** The client has part of the answer: only a closed connection tells it that the rest does not come. */
  #break(detail: string): void {
    const answered = this.#phase === 'flushing'
    const { req, res, owner } = this.#options
    this.#finish()
    // To a client of HTTP/1.0 a FIN could be the end of the body.
    if (req.httpVersionMinor === 0) reset(req.socket)
    res.destroy()
    if (!answered) owner.forwarded({ kind: 'broken', detail })
  }

  #finish(): void {
    this.#phase = 'over'
    const { upstream } = this.#options
    upstream.answer.unwatch(this)
    upstream.progress.unwatch(this)
    upstream.dump.unwatch(this)
    this.#releaseBody()
    this.#onDumped?.()
    this.#onDumped = undefined
  }

  /** What the client still sends is nobody's any more; it is read on by whoever answers. */
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
  // Only plain TCP can; TLS tells a cut from an end by its own close.
  if (!('encrypted' in socket)) socket.resetAndDestroy()
}
