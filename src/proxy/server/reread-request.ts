import type { IncomingMessage, Server } from 'node:http'
import type { Deadlines } from '../deadlines.js'
import { type ClientConnection, type PipelinedRequest, readOn } from '../http/connection.js'
import { watchUpgradeSocket } from '../http/websocket-tunnel.js'

/** Bytes. Node reads returned bytes in pieces of this size. It reads on from the client only when few are left. */
const PIECE = 4 * 1024

/** Bytes. If this much is given back, nothing more is read, not even to notice a hang-up. */
const ENOUGH = 16 * 1024

export interface UnreadRequest {
  /** Its head, as Node will read it. */
  readonly head: string
  /** The bytes after it. */
  readonly rest: Buffer
}

/**
 * A request behind which Node stopped reading HTTP. Its bytes and those after it go back to the socket. In its turn
 * Node reads it once more. Until then little of what follows is read.
 */
export class RereadRequest implements PipelinedRequest {
  readonly receiving = false
  readonly #server: Server
  readonly #connection: ClientConnection
  readonly #linger: Deadlines
  readonly #head: string
  #unwatch = ignore
  #over = false

  constructor(server: Server, connection: ClientConnection, linger: Deadlines, { head, rest }: UnreadRequest) {
    this.#server = server
    this.#connection = connection
    this.#linger = linger
    this.#head = head
    const { socket } = connection
    for (let end = rest.length; end > 0; end -= PIECE) socket.unshift(rest.subarray(Math.max(0, end - PIECE), end))
    if (socket.readableLength >= ENOUGH) return
    readOn(socket)
    this.#unwatch = watchUpgradeSocket(socket, connection.hangUp)
  }

  start(): void {
    setImmediate(() => {
      if (this.#over) return
      const { socket } = this.#connection
      this.#unwatch()
      socket.unshift(Buffer.from(this.#head, 'latin1'))
      // Node sets the timeouts anew.
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
  let text = `${method} ${url} HTTP/${httpVersion}\r\n`
  for (let at = 0; at < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
  return `${text}\r\n`
}

function withoutUpgrade(connection: string): string {
  return connection
    .split(',')
    .filter(option => option.trim().toLowerCase() !== 'upgrade')
    .join(',')
}

function ignore(): void {}
