import type { ClientAnswer, ClientRequest, RequestBody } from '../../http/client.js'
import { isGrpc } from '../../http/grpc.js'
import type { RequestFacts } from '../../http/request.js'
import type { BodyMeasure } from '../../routing/bucket-costs.js'
import { BodyArrival } from './body-arrival.js'
import type { BodyLimits } from './body-limits.js'
import type { OpenBodies } from './open-bodies.js'

const NOTHING: readonly never[] = []

/** Bytes. A longer body is not read to its end to save the connection: the answer says that the connection closes. */
const LONG_BODY = 1024 * 1024

export interface BodyWait {
  readonly client: string
  /** Bytes. A body that is longer is sent as it comes. */
  readonly requestBuffer: number
  readonly limits: BodyLimits
  readonly open: OpenBodies
  /** It is the request's turn, and now it can be sent. Called once. */
  onReady(): void
  /** It has not come in time. */
  onLate(): void
}

/** The body of a request, if it has one: what comes of it before the request is sent, and what is left afterwards. */
export class IncomingBody {
  readonly #req: ClientRequest
  readonly #res: ClientAnswer
  /** Undefined before the head has been read. */
  #facts: RequestFacts | undefined
  #body: RequestBody | null = null
  /** Set if it is buffered before it is sent. */
  #arrival: BodyArrival | undefined
  /** The client has been told to send it. */
  #continued = false

  constructor(req: ClientRequest, res: ClientAnswer) {
    this.#req = req
    this.#res = res
  }

  /** The head has been read. */
  announced(facts: RequestFacts): void {
    this.#facts = facts
  }

  /** Whether there may be one. True before the head has been read. */
  get expected(): boolean {
    const facts = this.#facts
    return facts === undefined || facts.chunked || (facts.contentLength ?? 0) > 0
  }

  /** Whether so much of it is still to come that the connection is not worth keeping. */
  get hasLongRest(): boolean {
    return (this.#facts?.contentLength ?? 0) > LONG_BODY && !this.#req.complete
  }

  /** Somebody reads it, or has read it. */
  get opened(): boolean {
    return this.#body !== null
  }

  /** All of it has come, and somebody reads it. */
  get whole(): boolean {
    return this.#body?.whole === true
  }

  /** It has come as far as it has to before its request is sent. */
  get ready(): boolean {
    return this.#arrival?.ready ?? true
  }

  /** What has come and is not taken yet, of a body that is buffered. */
  get measure(): BodyMeasure {
    const pieces = this.#body?.pieces ?? NOTHING
    let bytes = 0
    for (const piece of pieces) bytes += piece.length
    return { bytes: this.#facts!.contentLength ?? bytes, pieces }
  }

  /**
   * Lets it come before its request is sent, if it is short or may be.
   *
   * @param how `beginning`: of a longer one, too, as much comes as is buffered
   */
  buffer({ client, requestBuffer, limits, open, onReady, onLate }: BodyWait, how: 'short' | 'beginning'): void {
    const { contentLength = 0, chunked } = this.#facts!
    if (!this.expected || this.opened || requestBuffer === 0 || isGrpc(this.#req)) return
    if (how === 'short' && contentLength > requestBuffer) return
    this.continue()
    const body = this.#res.openBody(client)
    this.#body = body
    body.buffer(requestBuffer)
    if (!body.ready) this.#arrival = new BodyArrival({ body, client, sized: !chunked, limits, open, onReady, onLate })
  }

  /** It is the request's turn, and the body is not ready. */
  awaitRest(): void {
    this.#arrival!.awaitRest()
  }

  /** Tells a client that waits for it to send the body. */
  continue(): void {
    if (!this.#facts!.expectContinue || this.#continued || this.#req.httpVersionMinor === 0) return
    this.#continued = true
    this.#res.writeContinue()
  }

  /** Reads on to notice a hang-up, as `RequestBody.readAhead`. */
  readAhead(client: string, done: () => void): void {
    this.#body ??= this.#res.openBody(client)
    this.#body.readAhead(done)
  }

  /** The body for the upstream. Null: there is none. */
  open(client: string): RequestBody | null {
    if (this.expected) this.#body ??= this.#res.openBody(client)
    return this.#body
  }

  /** Lets it be read once more from its beginning. False: it is not there any more. */
  rewind(): boolean {
    if (this.#body === null) return true
    const again = this.#body.again()
    this.#body = again ?? this.#body
    return again !== undefined
  }

  /** Nobody reads it any more. */
  drop(): void {
    this.#body?.destroy()
  }

  /** The request is over. */
  end(): void {
    this.#arrival?.end()
    this.drop()
    this.#body?.forget?.()
  }

  /** Reads what the client still sends after the answer. Unread bytes would hide its next request. */
  linger(): void {
    if (this.expected) this.#res.readRest()
  }
}
