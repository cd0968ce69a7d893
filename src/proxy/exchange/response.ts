import type { ProxyContext } from '../context.js'
import type { ClientAnswer, ClientRequest } from '../http/client.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import { isGrpc, sendGrpcReply } from '../http/grpc.js'
import { limitHeaders, type Reply, sendReply } from '../http/reply.js'
import type { Outcome, RequestRecord } from '../observe/observer.js'
import type { Explanation } from '../routing/explain-header.js'
import type { Route } from '../routing/route.js'

/** What a client gets from us: our own answers, our headers on those of upstreams, and what happens to its connection afterwards. */
export class ClientResponse {
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #req: ClientRequest
  readonly #res: ClientAnswer
  /** The `Prefer: wait` that applies, in seconds. */
  preferredWait: number | undefined
  /** Set if the route has `explain`. */
  explanation: Explanation | undefined

  constructor(context: ProxyContext, connection: ClientConnection, req: ClientRequest, res: ClientAnswer) {
    this.#context = context
    this.#connection = connection
    this.#req = req
    this.#res = res
  }

  /**
   * @param outcome of the request
   * @param more further headers, names and values in turn, those of `closing` among them
   */
  reply(outcome: Outcome, reply: Reply, more: readonly string[]): void {
    if (this.#req.isHttp2 && isGrpc(this.#req)) sendGrpcReply(this.#res, outcome, reply, more)
    else sendReply(this.#res, reply, more)
    this.#res.limitFlush(this.#context.flush)
  }

  /** Headers about a request that has passed its buckets: names and values in turn. */
  passed(request: RequestRecord, { settings }: Route, now: number): string[] {
    const { stack, wait } = request
    const isGate = settings.gate !== undefined
    const headers = isGate ? ['X-Shaper-Wait', String(toTenth(wait))] : []
    if (settings.headers && stack.length > 0) {
      headers.push(...limitHeaders(stack, stack, now))
      if (!isGate) headers.push('Server-Timing', `shaper;dur=${toTenth(wait)}`)
    }
    headers.push(...this.about(request))
    return headers
  }

  /** Headers about any request, besides the limits: names and values in turn. */
  about(request: RequestRecord): string[] {
    const headers = this.preferredWait === undefined ? [] : ['Preference-Applied', `wait=${this.preferredWait}`]
    if (this.explanation !== undefined) {
      const explanation = this.explanation(request.wait, request.givenUp)
      headers.push('Shaper-Explain', request.coalesced ? `${explanation};coalesced` : explanation)
    }
    return headers
  }

  /**
   * Decides whether the connection closes after the answer.
   *
   * @returns the `Connection` header, name and value, or nothing
   */
  closing(must = false): readonly string[] {
    const { alone, full } = this.#connection
    if (!must && !(alone && (full || this.#context.leaving))) return NOTHING
    this.#connection.last()
    return CLOSE
  }
}

const NOTHING: readonly string[] = []
const CLOSE: readonly string[] = ['Connection', 'close']

/** @param ms a duration */
function toTenth(ms: number): number {
  return Math.round(ms * 10) / 10
}
