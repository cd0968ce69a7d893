import { Watched } from '../deadlines.js'
import type { ClientAnswer, ClientRequest, RequestBody } from '../http/client.js'
import type { BodyLimits } from '../http/pace.js'
import { isGrpc } from '../http/reply.js'
import type { RequestFacts } from '../http/request.js'
import type { BodyMeasure } from '../routing/bucket-costs.js'

const NOTHING: readonly never[] = []
/** Bytes. A longer body is not read to its end to save the connection: the answer says that the connection closes. */
const LONG_BODY = 1024 * 1024

interface BodyWait {
  readonly client: string
  /** Bytes. A body that is longer is sent as it comes. */
  readonly requestBuffer: number
  readonly limits: BodyLimits
  readonly open: OpenBodies
  /** It is the request's turn, and now it can be sent. Called once. */
  onReady(): void
  onLate(): void
}

/** The body of a request, if it has one: what comes of it before the request is sent, and what is left afterwards. */
export class IncomingBody {
  readonly #req: ClientRequest
  readonly #res: ClientAnswer
  #facts: RequestFacts | undefined
  #body: RequestBody | null = null
  #arrival: BodyArrival | undefined
  #continued = false

  constructor(req: ClientRequest, res: ClientAnswer) {
    this.#req = req
    this.#res = res
  }

  announced(facts: RequestFacts): void {
    this.#facts = facts
  }

  /** Whether there may be one. True before the head has been read. */
  get expected(): boolean {
    const facts = this.#facts
    return facts === undefined || facts.chunked || (facts.contentLength ?? 0) > 0
  }

  get hasLongRest(): boolean {
    return (this.#facts?.contentLength ?? 0) > LONG_BODY && !this.#req.complete
  }

  get opened(): boolean {
    return this.#body !== null
  }

  get whole(): boolean {
    return this.#body?.whole === true
  }

  get ready(): boolean {
    return this.#arrival?.ready ?? true
  }

  /** What has come and is not taken yet, of a body that is buffered. */
  get measure(): BodyMeasure {
    const pieces = this.#body?.pieces ?? NOTHING
    let bytes = 0
    for (const piece of pieces) bytes += piece.length
    return { bytes: this.#facts!.contentLength ?? bytes, pieces, whole: this.whole }
  }

  /**
   * Lets it come before its request is sent, if it is or may be short. `beginning`: as much of a longer one, too, as is buffered.
   * `whole`: nothing is sent before all has come.
   */
  buffer(wait: BodyWait, how: 'short' | 'beginning' | 'whole'): void {
    const { client, requestBuffer } = wait
    const { contentLength = 0, chunked } = this.#facts!
    if (!this.expected || this.opened || requestBuffer === 0 || isGrpc(this.#req)) return
    if (how === 'short' && contentLength > requestBuffer) return
    this.continue()
    const body = this.#res.openBody(client)
    this.#body = body
    body.buffer(requestBuffer)
    if (!body.ready) this.#arrival = new BodyArrival(body, chunked && how !== 'whole' ? 'unsized' : 'sized', wait)
  }

  awaitRest(): void {
    this.#arrival!.awaitRest()
  }

  /** Tells a client that waits for it to send the body. */
  continue(): void {
    if (!this.#facts!.expectContinue || this.#continued || this.#req.httpVersionMinor === 0) return
    this.#continued = true
    this.#res.writeContinue()
  }

  readAhead(client: string, done: () => void): void {
    this.#body ??= this.#res.openBody(client)
    this.#body.readAhead(done)
  }

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

  drop(): void {
    this.#body?.destroy()
  }

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

/**
 * How much of a body has to come before its request is sent (contract 8.2).
 *
 * A short body has to be there as a whole, so that a slow client does not occupy the upstream. A body of unknown length, too,
 * unless it is longer than the buffer, or has not ended some time after the turn of its request: it may be one that waits for
 * the answer. Then it is sent as it comes, but only one such of each client at a time.
 */
class BodyArrival extends Watched {
  readonly #body: RequestBody
  readonly #isSized: boolean
  readonly #wait: BodyWait
  readonly #unended: Watched
  #state: 'coming' | 'late' | 'ready' = 'coming'
  /** It is sent as it comes: no other of its client is. */
  #open: 'no' | 'waiting' | 'open' = 'no'

  constructor(body: RequestBody, length: 'sized' | 'unsized', wait: BodyWait) {
    super()
    this.#body = body
    this.#isSized = length === 'sized'
    this.#wait = wait
    body.onReady = () => this.#isReady()
    const expired = (): void => this.#sendOpen()
    this.#unended = { list: undefined, previous: undefined, next: undefined, dueAt: 0, expired }
  }

  get ready(): boolean {
    return this.#state === 'ready' || this.#body.ready
  }

  /** It is the request's turn, and it is not ready. */
  awaitRest(): void {
    if (this.#state !== 'coming') return
    const { limits } = this.#wait
    this.#state = 'late'
    limits.whole.watch(this)
    if (!this.#isSized) limits.unended.watch(this.#unended)
  }

  end(): void {
    this.#unwatch()
    this.#leave()
    this.#state = 'ready'
  }

  expired(): void {
    if (this.#state === 'late') this.#wait.onLate()
  }

  /** As much of it has come as has to, or all of one that is sent as it comes. */
  #isReady(): void {
    if (this.#state === 'late') {
      this.#state = 'ready'
      this.#unwatch()
      this.#leave()
      this.#wait.onReady()
    } else if (this.#body.whole) this.#leave()
  }

  #sendOpen(): void {
    const { client, open } = this.#wait
    if (open.take(client, this.#takePlace)) this.#takePlace()
    else this.#open = 'waiting'
  }

  readonly #takePlace = (): void => {
    this.#open = 'open'
    this.#state = 'ready'
    this.#unwatch()
    this.#wait.onReady()
  }

  #leave(): void {
    const { client, open } = this.#wait
    const wasOpen = this.#open === 'open'
    if (this.#open === 'waiting') open.leave(client, this.#takePlace)
    this.#open = 'no'
    if (wasOpen) open.end(client)
  }

  #unwatch(): void {
    const { whole, unended } = this.#wait.limits
    whole.unwatch(this)
    unended.unwatch(this.#unended)
  }
}

/** Clients with a body that is sent as it comes, and their requests that wait to be the next. */
export class OpenBodies {
  readonly #open = new Map<string, Set<() => void>>()

  get size(): number {
    return this.#open.size
  }

  /** @param next called if it is this body's turn later @returns false if the client has such a body already */
  take(client: string, next: () => void): boolean {
    const waiting = this.#open.get(client)
    if (waiting === undefined) this.#open.set(client, new Set())
    else waiting.add(next)
    return waiting === undefined
  }

  leave(client: string, next: () => void): void {
    this.#open.get(client)?.delete(next)
  }

  /** The body has ended. The next one takes its place. */
  end(client: string): void {
    const waiting = this.#open.get(client)!
    const [next] = waiting
    if (next === undefined) this.#open.delete(client)
    else {
      waiting.delete(next)
      next()
    }
  }
}
