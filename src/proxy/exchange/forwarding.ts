/** Sends one released request to the upstream and streams the answer back, with backpressure both ways. */
import type { AnswerNumbers } from '../../http/figures/answer-numbers.js'
import type { Fields } from '../../http/quota/field-values.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import type { AnswerCopy } from '../coalescing/answer-copy.js'
import type { AnswerHeadLines } from '../coalescing/shareable.js'
import type { Deadlines, Watched } from '../deadlines.js'
import type { ClientAnswer, RequestBody } from '../http/client.js'
import { clientHeaders } from '../http/headers.js'
import { isIdempotent, type RequestFacts } from '../http/request.js'
import type { RequestSender } from '../http1/connection-pool.js'
import { joinedFields } from '../http1/fields.js'
import type { ResponseHead } from '../http1/response-parser.js'
import type { ResponseHandler, SendingConnection } from '../http1/upstream-connection.js'
import type { Upstream } from '../upstream/upstream.js'
import { causeOf, describeError, isDisconnect, isUntaken } from '../upstream/upstream-error.js'

/**
 * How forwarding ended. After `failed` nothing has been written to the client. After `broken` the client's connection ends.
 */
export type ForwardEnd = { readonly kind: 'answered' } | Failure | { readonly kind: 'broken'; readonly detail: string }

export interface Failure {
  readonly kind: 'failed'
  /** 403: the upstream may not be connected to. */
  readonly status: 403 | 408 | 502 | 504
  readonly detail: string
  readonly cause?: Error
  /** Nothing of the request has been sent: there was no connection. Its body is as it was. */
  readonly unconnected?: boolean
  /**
   * The request may be sent once more (RFC 9110 9.2.2). It is idempotent, has no body, and may have met the close of an
   * idle connection.
   */
  readonly repeatable?: boolean
  /** The upstream has not processed it. It may be sent again, whatever its method is, if its body is still there. */
  readonly untaken?: boolean
}

/** The exchange that is being forwarded. */
export interface ForwardOwner {
  /** The client's address as its key `ip`. */
  readonly client: string
  /** The request has waited for a connection, and is on the wire now. */
  connected(): void
  /** The head of an answer has arrived. */
  heard(status: number): void
  /** Headers to add to the answer: names and values in turn. */
  answerHeaders(status: number): readonly string[]
  /**
   * The head of the answer has arrived.
   *
   * @returns undefined if the answer goes to the client. A function if another forwarding will send the request again;
   *   call it when this one is over
   */
  answered(status: number, fields: Fields): (() => void) | undefined
  /** An answer for the client begins. @returns what is to read its body besides. Undefined: nothing is */
  numbersIn(fields: readonly string[]): AnswerNumbers | undefined
  /** An answer for the client begins. @returns what copies it for others. Undefined: no others get it */
  copyOf(head: AnswerHeadLines): AnswerCopy | undefined
  /** Called once, unless the forwarding was aborted or the request will be sent again. */
  forwarded(end: ForwardEnd): void
}

export interface ForwardOptions {
  readonly upstream: Upstream
  readonly facts: RequestFacts
  /** Null: the request has no body. */
  readonly body: RequestBody | null
  readonly res: ClientAnswer
  readonly owner: ForwardOwner
}

/** Most early hints for one request. */
const MAX_HINTS = 16

const NONE: readonly string[] = []

/** What the answer is written to. */
type Receiver = Pick<
  ClientAnswer,
  'earlyHints' | 'start' | 'data' | 'taken' | 'onceDrained' | 'complete' | 'recall' | 'cut'
>

/** Stands for a client that is gone. */
const NOBODY: Receiver = {
  taken: 0,
  earlyHints: () => undefined,
  start: () => undefined,
  data: () => true,
  onceDrained: () => undefined,
  complete: () => undefined,
  recall: () => false,
  cut: () => undefined,
}

