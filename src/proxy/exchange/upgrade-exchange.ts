import { formatDuration } from '../../core/units.js'
import { fieldsOf } from '../../http/quota/field-values.js'
import type { ProxyContext } from '../context.js'
import type { ClientAnswer, ClientRequest } from '../http/client.js'
import { openConnectTunnel } from '../http/connect-tunnel.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import { openTunnel, type Tunnel, watchUpgradeSocket } from '../http/websocket-tunnel.js'
import { TunnelPlace } from '../upstream/tunnel-place.js'
import { hostOf, portOf } from '../upstream/upstream.js'
import { causeOf, describeError } from '../upstream/upstream-error.js'
import { Exchange, type Sending } from './exchange.js'

/** A request for a WebSocket, or CONNECT. Its connection is no longer read as HTTP. */
export interface UpgradeRequest {
  readonly req: ClientRequest
  readonly res: ClientAnswer
  /** The bytes that came behind it. */
  readonly head: Buffer
}

/**
 * A WebSocket handshake, or CONNECT. It is admitted and queued like any request, then becomes a tunnel. It is in flight until it
 * is answered: for CONNECT, until there is a connection to the other side. Its connection counts until the tunnel is closed.
 */
export class UpgradeExchange extends Exchange {
  readonly #head: Buffer
  #unwatch: () => void = () => undefined

  constructor(context: ProxyContext, connection: ClientConnection, { req, res, head }: UpgradeRequest) {
    super(context, connection, req, res)
    this.#head = head
    this.#watch()
  }

  #watch(): void {
    const { connection } = this
    this.#unwatch = watchUpgradeSocket(connection.socket, () => connection.hangUp())
  }

  override get pooled(): boolean {
    return false
  }

  override arm(): undefined {
    return undefined
  }

  protected override send(): Sending {
    let tunnel: Tunnel | undefined
    let waited = false
    const place = new TunnelPlace(this.matched!.upstream.limit, this.gated ? 'gate' : 'outside', () => {
      tunnel = this.#open({ answered: () => place.answered(), ended: () => place.close() })
      if (waited) this.connected()
    })
    waited = true
    return {
      connecting: tunnel === undefined,
      abort: () => (tunnel === undefined ? place.close() : tunnel.close()),
    }
  }

  #open(place: { answered(): void; ended(): void }): Tunnel {
    this.#unwatch()
    const { upstream } = this.matched!
    const { settings, ca } = upstream
    const { tunnelIdleTimeout, observer } = this.context
    const [open, success, what] =
      this.method === 'CONNECT'
        ? ([openConnectTunnel, 200, 'tunnel'] as const)
        : ([openTunnel, 101, 'WebSocket'] as const)
    return open({
      target: {
        protocol: new URL(upstream.url).protocol as 'http:' | 'https:',
        host: hostOf(upstream.url),
        port: portOf(upstream.url),
        ...(ca !== undefined && { ca }),
        ...(upstream.lookup && { lookup: upstream.lookup }),
        ...upstream.identity,
      },
      socket: this.connection.socket,
      head: this.#head,
      path: this.facts.target,
      headers: this.upstreamHeaders(),
      connectTimeout: settings.connectTimeout,
      handshakeTimeout: settings.responseTimeout,
      idleTimeout: settings.idleTimeout,
      tunnelIdleTimeout,
      answerHeaders: () => this.answerHeaders(success),
      onResponse: (status, headers) => {
        // Before the request leaves its place to the next one.
        place.answered()
        upstream.quota?.received(settings, status, fieldsOf(headers))
        this.markAnswered()
        this.heard(status)
        this.over('forwarded', status)
        this.settle()
      },
      onEnd: end => {
        place.ended()
        if (end.kind === 'closed' && end.idle) {
          const silence = `${formatDuration(tunnelIdleTimeout)} without traffic (limits.tunnelIdleTimeout)`
          observer.tunnelClosed?.(this.route, `a ${what} was closed after ${silence}`)
        }
        // It is answered now, or its client is gone.
        if (end.kind === 'abandoned') return
        if (end.kind !== 'failed') return this.settle()
        const [status, detail] =
          end.status === 504 ? ([504, 'the upstream did not answer in time'] as const) : describeError(end.error)
        const { unconnected } = end
        // It may wait for a connection.
        if (unconnected) this.#watch()
        this.forwarded({ kind: 'failed', status, detail, cause: causeOf(end.error), unconnected })
      },
    })
  }

  protected override beforeReply(): void {
    this.#unwatch()
  }
}
