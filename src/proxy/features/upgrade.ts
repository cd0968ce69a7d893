import { formatDuration } from '../../core/units.js'
import { type Fields, fieldsOf } from '../../http/quota/field-values.js'
import type { ProxyContext } from '../context.js'
import type { ClientConnection } from '../http/client.js'
import type { RequestFacts } from '../http/request.js'
import { openConnectTunnel, openTunnel, type Tunnel, TunnelPlace, watchUpgradeSocket } from '../upstream/tunnel.js'
import type { Upstream } from '../upstream/upstream.js'
import { causeOf, describeError, type Failure } from '../upstream/upstream-error.js'
import { protocolOf, type UpstreamServer } from '../upstream/upstream-server.js'

export interface UpgradeOwner {
  readonly method: string
  readonly route: string
  readonly facts: RequestFacts
  readonly upstream: Upstream
  /** That of this try. */
  readonly server: UpstreamServer
  readonly gated: boolean
  /** Names and values in turn, as are those of the answer. */
  upstreamHeaders(): readonly string[]
  answerHeaders(status: number): readonly string[]
  connected(): void
  tunnelled(status: number, fields: Fields): void
  forwarded(end: Failure): void
  countOut(): void
}

/**
 * A WebSocket handshake, or CONNECT. It is admitted and queued like any request, then becomes a tunnel. It is in flight until it
 * is answered: for CONNECT, until there is a connection to the other side. Its connection counts until the tunnel is closed.
 */
export class Upgrade {
  unwatch!: () => void
  readonly #owner: UpgradeOwner
  readonly #context: ProxyContext
  readonly #connection: ClientConnection
  readonly #head: Buffer

  constructor(owner: UpgradeOwner, context: ProxyContext, connection: ClientConnection, head: Buffer) {
    this.#owner = owner
    this.#context = context
    this.#connection = connection
    this.#head = head
    this.#watch()
  }

  #watch(): void {
    const connection = this.#connection
    this.unwatch = watchUpgradeSocket(connection.socket, () => connection.hangUp())
  }

  send(): { readonly connecting: boolean; abort(): void } {
    const { upstream, server, gated } = this.#owner
    let tunnel: Tunnel | undefined
    let waited = false
    const place = new TunnelPlace(upstream.limit, server, gated ? 'gate' : 'outside', opened => {
      tunnel = this.#open(opened, server)
      if (waited) this.#owner.connected()
    })
    waited = true
    return { connecting: tunnel === undefined, abort: () => (tunnel === undefined ? place.close() : tunnel.close()) }
  }

  #open(place: TunnelPlace, { origin, to, tlsFiles, lookup, identity }: UpstreamServer): Tunnel {
    this.unwatch()
    const owner = this.#owner
    const { settings } = owner.upstream
    const { tunnelIdleTimeout, observer } = this.#context
    const [open, success, what] =
      owner.method === 'CONNECT'
        ? ([openConnectTunnel, 200, 'tunnel'] as const)
        : ([openTunnel, 101, 'WebSocket'] as const)
    return open({
      target: {
        protocol: protocolOf(origin),
        ...to,
        ...tlsFiles,
        ...(lookup && { lookup }),
        ...identity,
      },
      socket: this.#connection.socket,
      head: this.#head,
      path: owner.facts.target,
      headers: owner.upstreamHeaders(),
      connectTimeout: settings.connectTimeout,
      handshakeTimeout: settings.responseTimeout,
      idleTimeout: settings.idleTimeout,
      tunnelIdleTimeout,
      answerHeaders: () => owner.answerHeaders(success),
      onResponse: (status, headers) => {
        // Before the request leaves its place to the next one.
        place.answered()
        owner.tunnelled(status, fieldsOf(headers))
      },
      onEnd: end => {
        place.close()
        if (end.kind === 'closed' && end.idle) {
          const silence = `${formatDuration(tunnelIdleTimeout)} without traffic (limits.tunnelIdleTimeout)`
          observer.tunnelClosed?.(owner.route, `a ${what} was closed after ${silence}`)
        }
        // It is answered now, or its client is gone.
        if (end.kind === 'abandoned') return
        if (end.kind !== 'failed') return owner.countOut()
        const [status, detail] =
          end.status === 504 ? ([504, 'the upstream did not answer in time'] as const) : describeError(end.error)
        const { unconnected } = end
        // It may wait for a connection.
        if (unconnected) this.#watch()
        owner.forwarded({ kind: 'failed', status, detail, cause: causeOf(end.error), unconnected })
      },
    })
  }
}
