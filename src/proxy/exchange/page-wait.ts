/**
 * The event stream of a page that waits (waiting-page.ts). It asks again and again what would become of the page's request if it came
 * now, and tells the page when it should come. It costs nothing in any bucket, goes to no upstream, and is no request in the
 * metrics.
 */
import { type Comeback, comebackOf } from '../../core/admission/comeback.js'
import type { Arrival, Rejection } from '../../core/shaper.js'
import { matchingPath } from '../../http/matching/matching-path.js'
import type { ProxyContext } from '../context.js'
import type { PageStream, StreamEvent } from '../features/page-streams.js'
import { tellPromised } from '../features/tickets.js'
import { STREAM_PATH, toldOf } from '../features/waiting-page.js'
import type {
  AnswerOwner,
  ClientAnswer,
  ClientConnection,
  ClientRequest,
  PipelinedRequest,
  Reply,
} from '../http/client.js'
import {
  closeAfter,
  closing,
  httpDate,
  RETRY_SOON_MS,
  SHUTTING_DOWN,
  sendReply,
  TOO_MANY_CONNECTIONS,
} from '../http/reply.js'
import { headerValue, Refusal, type RequestFacts, readRequest } from '../http/request.js'
import type { Route } from '../routing/route.js'
import type { IncomingRequest } from './incoming-request.js'

/** Bytes that may wait for the client. What it is told is less than a hundred. */
const AHEAD = 4_096
const TARGET = /^\/[\x21\x22\x24-\x7e]*$/

const HEADERS = [
  ...['Content-Type', 'text/event-stream; charset=utf-8'],
  ...['Cache-Control', 'no-store'],
  ...['X-Accel-Buffering', 'no'],
  ...['X-Content-Type-Options', 'nosniff'],
]

const NOT_GET: Reply = { status: 405, detail: 'use GET', headers: ['Allow', 'GET'] }
const NOT_OURS: Reply = { status: 403, detail: 'only pages of the same site may listen' }
const NO_TARGET: Reply = { status: 400, detail: 'use ?for=PATH, percent-encoded' }
const TOO_MANY: Reply = { status: 503, detail: 'too many pages are listening', retryAfterMs: RETRY_SOON_MS }

export function isForStream({ egress }: ProxyContext, { url }: ClientRequest): boolean {
  if (!url.startsWith(STREAM_PATH) || egress !== undefined) return false
  return url.length === STREAM_PATH.length || url.charAt(STREAM_PATH.length) === '?'
}

interface Awaited {
  readonly route: Route
  readonly arrival: Arrival
}

export class PageWait implements PipelinedRequest, AnswerOwner, PageStream {
  readonly inFlight = false
  readonly #request: IncomingRequest
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #res: ClientAnswer
  #awaited: Awaited | undefined
  #malformed: Reply | undefined
  #state: 'arrived' | 'open' | 'over' = 'arrived'
  #isBehind = false

  constructor(request: IncomingRequest, res: ClientAnswer) {
    this.#request = request
    this.#context = request.context
    this.#connection = request.connection
    this.#res = res
    res.owner = this
  }

  get client(): string {
    return this.#request.client
  }

