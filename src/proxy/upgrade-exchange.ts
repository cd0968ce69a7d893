import { type IncomingMessage, ServerResponse } from 'node:http'
import type { Connection } from './connection.js'
import { Exchange } from './exchange.js'
import { fieldsOf } from './headers.js'
import type { Line } from './line.js'
import { closeSoftly } from './linger.js'
import { openTunnel, watchUpgradeSocket } from './upgrade.js'
import { explain } from './upstream-error.js'

/** A WebSocket handshake: admitted and queued like any request, then a tunnel. In flight until it is answered. */
export class UpgradeExchange extends Exchange {
  readonly #head: Buffer
  readonly #unwatch: () => void

  constructor(line: Line, connection: Connection, req: IncomingMessage, head: Buffer) {
    super(line, connection, req, new ServerResponse(req))
    this.#head = head
    this.#unwatch = watchUpgradeSocket(req.socket, connection.hangUp)
  }

  protected override send(): { abort(): void } {
    this.#unwatch()
    const { upstream } = this.taken!
    const { settings, ca } = upstream
    const url = new URL(upstream.url)
    const tunnel = openTunnel({
      target: {
        protocol: url.protocol as 'http:' | 'https:',
        host: url.hostname.replace(/^\[|\]$/g, ''),
        port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80),
        ...(ca !== undefined && { ca }),
        ...(settings.tls.servername !== undefined && { servername: settings.tls.servername }),
      },
      socket: this.req.socket,
      head: this.#head,
      path: this.facts.target,
      headers: this.upstreamHeaders(),
      connectTimeout: settings.connectTimeout,
      handshakeTimeout: settings.responseTimeout,
      idleTimeout: settings.idleTimeout,
      answerHeaders: () => this.answerHeaders(),
      onResponse: (status, headers) => {
        upstream.quota?.hear(settings, status, fieldsOf(headers))
        this.markAnswered()
        this.over('forwarded', status)
        this.settle()
      },
      onEnd: end => {
        if (end.kind !== 'failed') return this.settle()
        const [, detail] = end.status === 504 ? [504, 'the upstream did not answer in time'] : explain(end.error)
        this.forwarded({ kind: 'failed', status: end.status, detail })
      },
    })
    return { abort: () => tunnel.close() }
  }

  protected override beforeReply(): void {
    this.#unwatch()
    const { socket } = this.req
    this.res.shouldKeepAlive = false
    this.res.assignSocket(socket)
    this.res.once('finish', () => closeSoftly(socket, this.line.linger))
  }
}
