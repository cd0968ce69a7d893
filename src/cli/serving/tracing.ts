/**
 * Traces of requests, for the OpenTelemetry SDK that is loaded. Each request has a span of its own, in it one for each time that
 * it was held, and one for each time that it was forwarded. The upstream gets the context of the latter.
 *
 * This package needs no SDK. It depends on an old version of the API, because an SDK works with all older ones of the same major
 * version, even with other copies of it.
 */
import {
  type Attributes,
  type Context,
  isSpanContextValid,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TextMapGetter,
  type TextMapSetter,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import type { Clock } from '../../core/clock.js'
import { isNamed } from '../../proxy/http/fields.js'
import type { Observer, Outcome, Propagate, RequestRecord } from '../../proxy/observe/observer.js'
import { destinationOf } from '../../proxy/upstream/upstream-server.js'
import { packageVersion } from '../command.js'
import { withoutQuery } from '../logging/access-log.js'

/** The methods of RFC 9110 and some more. Others would make too many names. */
const METHODS = new Set(['CONNECT', 'DELETE', 'GET', 'HEAD', 'OPTIONS', 'PATCH', 'POST', 'PUT', 'QUERY', 'TRACE'])

/** The trace of a request that is not over. */
interface RequestTrace {
  /** What lies between ms of the clock and ms since 1970. */
  readonly offset: number
  readonly span: Span
  readonly context: Context
  held: Span | undefined
  /** Of the forwarding. It may be armed, and then has not begun. */
  forwarding: { readonly span: Span; readonly isArmed: boolean } | undefined
}

interface End {
  readonly outcome: Outcome
  readonly status: number
  readonly now: number
}

type Traced = 'began' | 'queued' | 'unqueued' | 'retried' | 'finished'

export class Tracing implements Required<Pick<Observer, Traced>> {
  readonly #tracer: Tracer
  readonly #clock: Clock
  readonly #open = new Map<RequestRecord, RequestTrace>()

  /** Undefined: there is no SDK, or one for another API. */
  static create(clock: Clock): Tracing | undefined {
    const tracer = trace.getTracer('leaky-shaper', packageVersion())
    const isReal = isSpanContextValid(tracer.startSpan('probe').spanContext())
    return isReal ? new Tracing(tracer, clock) : undefined
  }

  private constructor(tracer: Tracer, clock: Clock) {
    this.#tracer = tracer
    this.#clock = clock
  }

  /** The id of its trace. Undefined: the request is over. */
  traceOf(request: RequestRecord): string | undefined {
    return this.#open.get(request)?.span.spanContext().traceId
  }

  readonly began = (request: RequestRecord): void => {
    const offset = Date.now() - this.#clock.now()
    const parent = propagation.extract(ROOT_CONTEXT, request, RECEIVED)
    const { method, target } = request
    const attributes = { ...methodOf(method), 'url.path': withoutQuery(target) }
    const startTime = this.#clock.now() + offset
    const span = this.#tracer.startSpan(nameOf(method), { kind: SpanKind.SERVER, attributes, startTime }, parent)
    const context = trace.setSpan(parent, span)
    this.#open.set(request, { offset, span, context, held: undefined, forwarding: undefined })
  }

  readonly queued = (request: RequestRecord): void => {
    const open = this.#open.get(request)
    if (open === undefined) return
    const { route, stack } = request
    const attributes = { 'shaper.route': route, 'shaper.buckets': stack.map(({ limits }) => limits.name) }
    open.held = this.#tracer.startSpan('held', { attributes, startTime: this.#now(open) }, open.context)
  }

  readonly unqueued = (request: RequestRecord): void => {
    const open = this.#open.get(request)
    if (open === undefined) return
    open.held?.end(this.#now(open))
    open.held = undefined
  }

  readonly propagate: Propagate = (request, headers, { upstream, slot }) => {
    const open = this.#open.get(request)
    if (open === undefined) return
    const { forwarding, context } = open
    // One that was armed was taken back, so it never began.
    if (forwarding?.isArmed === false) this.#sentAgain(open, forwarding.span, request)
    const startTime = slot === undefined ? this.#now(open) : slot + open.offset
    const span = this.#tracer.startSpan(
      nameOf(request.method),
      { kind: SpanKind.CLIENT, attributes: forwardingOf(request, upstream), startTime },
      context,
    )
    open.forwarding = { span, isArmed: slot !== undefined }
    propagation.inject(trace.setSpan(context, span), headers, SENT)
  }

  readonly retried = (request: RequestRecord): void => {
    const open = this.#open.get(request)
    if (open?.forwarding === undefined) return
    this.#sentAgain(open, open.forwarding.span, request)
    open.forwarding = undefined
  }

  readonly finished = (request: RequestRecord, outcome: Outcome, status: number): void => {
    const open = this.#open.get(request)
    if (open === undefined) return
    this.#open.delete(request)
    const now = this.#now(open)
    open.held?.end(now)
    // One that is armed and was not sent never began.
    if (request.inFlight) endForwarding(open.forwarding?.span, request, { outcome, status, now })
    const { route, method, rejection } = request
    const { span } = open
    if (route !== '') span.updateName(`${nameOf(method)} ${route}`)
    span.setAttributes({
      ...(route !== '' && { 'shaper.route': route }),
      'shaper.outcome': outcome,
      ...(rejection !== undefined && { 'shaper.reason': rejection.reason }),
      ...(rejection?.bucket && { 'shaper.bucket': rejection.bucket }),
      ...(outcome !== 'cancelled' && { 'http.response.status_code': status }),
    })
    if (status >= 500) span.setStatus({ code: SpanStatusCode.ERROR })
    span.end(now)
  }

  #sentAgain(open: RequestTrace, span: Span, { failure }: RequestRecord): void {
    span.setStatus({ code: SpanStatusCode.ERROR, message: failure?.detail ?? 'sent again' })
    span.end(this.#now(open))
  }

  /** ms since 1970, on the clock of its trace. */
  #now({ offset }: RequestTrace): number {
    return this.#clock.now() + offset
  }
}