  start(): void {
    const refusal = this.#malformed ?? this.#open()
    if (refusal === undefined) return
    this.#state = 'over'
    if (refusal === 'nothing') {
      this.#res.sendWhole({ status: 204, reason: 'No Content', headers: this.#closing(), body: '' })
    } else {
      sendReply(this.#res, refusal, refusal.close ? closeAfter(this.#connection) : this.#closing())
      this.#res.limitFlush(this.#context.flush)
    }
    this.#res.readRest()
  }

  #closing(): readonly string[] {
    return closing(this.#connection, this.#context)
  }

  /** @returns `nothing`: no page waits there, and the client need not ask again */
  #open(): Reply | 'nothing' | undefined {
    const facts = readRequest(this.#request.req)
    if (facts instanceof Refusal) return facts
    if (this.#connection.excess) return TOO_MANY_CONNECTIONS
    if (this.#context.draining) return SHUTTING_DOWN
    if (facts.method !== 'GET') return NOT_GET
    if (!isOfSite(facts)) return NOT_OURS
    const target = new URLSearchParams(facts.target.slice(STREAM_PATH.length)).get('for')
    if (target === null || !TARGET.test(target)) return NO_TARGET
    this.#request.facts = { ...facts, target, path: matchingPath(target) }
    const { pageStreams } = this.#context
    if (!pageStreams.hasRoomFor(this.client)) return TOO_MANY
    this.#awaited = this.#await()
    if (this.#awaited === undefined) return 'nothing'
    this.#state = 'open'
    this.#begin()
    pageStreams.open(this)
    return undefined
  }

  #await(): Awaited | undefined {
    const route = this.#context.routes.find(each => each.settings.gate === undefined && each.matches(this.#request))
    if (route?.page === undefined || route.settings.dryRun) return undefined
    const arrival = this.#request.arrivalAt(route)
    return arrival instanceof Refusal ? undefined : { route, arrival }
  }

  #begin(): void {
    const headers = [...HEADERS, 'Date', httpDate(), ...this.#closing()]
    this.#res.start({ status: 200, reason: 'OK', headers, length: undefined, ahead: AHEAD, client: this.client })
    this.#res.readRest()
    this.#write('retry: 2000\n\n')
  }

  ask(): Comeback | undefined {
    const { shaper, clock } = this.#context
    const { prospects } = this.#request
    const { route, arrival: asked } = this.#awaited!
    const { maxWait, mode } = route.settings
    const now = clock.now()
    const patience = prospects?.longestWait(now) ?? Infinity
    const arrival = {
      ...asked,
      patience,
      // As with a browser's request: its address stands for the ticket.
      ...(route.settings.appointments && { appointment: { redeems: shaper.bookingOf(asked, this.client) } }),
    }
    const shaped = mode === 'shape' ? mode : 'meter'
    const found = shaper.askAgain(arrival, shaped, maxWait)
    if (found === undefined) return undefined
    // What others are promised has nothing to do with how long they wait for their answers.
    const isGivenUp = found.reason === 'max-wait' && patience <= maxWait
    let rejection = found
    const tell = (promised: Rejection): void => {
      rejection = promised
    }
    // What a store answers later is known when the page asks again.
    if (!isGivenUp) tellPromised(this.#context.shaper, route, { arrival, rejection, maxWait, tell })
    const until = Math.max(rejection.retryAfterMs ?? RETRY_SOON_MS, isGivenUp ? prospects!.untilLook(now) : 0)
    return comebackOf(arrival, rejection, until, { now, mode: shaped, maxWait: Math.min(maxWait, patience) })
  }

  say(event: StreamEvent): boolean {
    if (this.#isBehind) return false
    this.#write(
      typeof event === 'string' ? `event: ${event}\ndata: now\n\n` : `data: ${JSON.stringify(toldOf(event))}\n\n`,
    )
    return true
  }

  #write(text: string): void {
    if (this.#state !== 'open') return
    const bytes = Buffer.from(text)
    if (this.#res.data(bytes, 0, bytes.length)) return
    this.#isBehind = true
    this.#res.onceDrained(() => {
      this.#isBehind = false
    })
  }

  close(): void {
    if (this.#state !== 'open') return
    this.#end()
    // It would only be told that the server shuts down.
    if (this.#context.draining && !this.#context.hasSuccessor) this.#connection.last()
    if (this.#isBehind) this.#res.cut()
    else this.#res.complete([])
  }

  end(why: 'hang-up' | 'shutdown'): void {
    if (this.#state === 'open') this.#context.pageStreams.drop(this)
    if (why === 'shutdown') this.close()
    else this.#end()
  }

  #end(): void {
    this.#state = 'over'
    for (const bucket of this.#awaited?.arrival.stack ?? []) this.#context.bucketTable.rest(bucket)
    this.#awaited = undefined
  }

  onMalformed(reply: Reply): void {
    if (this.#state === 'arrived') this.#malformed = reply
    else this.#connection.hangUp()
  }

  takenTooSlowly(): void {
    this.end('hang-up')
  }

  answerSent(): void {
    this.#connection.done()
  }
}

function isOfSite({ rawHeaders, host }: RequestFacts): boolean {
  const site = headerValue(rawHeaders, 'sec-fetch-site')
  if (site !== undefined) return site === 'same-origin' || site === 'none'
  const origin = headerValue(rawHeaders, 'origin')
  return origin === undefined || origin.replace(/^https?:\/\//, '') === host
}
