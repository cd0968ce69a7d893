import type { IncomingMessage, Server } from 'node:http'
import type { Connection, Turn } from './connection.js'
import { watchUpgradeSocket } from './upgrade.js'

/**
 * An upgrade that we do not take part in is a plain request (RFC 9110 7.8). Node has stopped reading the connection as
 * HTTP: when its turn comes, it is made to read the request once more, without the upgrade.
 */
export class PlainTurn implements Turn {
  readonly receiving = false
  readonly #server: Server
  readonly #connection: Connection
  readonly #req: IncomingMessage
  readonly #unwatch: () => void

  constructor(server: Server, connection: Connection, req: IncomingMessage, head: Buffer) {
    this.#server = server
    this.#connection = connection
    this.#req = req
    if (head.length > 0) connection.socket.unshift(head)
    this.#unwatch = watchUpgradeSocket(connection.socket, connection.hangUp)
  }

  start(): void {
    const { socket } = this.#connection
    this.#unwatch()
    socket.unshift(Buffer.from(plainHead(this.#req), 'latin1'))
    // Node sets them anew.
    socket.removeAllListeners('timeout')
    this.#connection.reopen()
    this.#server.emit('encrypted' in socket ? 'secureConnection' : 'connection', socket)
  }

  abandon(): void {
    this.#unwatch()
  }

  spoil(): void {}

  cutOff(): void {}
}

function plainHead({ method, url, httpVersion, rawHeaders }: IncomingMessage): string {
  let text = `${method} ${url} HTTP/${httpVersion}\r\n`
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at]!
    const lower = name.toLowerCase()
    if (lower === 'upgrade') continue
    const value = rawHeaders[at + 1]!
    text += `${name}: ${lower === 'connection' ? withoutUpgrade(value) : value}\r\n`
  }
  return `${text}\r\n`
}

function withoutUpgrade(connection: string): string {
  return connection
    .split(',')
    .filter(option => option.trim().toLowerCase() !== 'upgrade')
    .join(',')
}