export class Forwarding implements ResponseHandler, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly #options: ForwardOptions
  #res: Receiver
  #connection: SendingConnection | undefined
  /** Gives up waiting for a connection. */
  #leave: (() => void) | undefined
  /** The connection had served a request before this one. */
  #reused = false
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'discarding' | 'flushing' | 'over' = 'starting'
  /** Early hints received. */
  #hints = 0
  /** The answer if the client does not get it, and the callback for its end. */
  #unwanted: UnwantedAnswer | undefined
  #onDiscarded: (() => void) | undefined
  /** Reads the body of the answer, behind the client. */
  #numbers: AnswerNumbers | undefined
  /** Copies the answer for others. It is read at the upstream's pace meanwhile. */
  #copy: AnswerCopy | undefined
  /** The client takes less than the upstream sends. */
  #paused = false
  /** Bytes that it had taken when it was waited for last. */
  #taken = 0

  constructor(options: ForwardOptions) {
    this.#options = options
    const { body, res } = options
    this.#res = res
    if (body !== null) {
      body.onProgress = this.#progress
      body.once('end', this.#uploaded)
    }
  }

  /** @param headers for the upstream: names and values in turn */
  start(sender: RequestSender, headers: string[]): void {
    const { facts, body } = this.#options
    const { method, target, contentLength } = facts
    this.#leave = sender.send({ method, target, headers, body, contentLength }, this)
  }

  /** Gives up. The upstream's connection is closed, or the upstream never sees the request. */
  abort(): void {
    if (this.#phase === 'over') return
    this.#finish()
    this.#drop()
  }

  /** The client is gone. The answer is for others, until `abort`. */
  desert(): void {
    this.#res = NOBODY
  }

  flushed(): void {
    if (this.#phase === 'flushing') this.#finish()
  }

  get #isOver(): boolean {
    return this.#phase === 'over'
  }

  /** It waits for a connection. */
  get connecting(): boolean {
    return this.#leave !== undefined
  }

  sending(connection: SendingConnection): void {
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

  sentLate(): void {
    if (this.#phase !== 'over') this.#options.owner.connected()
  }

  interim(status: number, fields: readonly string[]): void {
    const { facts } = this.#options
    if (status !== 103 || facts.oldHttp || this.#hints === MAX_HINTS) return
    this.#hints += 1
    this.#res.earlyHints(clientHeaders(fields, status, 'unchunked'))
  }

  responseStarted({ status, reason, fields, length }: ResponseHead): void {
    const { upstream, facts, owner } = this.#options
    owner.heard(status)
    this.#onDiscarded = upstream.quota && owner.answered(status, joinedFields(fields))
    if (this.#onDiscarded !== undefined) {
      this.#phase = 'discarding'
      upstream.answer.unwatch(this)
      this.#unwanted = new UnwantedAnswer(upstream.clock, { abort: () => this.#stopDiscarding() })
      return
    }
    const bodiless = facts.method === 'HEAD' || status === 204 || status === 304
    const body = bodiless || facts.oldHttp ? 'unchunked' : 'chunkable'
    const answer = clientHeaders(fields, status, body)
    for (const part of owner.answerHeaders(status)) answer.push(part)
    const known = /[^\t\x20-\x7e]/.test(reason) ? '' : reason
    this.#phase = 'answering'
    upstream.answer.unwatch(this)
    const { responseBuffer: ahead } = upstream.settings
    const head = { status, reason: known, fields, length: bodiless ? 0 : length }
    this.#res.start({ status, reason: known, headers: answer, length: head.length, ahead, client: owner.client })
    this.#copy = owner.copyOf(head)
    if (this.#isOver) return
    if (bodiless) {
      this.#copy?.end(NONE)
      this.#complete()
      this.#res.complete(NONE)
    } else {
      this.#numbers = owner.numbersIn(fields)
      upstream.progress.watch(this)
    }
  }

  responseData(buffer: Buffer, from: number, to: number): void {
    this.#unwanted?.read(to - from)
    if (this.#phase !== 'answering') return
    const { upstream } = this.#options
    upstream.progress.watch(this)
    const isTaken = this.#res.data(buffer, from, to)
    this.#numbers?.read(buffer, from, to)
    this.#copy?.read(buffer, from, to)
    if (!isTaken) this.#copy?.leftBehind(this.#options.owner.client)
    // A pause stops the reading, not the rest of what has been read.
    if (isTaken || this.#paused || this.#copy?.isOpen || this.#isOver) return
    this.#paused = true
    this.#taken = this.#res.taken
    this.#connection!.pause(this)
    this.#res.onceDrained(() => {
      this.#paused = false
      if (this.#phase !== 'answering') return
      upstream.progress.watch(this)
      this.#connection!.resume(this)
    })
  }

  responseEnded(trailers: readonly string[]): void {
    if (this.#phase === 'discarding') this.#finish()
    if (this.#phase !== 'answering') return
    this.#copy?.end(trailers)
    this.#complete()
    this.#res.complete(trailers)
  }

  failed(error: Error): void {
    if (this.#phase === 'over' || this.#phase === 'flushing') return
    if (this.#phase === 'discarding') this.#finish()
    else if (this.#phase !== 'answering') this.#fail(...describeError(error), causeOf(error))
    else if (this.#res.recall()) this.#fail(502, `the answer broke off: ${error.message}`)
    else this.#break(`the answer broke off: ${error.message}`, this.#options.upstream.progress)
  }

  /** The deadline of the current phase has passed. */
  expired(): void {
    const { body } = this.#options
    if (this.#clientTakes()) return
    if (this.#phase === 'waiting') this.#fail(504, 'the upstream did not answer in time')
    else if (this.#phase === 'uploading' && body?.held) this.#fail(504, 'the upstream stopped reading')
    else if (this.#phase === 'uploading') this.#fail(408, 'the request body stopped coming')
    else if (this.#paused || this.#phase === 'flushing') this.#break('the client of the answer stopped reading')
    else this.#break('the answer stopped coming', this.#options.upstream.progress)
    this.#drop()
  }

  /** Whether the client is waited for and has taken something since. Then it goes on. */
  #clientTakes(): boolean {
    if (this.#phase !== 'flushing' && !(this.#phase === 'answering' && this.#paused)) return false
    const { upstream } = this.#options
    const { taken } = this.#res
    if (taken === this.#taken) return false
    this.#taken = taken
    upstream.progress.watch(this)
    return true
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
    this.#taken = this.#res.taken
    this.#phase = 'flushing'
    this.#releaseBody()
    owner.forwarded({ kind: 'answered' })
  }

  #fail(status: Failure['status'], detail: string, cause?: Error): void {
    const unconnected = this.#phase === 'starting'
    this.#finish(unconnected)
    const { owner } = this.#options
    const again = cause && { cause, untaken: isUntaken(cause), repeatable: this.#isRepeatable(cause) }
    owner.forwarded({ kind: 'failed', status, detail, unconnected, ...again })
  }

  /**
   * The client has part of the answer. Only the end of its connection tells it that the rest will not come.
   *
   * @param flush how long it may take for what has come; undefined: it does not read
   */
  #break(detail: string, flush?: Deadlines): void {
    const answered = this.#phase === 'flushing'
    const { owner } = this.#options
    this.#finish()
    if (!answered) owner.forwarded({ kind: 'broken', detail })
    this.#res.cut(flush)
  }

  /** @param keepsBody somebody else may send the body */
  #finish(keepsBody = false): void {
    this.#phase = 'over'
    const { upstream } = this.#options
    upstream.answer.unwatch(this)
    upstream.progress.unwatch(this)
    this.#unwanted?.ended()
    if (!keepsBody) this.#releaseBody()
    this.#onDiscarded?.()
    this.#onDiscarded = undefined
  }

  /** Stops reading the body here. The code that answers the client reads the rest. */
  #releaseBody(): void {
    const { body } = this.#options
    if (body !== null && !body.readableEnded) body.destroy()
  }

  #isRepeatable(error: Error): boolean {
    const { body, facts } = this.#options
    return this.#reused && body === null && isIdempotent(facts.method) && isDisconnect(error)
  }
}
