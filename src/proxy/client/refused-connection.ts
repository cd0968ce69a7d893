import { STATUS_CODES } from 'node:http'
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import type { ProxyContext } from '../context.js'
import type { ClientConnection, PipelinedRequest } from '../http/connection/client-connection.js'
import type { RequestRecord } from '../observe/observer.js'

/** Ends a connection whose bytes are no valid request: sends a problem document in its turn, as the last answer. */
export class RefusedConnection implements PipelinedRequest {
  readonly inFlight = false
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #line: string
  readonly #reply: { readonly status: number; readonly detail: string }

  /** @param line the begin of the request, as far as it is known */
  constructor(
    context: ProxyContext,
    connection: ClientConnection,
    line: string,
    reply: { readonly status: number; readonly detail: string },
  ) {
    this.#context = context
    this.#connection = connection
    this.#line = line
    this.#reply = reply
  }

  start(): void {
    const { socket } = this.#connection
    const { status, detail } = this.#reply
    if (!socket.writable) return
    const [, method = '', target = ''] = LINE.exec(this.#line) ?? []
    this.#context.observer.finished?.({ ...UNREADABLE, method, target, failure: { detail } }, 'refused', status)
    const title = STATUS_CODES[status]!
    const body = JSON.stringify({ type: 'about:blank', title, status, detail })
    socket.write(
      `HTTP/1.1 ${status} ${title}\r\nContent-Type: application/problem+json\r\n` +
        `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
    )
    this.#connection.endConnection()
  }

  abandon(): void {}

  onMalformed(): void {}

  cutOff(): void {}
}

/** A method and a target, or what stands in their place. */
const LINE = /^([^ \r\n]+)(?: +([^ \r\n]+))?/

/** A record for a request that could not be read. */
const UNREADABLE: RequestRecord = {
  route: '',
  method: '',
  target: '',
  stack: [],
  keys: [],
  cost: 0,
  costs: undefined,
  settled: undefined,
  isSettling: false,
  priority: DEFAULT_PRIORITY,
  wait: 0,
  predictedWait: undefined,
  upstreamTime: undefined,
  retries: 0,
  inFlight: false,
  givenUp: undefined,
  rejection: undefined,
  failure: undefined,
  onTrial: false,
  coalesced: false,
  header: () => undefined,
}