function endForwarding(span: Span | undefined, request: RequestRecord, { outcome, status, now }: End): void {
  if (span === undefined) return
  const { upstreamTime, failure } = request
  if (outcome === 'failed' || (outcome === 'forwarded' && status >= 400))
    span.setStatus({ code: SpanStatusCode.ERROR, ...(failure && { message: failure.detail }) })
  if (outcome !== 'cancelled' && upstreamTime !== undefined) span.setAttribute('http.response.status_code', status)
  span.end(now)
}

function nameOf(method: string): string {
  return METHODS.has(method) ? method : 'HTTP'
}

function methodOf(method: string): Attributes {
  if (METHODS.has(method)) return { 'http.request.method': method }
  return { 'http.request.method': '_OTHER', 'http.request.method_original': method }
}

function forwardingOf({ method, retries }: RequestRecord, upstream: string): Attributes {
  const { host, port, path } = destinationOf(upstream)
  return {
    ...methodOf(method),
    ...(path === undefined ? { 'server.address': host, 'server.port': port } : { 'server.address': path }),
    ...(retries > 0 && { 'http.request.resend_count': retries }),
  }
}

const RECEIVED: TextMapGetter<RequestRecord> = {
  get: (request, name) => request.header(name.toLowerCase()),
  // Only for propagators of many small headers. No such header passes through here changed.
  keys: () => [],
}

/** Baggage passes as it came. */
const SENT: TextMapSetter<string[]> = {
  set(headers, name, value) {
    if (name === 'baggage') return
    const lower = name.toLowerCase()
    let isSet = false
    for (let at = headers.length - 2; at >= 0; at -= 2) {
      if (!isNamed(headers[at]!, lower)) continue
      if (isSet) headers.splice(at, 2)
      else headers[at + 1] = value
      isSet = true
    }
    if (!isSet) headers.push(name, value)
  },
}
