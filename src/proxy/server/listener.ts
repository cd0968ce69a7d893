/** Node's HTTP server, set up so that requests can wait in it, and the handlers of its events. */
import { createServer, type IncomingMessage, type Server } from 'node:http'
import { createServer as createTlsServer } from 'node:https'
import type { Socket } from 'node:net'
import { Server as TlsServer } from 'node:tls'
import type { KeyPair } from '../../config/checks/readable-files.js'
import type { Settings } from '../../config/settings.js'
import type { ProxyContext } from '../context.js'
import { Exchange } from '../exchange/exchange.js'
import { UpgradeExchange } from '../exchange/upgrade-exchange.js'
import { ClientAnswer } from '../http/client-answer.js'
import { ClientConnection } from '../http/connection.js'
import { RefusedConnection } from './refused-connection.js'
import { headOf, plainHeadOf, RereadRequest } from './reread-request.js'

/** Most header fields of a request. */
const MAX_FIELDS = 2_000

/** Connections above `maxConnections` that still get a 503. Further ones are closed without an answer. */
const EXCESS = 256

/** @param pair certificate and key for TLS; undefined: plain HTTP */
export function createHttpServer({ limits }: Settings, pair: KeyPair | undefined): Server {
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
    ServerResponse: ClientAnswer,
  }
  const server =
    pair === undefined
      ? createServer(options)
      : createTlsServer({ ...options, ...pair, handshakeTimeout: limits.headersTimeout })
  server.timeout = 0
  server.maxHeadersCount = 0
  limitConnections(server, limits.maxConnections)
  return server
}

/** Connections above the limit get an answer, up to `EXCESS` of them. */
export function limitConnections(server: Server, most: number): void {
  server.maxConnections = most + EXCESS
}

/** Uses this certificate for new connections. */
export function renewCertificate(server: Server, pair: KeyPair): void {
  if (isTls(server)) server.setSecureContext(pair)
}

/**
 * Hands everything that clients send to exchanges.
 *
 * @returns the open connections, kept up to date
 */
export function acceptRequests(server: Server, context: ProxyContext): ReadonlySet<ClientConnection> {
  const connections = new Set<ClientConnection>()
  const known = new WeakMap<Socket, ClientConnection>()
  const connectionOf = (socket: Socket): ClientConnection => {
    const existing = known.get(socket)
    if (existing !== undefined) return existing
    const connection = new ClientConnection(socket)
    known.set(socket, connection)
    connection.excess = connections.size >= context.maxConnections
    connections.add(connection)
    socket.once('close', () => connections.delete(connection))
    return connection
  }
  // Connections that never send anything are registered too: they must not outlive the server.
  server.on(isTls(server) ? 'secureConnection' : 'connection', connectionOf)
  // The parser limits the bytes of names and values. That still allows too many tiny fields.
  const isTooMuch = (req: IncomingMessage, connection: ClientConnection): boolean => {
    if (req.rawHeaders.length <= 2 * MAX_FIELDS) return false
    connection.onMalformed(
      new RefusedConnection(context, connection, 431, `there are more than ${MAX_FIELDS} header fields`),
    )
    return true
  }
  const onRequest = (req: IncomingMessage, res: ClientAnswer): void => {
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
    const reread = (head: string) => new RereadRequest(server, connection, context.linger.silence, { head, rest })
    if (connection.stoppedReading) connection.addReread(reread(headOf(req)))
    else if (isWebSocket(req)) connection.add(new UpgradeExchange(context, connection, req, rest))
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
  return connections
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
