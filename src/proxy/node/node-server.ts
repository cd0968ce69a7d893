/** Node's HTTP server, set up so that requests can wait in it, and the handlers of its events. */
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import type { KeyPair } from '../../config/checks/readable-files.js'
import type { Settings } from '../../config/settings.js'
import type { ProxyContext } from '../context.js'
import { Exchange } from '../exchange/exchange.js'
import { RefusedConnection } from '../exchange/refused-connection.js'
import { UpgradeExchange } from '../exchange/upgrade-exchange.js'
import { type ClientServer, EXCESS } from '../http/client-server.js'
import { MAX_FIELDS } from '../http1/request-parser.js'
import { DetachedAnswer, NodeAnswer } from './node-answer.js'
import { NodeConnection } from './node-connection.js'
import { headOf, plainHeadOf, RereadRequest } from './reread-request.js'

/** @param pair certificate and key for TLS; undefined: plain HTTP */
export function createNodeServer({ limits }: Settings, pair: KeyPair | undefined): ClientServer {
  const options = {
    maxHeaderSize: limits.maxHeaderSize,
    headersTimeout: limits.headersTimeout,
    keepAliveTimeout: limits.keepAliveTimeout,
    // A waiting request with an unread body must not time out.
    requestTimeout: 0,
    connectionsCheckingInterval: Math.min(1_000, Math.max(50, limits.headersTimeout / 4)),
    // We check Host and answer with a problem document.
    requireHostHeader: false,
    noDelay: true,
    ServerResponse: NodeAnswer,
  }
  const tls = pair && createTlsServer({ ...options, ...pair, handshakeTimeout: limits.headersTimeout })
  const server: Server = tls ?? createServer(options)
  server.timeout = 0
  server.maxHeadersCount = 0
  server.maxConnections = limits.maxConnections + EXCESS
  const connections = new Set<NodeConnection>()
  return {
    server,
    connections,
    accept: context => acceptRequests(server, connections, context),
    limit({ maxConnections, headersTimeout, keepAliveTimeout }) {
      server.maxConnections = maxConnections + EXCESS
      server.headersTimeout = headersTimeout
      server.keepAliveTimeout = keepAliveTimeout
    },
    renew: renewed => tls?.setSecureContext(renewed),
    close: () =>
      new Promise(resolve => {
        // A TLS handshake may end only now.
        tls?.on('secureConnection', socket => socket.destroy())
        server.close(() => resolve())
      }),
  }
}

function acceptRequests(server: Server, connections: Set<NodeConnection>, context: ProxyContext): void {
  const known = new WeakMap<Socket, NodeConnection>()
  const connectionOf = (socket: Socket): NodeConnection => {
    const existing = known.get(socket)
    if (existing !== undefined) return existing
    const connection = new NodeConnection(socket)
    known.set(socket, connection)
    connection.excess = connections.size >= context.maxConnections
    connections.add(connection)
    socket.once('close', () => connections.delete(connection))
    return connection
  }
  // Connections that never send anything are registered too: they must not outlive the server.
  server.on(isTls(server) ? 'secureConnection' : 'connection', connectionOf)
  // The parser limits the bytes of names and values. That still allows too many tiny fields.
  const isTooMuch = (req: IncomingMessage, connection: NodeConnection): boolean => {
    if (req.rawHeaders.length <= 2 * MAX_FIELDS) return false
    connection.onMalformed(
      new RefusedConnection(context, connection, 431, `there are more than ${MAX_FIELDS} header fields`),
    )
    return true
  }
  const onRequest = (req: IncomingMessage, res: NodeAnswer): void => {
    const connection = connectionOf(req.socket)
    if (!isTooMuch(req, connection)) connection.add(new Exchange(context, connection, req, res))
  }
  server.on('request', onRequest)
  // With this listener Node does not send the 100. We send it at the release.
  server.on('checkContinue', onRequest)
  server.on('checkExpectation', onRequest)
  server.on('upgrade', (req, _socket, rest) => {
    const connection = connectionOf(req.socket)
    if (connection.full || req.rawHeaders.length > 2 * MAX_FIELDS) connection.leaveUnread(context.linger.silence)
    if (connection.full || isTooMuch(req, connection)) return
    const upgradeOf = () => ({ req, res: new DetachedAnswer(req, context.linger.silence), head: rest })
    const reread = (head: string) => new RereadRequest(server, connection, context.linger.silence, { head, rest })
    if (connection.stoppedReading) connection.addReread(reread(headOf(req)))
    else if (isWebSocket(req)) connection.add(new UpgradeExchange(context, connection, upgradeOf()))
    else connection.add(reread(plainHeadOf(req)))
  })
  server.on('connect', req => {
    const connection = connectionOf(req.socket)
    connection.leaveUnread(context.linger.silence)
    connection.add(new RefusedConnection(context, connection, 405, 'CONNECT is not supported'))
  })
  server.on('clientError', (error: NodeJS.ErrnoException, duplex) => {
    const socket = duplex as Socket
    const { code = '' } = error
    const silent = code === 'ERR_HTTP_REQUEST_TIMEOUT' && socket.bytesRead === 0
    if (silent || GONE.has(code) || !socket.writable) {
      socket.destroy()
      return
    }
    const connection = connectionOf(socket)
    const [status, detail] = CLIENT_ERRORS[code] ?? [400, 'the request is malformed']
    connection.onMalformed(new RefusedConnection(context, connection, status, detail))
  })
}

/** Errors that mean the client is gone, also in the middle of a request. */
const GONE = new Set(['ECONNRESET', 'EPIPE', 'HPE_INVALID_EOF_STATE'])

const CLIENT_ERRORS: Record<string, [number, string]> = {
  HPE_HEADER_OVERFLOW: [431, 'the request headers are too large'],
  HPE_CHUNK_EXTENSIONS_OVERFLOW: [413, 'the chunk extensions are too large'],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'the request headers did not come in time'],
}

/** Only WebSockets are tunnelled. We could not limit the requests inside an h2c tunnel. */
function isWebSocket({ method, headers, httpVersionMinor }: IncomingMessage): boolean {
  if (method !== 'GET' || httpVersionMinor === 0) return false
  if (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) return false
  return headers.upgrade?.trim().toLowerCase() === 'websocket'
}

function isTls(server: Server): server is Server & TlsServer {
  return server instanceof TlsServer
}
