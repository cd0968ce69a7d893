/**
 * One released request on its way to the upstream and its answer on the way back, on undici's dispatch with raw
 * headers: streamed, with backpressure both ways.
 */
import { subscribe } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import { type Dispatcher, errors } from 'undici'
import type { Watched } from './deadline.js'
import { clientHeaders } from './headers.js'
import type { RequestFacts } from './request.js'
import type { Upstream } from './upstream.js'

/** How forwarding ended. After `failed` nothing has been written to the client; after `broken` its socket is gone. */
export type ForwardEnd =
  | { readonly kind: 'answered' }
  | { readonly kind: 'failed'; readonly status: 408 | 502 | 504; readonly detail: string }
  | { readonly kind: 'broken'; readonly detail: string }

export interface ForwardOptions {
  readonly upstream: Upstream
  readonly facts: RequestFacts
  /** Towards the upstream: names and values in turn. */
  readonly headers: string[]
  /** The request's body if it has one. */
  readonly body: PassThrough | null
  readonly req: IncomingMessage
  readonly res: ServerResponse
  /** What is added to the answer's headers: names and values in turn. */
  answerHeaders(): readonly string[]
  /** Called once, unless aborted. */
  ended(end: ForwardEnd): void
}

/** What a body is fed through: undici would end its reader, and with it the client's connection. */
export function createFeed(req: IncomingMessage, highWaterMark: number): PassThrough {
  const feed = new PassThrough({ highWaterMark })
  // An abort destroys it with an error that has been told elsewhere.
  feed.on('error', () => undefined)
  req.pipe(feed)
  return feed
}

const IDEMPOTENT = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'TRACE'])

