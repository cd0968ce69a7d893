import type { IncomingMessage, Server } from 'node:http'
import type { Deadlines } from '../deadlines.js'
import type { PipelinedRequest } from '../http/client-connection.js'
import { watchUpgradeSocket } from '../http/websocket-tunnel.js'
import { fieldLines } from '../http1/fields.js'
import { type NodeConnection, readOn } from './node-connection.js'

/** Bytes. The size of the pieces that go back to the socket. Node reads more from the client only when few are left. */
const PIECE = 4 * 1024

/** Bytes. If at least this much goes back, nothing more is read. A hang-up is then not noticed. */
const ENOUGH = 16 * 1024

export interface UnreadRequest {
  /** Its head, as Node will read it. */
  readonly head: string
  /** The bytes after it. */
  readonly rest: Buffer
}

/**
 * Node stopped reading HTTP after this request. Its bytes and all later ones go back to the socket. When its turn comes,
 * Node parses it again. Until then little more is read.
 */
export class RereadRequest implements PipelinedRequest {
  readonly receiving = false
  readonly inFlight = false
  readonly #server: Server
  readonly #connection: NodeConnection
  readonly #linger: Deadlines
  readonly #head: string
  #unwatch = ignore
  #over = false

  constructor(server: Server, connection: NodeConnection, linger: Deadlines, { head, rest }: UnreadRequest) {
    this.#server = server
    this.#connection = connection
    this.#linger = linger
    this.#head = head
    const { socket } = connection
    for (let end = rest.length; end > 0; end -= PIECE) socket.unshift(rest.subarray(Math.max(0, end - PIECE), end))
    if (socket.readableLength >= ENOUGH) return
    readOn(socket)
    this.#unwatch = watchUpgradeSocket(socket, () => connection.hangUp())
  }

  start(): void {
    setImmediate(() => {
      if (this.#over) return
      const { socket } = this.#connection
      this.#unwatch()
      socket.unshift(Buffer.from(this.#head, 'latin1'))
      // Node sets new timeouts when it parses the request again.
      socket.removeAllListeners('timeout').setTimeout(0)
      this.#connection.reopen()
      this.#server.emit('encrypted' in socket ? 'secureConnection' : 'connection', socket)
    })
  }

  abandon(): void {
    if (this.#over) return
    this.#over = true
    this.#unwatch()
    this.#connection.leaveUnread(this.#linger)
  }

  onMalformed(): void {}

  cutOff(): void {
    this.abandon()
    this.#connection.socket.destroySoon()
  }
}

/** The head of a request as received. */
export function headOf(req: IncomingMessage): string {
  return written(req, req.rawHeaders)
}

/** The head of a request without its upgrade. An upgrade that we do not support is a plain request (RFC 9110 7.8). */
export function plainHeadOf(req: IncomingMessage): string {
  const { rawHeaders } = req
  const headers: string[] = []
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const lower = rawHeaders[at]!.toLowerCase()
    if (lower === 'upgrade') continue
    const value = rawHeaders[at + 1]!
    headers.push(rawHeaders[at]!, lower === 'connection' ? withoutUpgrade(value) : value)
  }
  return written(req, headers)
}

function written({ method, url, httpVersion }: IncomingMessage, headers: readonly string[]): string {
  return `${method} ${url} HTTP/${httpVersion}\r\n${fieldLines(headers)}\r\n`
}

function withoutUpgrade(connection: string): string {
  return connection
    .split(',')
    .filter(option => option.trim().toLowerCase() !== 'upgrade')
    .join(',')
}

function ignore(): void {}
