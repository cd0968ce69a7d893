import type { AnswerNumbers } from '../../http/figures/answer-numbers.js'
import type { Fields } from '../../http/quota/field-values.js'
import { UnwantedAnswer } from '../../http/unwanted-answer.js'
import { type Deadlines, Watched } from '../deadlines.js'
import type { AnswerCopy } from '../features/shared-answer.js'
import type { ClientAnswer, RequestBody } from '../http/client.js'
import { joinedFields } from '../http/fields.js'
import { clientHeaders } from '../http/headers.js'
import { isIdempotent, type RequestFacts } from '../http/request.js'
import type { ResponseHandler, SendingConnection } from '../upstream/http1-connection.js'
import type { RequestSender } from '../upstream/http1-pool.js'
import type { ResponseHead } from '../upstream/response-parser.js'
import type { Upstream } from '../upstream/upstream.js'
import { causeOf, describeError, type Failure, isDisconnect, isUntaken } from '../upstream/upstream-error.js'

/** How forwarding ended. After `failed` nothing has been written to the client. After `broken` the client's connection ends. */
export type ForwardEnd = { readonly kind: 'answered' } | Failure | { readonly kind: 'broken'; readonly detail: string }

interface ForwardOwner {
  /** The request has waited for a connection, and is on the wire now. */
  connected(): void
  heard(status: number): void
  /** Headers to add to the answer: names and values in turn. */
  answerHeaders(status: number): readonly string[]
  /** Whether its answer goes to the client (undefined), or it is sent again: a function to call when this one is over. */
  answered(status: number, fields: Fields): (() => void) | undefined
  /** An answer for the client begins. @returns what is to read its body besides. Undefined: nothing is */
  numbersIn(fields: readonly string[]): AnswerNumbers | undefined
  /** An answer for the client begins. @returns what copies it for others. Undefined: no others get it */
  copyOf(head: ResponseHead): AnswerCopy | undefined
  /** Called once, unless the forwarding was aborted or the request will be sent again. */
  forwarded(end: ForwardEnd): void
}

interface ForwardOptions {
  readonly upstream: Upstream
  readonly facts: RequestFacts
  /** The client's address as its key `ip`. */
  readonly client: string
  readonly body: RequestBody | null
  readonly res: ClientAnswer
  readonly owner: ForwardOwner
}

const MAX_HINTS = 16
const NONE: readonly string[] = []
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

export class Forwarding extends Watched implements ResponseHandler {
  readonly #options: ForwardOptions
  #res: Receiver
  #connection: SendingConnection | undefined
  #leave: (() => void) | undefined
  #reused = false
  #phase: 'starting' | 'uploading' | 'waiting' | 'answering' | 'discarding' | 'flushing' | 'over' = 'starting'
  #hints = 0
  /** The answer if the client does not get it, and the callback for its end. */
  #unwanted: UnwantedAnswer | undefined
  #onDiscarded: (() => void) | undefined
  #numbers: AnswerNumbers | undefined
  /** Copies the answer for others. It is read at the upstream's pace meanwhile. */
  #copy: AnswerCopy | undefined
  #paused = false
  #taken = 0

  constructor(options: ForwardOptions) {
    super()
    this.#options = options
    const { body, res } = options
    this.#res = res
    if (body !== null) {
      body.onProgress = this.#progress
      body.once('end', this.#uploaded)
    }
  }

  start(sender: RequestSender, headers: string[]): void {
    const { facts, body, upstream } = this.#options
    // Another server may have to get it, too.
    if (upstream.servers.length > 1 && isIdempotent(facts.method)) body?.keep?.()
    const { method, target, contentLength } = facts
    this.#leave = sender.send({ method, target, headers, body, contentLength }, this)
  }

  abort(): void {
    if (this.#phase === 'over') return
    this.#finish()
    this.#drop()
  }

  desert(): void {
    this.#res = NOBODY
  }

  /** Its server is down. Another one may answer it, if this one has not begun to. */
  forsake(): void {
    const { facts, upstream } = this.#options
    const isUnanswered = this.#phase === 'uploading' || this.#phase === 'waiting'
    if (upstream.servers.length === 1) return
    if (this.#phase !== 'starting' && !(isUnanswered && isIdempotent(facts.method))) return
    this.#drop()
    this.#fail(502, 'the upstream server is down')
  }

  flushed(): void {
    if (this.#phase === 'flushing') this.#finish()
  }

  get #isOver(): boolean {
    return this.#phase === 'over'
  }

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
    const { upstream, facts, client, owner } = this.#options
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
    this.#res.start({ status, reason: known, headers: answer, length: head.length, ahead, client })
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
    if (!isTaken) this.#copy?.leftBehind(this.#options.client)
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

  #stopDiscarding(): void {
    this.#drop()
    if (this.#phase === 'discarding') this.#finish()
  }

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
    const repeatable = unconnected || status === 408 ? undefined : this.#howRepeatable(cause)
    const again = { ...(cause && { cause, untaken: isUntaken(cause) }), repeatable }
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

  #howRepeatable(cause: Error | undefined): Failure['repeatable'] {
    const { body, facts, upstream } = this.#options
    if (!isIdempotent(facts.method)) return undefined
    if (this.#reused && body === null && cause !== undefined && isDisconnect(cause)) return 'idle'
    return upstream.servers.length > 1 ? 'elsewhere' : undefined
  }
}
