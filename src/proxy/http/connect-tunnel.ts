/**
 * Tunnels for CONNECT: a connection to the other side, and bytes in both directions.
 *
 * A side that has sent all it has may close its half. The tunnel goes on in the other direction, for a limited time of silence.
 */
import { connect, type Socket } from 'node:net'
import {
  TUNNEL_LINGER,
  type Tunnel,
  type TunnelEnd,
  type TunnelOptions,
  watchUpgradeSocket,
} from './websocket-tunnel.js'

/** What it needs. `answerHeaders` are for the 200; `idleTimeout` is for the silence of the other side once the client has ended. */
type ConnectOptions = Pick<
  TunnelOptions,
  | 'target'
  | 'socket'
  | 'head'
  | 'connectTimeout'
  | 'idleTimeout'
  | 'tunnelIdleTimeout'
  | 'answerHeaders'
  | 'onResponse'
  | 'onEnd'
>

/** Opens a tunnel for a CONNECT that has been released. */
export function openConnectTunnel(options: ConnectOptions): Tunnel {
  const { target, head, onEnd } = options
  const client = options.socket as Socket
  let joined = false
  let over = false
  const { host, port, lookup } = target
  const upstream = connect({
    host,
    port,
    ...(lookup && { lookup }),
    allowHalfOpen: true,
    noDelay: true,
    keepAlive: true,
  })
  const late = () => finish(failed(504, new Error(`no connection to the upstream within ${options.connectTimeout} ms`)))
  let timer = options.connectTimeout > 0 ? setTimeout(late, options.connectTimeout) : undefined
  const cut = () => finish({ kind: joined ? 'closed' : 'client-gone' })
  const unwatch = watchUpgradeSocket(client, cut)

  function finish(end: TunnelEnd): void {
    if (over) return
    over = true
    clearTimeout(timer)
    unwatch()
    upstream.destroy()
    if (end.kind !== 'failed' && end.kind !== 'abandoned') client.destroy()
    process.nextTick(onEnd, end)
  }

  function join(): void {
    clearTimeout(timer)
    unwatch()
    joined = true
    answer()
    if (head.length > 0 && !client.readableEnded) client.unshift(head)
    if (options.tunnelIdleTimeout > 0) {
      client.setTimeout(options.tunnelIdleTimeout, () => finish({ kind: 'closed', idle: true }))
    }
    client.once('close', cut)
    // It has all that came for it, and only has to close.
    client.once('finish', () => {
      timer = setTimeout(cut, TUNNEL_LINGER)
    })
    upstream.once('finish', () => {
      if (options.idleTimeout > 0) upstream.setTimeout(options.idleTimeout, cut)
    })
    upstream.pipe(client).pipe(upstream)
  }

  function answer(): void {
    // First: it counts as answered before the headers tell how long that took.
    options.onResponse?.(200, {})
    const headers = options.answerHeaders?.() ?? []
    let text = 'HTTP/1.1 200 Connection Established\r\n'
    for (let at = 0; at < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
    client.write(`${text}\r\n`, 'latin1')
  }

  upstream.once('connect', () => over || join())
  upstream.on('error', error => finish(joined ? { kind: 'closed' } : failed(502, error)))
  return { close: () => finish({ kind: joined ? 'closed' : 'abandoned' }) }
}

function failed(status: 502 | 504, error: Error): TunnelEnd {
  return { kind: 'failed', status, error, unconnected: true }
}