export class Forwarding implements Dispatcher.DispatchHandler, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  overAt = 0
  /** Whether the connection had served a request before: then its end may be a race and not a failure. */
  reused = false
  readonly #options: ForwardOptions
  #controller: Dispatcher.DispatchController | undefined
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'flushing' | 'over' = 'starting'
  #retried = false

  constructor(options: ForwardOptions) {
    this.#options = options
    const { body, req } = options
    if (body !== null) {
      req.on('data', this.#progress)
      body.once('end', this.#uploaded)
    }
    this.#dispatch()
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

  #dispatch(): void {
    const { upstream, facts, headers, body } = this.#options
    upstream.pool.dispatch(
      { path: facts.target, method: facts.method as Dispatcher.HttpMethod, headers, body, reset: false },
      this,
    )
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#phase === 'over') {
      controller.abort(new errors.RequestAbortedError())
      return
    }
    starting = this
    const { upstream, body } = this.#options
    if (body === null || body.readableEnded) this.#await()
    else {
      this.#phase = 'uploading'
      upstream.progress.watch(this)
    }
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number, headers: object, message?: string): void {
    if (this.#phase === 'over') return
    const { res, req, upstream, facts } = this.#options
    if (status < 200) {
      if (status === 103 && req.httpVersionMinor > 0) passEarlyHints(res, headers)
      return
    }
    const trailers = req.httpVersionMinor > 0
    const answer = clientHeaders(controller.rawHeaders as Buffer[], trailers)
    for (const part of this.#options.answerHeaders()) answer.push(part)
    res.sendDate = false
    res.writeHead(status, message !== undefined && /[^\t\x20-\x7e]/.test(message) ? '' : message, answer)
    this.#phase = 'answering'
    upstream.answer.unwatch(this)
    if (facts.method === 'HEAD' || status === 204 || status === 304) this.#complete()
    else upstream.progress.watch(this)
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    if (this.#phase !== 'answering') return
    const { res, upstream } = this.#options
    upstream.progress.watch(this)
    if (res.write(chunk)) return
    controller.pause()
    res.once('drain', () => {
      if (this.#phase !== 'answering') return
      upstream.progress.watch(this)
      controller.resume()
    })
  }

  onResponseEnd(controller: Dispatcher.DispatchController): void {
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
    if (this.#phase === 'answering') {
      this.#break(`the answer broke off: ${error.message}`)
    } else if (this.#mayRetry(error)) {
      this.#retried = true
      this.#phase = 'starting'
      this.#options.upstream.answer.unwatch(this)
      this.#dispatch()
    } else {
      this.#fail(...explain(error))
    }
  }

  /** The deadline of the phase has passed. */
  overdue(): void {
    const { body } = this.#options
    const controller = this.#controller
    const late = new errors.RequestAbortedError('too late')
    if (this.#phase === 'waiting') this.#fail(504, 'the upstream did not answer in time')
    else if (this.#phase === 'uploading' && body?.writableNeedDrain) this.#fail(504, 'the upstream stopped reading')
    else if (this.#phase === 'uploading') this.#fail(408, 'the request body stopped coming')
    else this.#break('the answer or its reader stopped')
    controller?.abort(late)
  }

  readonly #progress = (): void => {
    if (this.#phase === 'uploading') this.#options.upstream.progress.watch(this)
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
    const { res, upstream, ended } = this.#options
    upstream.answer.unwatch(this)
    // A client that does not take the rest must not hold it for ever.
    upstream.progress.watch(this)
    this.#phase = 'flushing'
    this.#releaseBody()
    res.end()
    ended({ kind: 'answered' })
  }

  #fail(status: 408 | 502 | 504, detail: string): void {
    this.#finish()
    this.#options.ended({ kind: 'failed', status, detail })
  }

  /** The client has part of the answer: only a closed connection tells it that the rest does not come. */
  #break(detail: string): void {
    const answered = this.#phase === 'flushing'
    this.#finish()
    this.#options.res.destroy()
    if (!answered) this.#options.ended({ kind: 'broken', detail })
  }

  #finish(): void {
    this.#phase = 'over'
    const { upstream } = this.#options
    upstream.answer.unwatch(this)
    upstream.progress.unwatch(this)
    this.#releaseBody()
  }

  /** What the client still sends is nobody's any more; it is read on by whoever answers. */
  #releaseBody(): void {
    const { body, req } = this.#options
    if (body === null) return
    req.off('data', this.#progress)
    if (!req.readableEnded) req.unpipe(body)
    if (!body.readableEnded) body.destroy()
  }

  /** RFC 9110 9.2.2: once, where the close of an idle connection may have met our request on its way. */
  #mayRetry(error: Error): boolean {
    const { body, facts } = this.#options
    return this.reused && !this.#retried && body === null && IDEMPOTENT.has(facts.method) && isDisconnect(error)
  }
}

/** The forwarding whose headers undici is about to write; undici writes them before it returns to anyone else. */
let starting: Forwarding | undefined
const served = new WeakSet<Socket>()
subscribe('undici:client:sendHeaders', message => {
  const { socket } = message as { socket: Socket }
  if (starting !== undefined) starting.reused = served.has(socket)
  starting = undefined
  served.add(socket)
})

function isDisconnect(error: Error): boolean {
  const code = (error as NodeJS.ErrnoException).code
  return code === 'UND_ERR_SOCKET' || code === 'ECONNRESET' || code === 'EPIPE'
}

const REASONS: Record<string, readonly [502 | 504, string]> = {
  ECONNREFUSED: [502, 'the upstream refused the connection'],
  ENOTFOUND: [502, "the upstream's name does not resolve"],
  EAI_AGAIN: [502, "the upstream's name does not resolve"],
  ETIMEDOUT: [504, 'the connection to the upstream was not established in time'],
  UND_ERR_CONNECT_TIMEOUT: [504, 'the connection to the upstream was not established in time'],
  UND_ERR_HEADERS_OVERFLOW: [502, "the upstream's headers are too large"],
}

function explain(error: Error): readonly [502 | 504, string] {
  const cause = error instanceof AggregateError ? (error.errors[0] as Error) : error
  const code = (cause as NodeJS.ErrnoException).code ?? ''
  if (REASONS[code] !== undefined) return REASONS[code]
  if (isDisconnect(cause)) return [502, 'the upstream closed the connection before it answered']
  return [502, `the upstream could not be used or its answer not be understood (${code || cause.message})`]
}

function passEarlyHints(res: ServerResponse, headers: object): void {
  const { link } = headers as { link?: string | string[] }
  if (link !== undefined && !res.headersSent) res.writeEarlyHints({ link })
}
