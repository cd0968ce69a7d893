import type { Socket } from 'node:net'
import type { Deadlines } from '../deadlines.js'
import { addressKey, readAddress } from '../http/client-address.js'
import type { ClientConnection, PipelinedRequest } from '../http/client-connection.js'
import { closeSoftly } from '../http/linger.js'
import type { Reply } from '../http/reply.js'
import { watchUpgradeSocket } from '../http/websocket-tunnel.js'

/** Most requests that a client may send ahead on one connection. Later ones are read after the earlier answers. */
const MAX_PIPELINED = 64

interface Parsed {
  upgrade: boolean
}

/** Fields that Node keeps on a socket and does not declare. */
interface Parsing {
  readonly parser?: { readonly socket: Socket; onIncoming: (req: Parsed) => number } | null
  readonly _httpMessage?: { emit(event: 'drain'): void } | null
}

/**
 * A client's connection that Node reads. It watches the socket's close itself, because Node reports a close only to the
 * first of several pipelined requests.
 */
export class NodeConnection implements ClientConnection {
  readonly socket: Socket
  /** The peer's address and its key `ip`. */
  readonly peer: string
  readonly peerKey: string
  readonly encrypted: boolean
  /** There are too many connections: its requests are answered 503. */
  excess = false
  current: PipelinedRequest | undefined
  /** The newest request, while part of it may still be coming. */
  #newest: PipelinedRequest | undefined
  #pending: PipelinedRequest[] = []
  /** Node will stop reading HTTP behind the head of the next request. */
  #stoppedReading = false
  /** The last pending request will be read once more, and more may follow behind it. */
  #hasReread = false
  #full = false
  #broken = false
  #unwatch = ignore

  constructor(socket: Socket) {
    this.socket = socket
    this.peer = readAddress(socket.remoteAddress ?? '') ?? '0.0.0.0'
    this.peerKey = addressKey(this.peer)
    this.encrypted = 'encrypted' in socket
    socket.once('close', this.gone)
    // Node removes its own listener for upgrades and CONNECT. Without a listener a reset would end the process.
    socket.on('error', ignore)
    // Node emits `drain` on the answer only while it reads the connection as HTTP.
    socket.on('drain', () => {
      const { parser, _httpMessage } = socket as Parsing
      if (!parser) _httpMessage?.emit('drain')
    })
  }

  get full(): boolean {
    return this.#full
  }

  /** New requests go to `addReread`. */
  get stoppedReading(): boolean {
    return this.#stoppedReading
  }

  /** Some of what the client sent is unread and may hide a hang-up. */
  get unread(): boolean {
    return this.#hasReread || this.#unwatch !== ignore
  }

  /** No request is pending behind the current one, except one that will be read once more. */
  get alone(): boolean {
    return this.#pending.length === (this.#hasReread ? 1 : 0)
  }

  /** Adds a request. Ignores it after the last answer. */
  add(request: PipelinedRequest): void {
    if (this.#full) return
    this.#newest = request
    if (this.current === undefined) {
      this.current = request
      request.start(false)
      return
    }
    this.#pending.push(request)
    if (this.#pending.length === MAX_PIPELINED) this.#stopReading()
  }

  /** Adds a request that is read once more in its turn. */
  addReread(request: PipelinedRequest): void {
    this.#hasReread = true
    this.add(request)
  }

  /** The current request has been answered: starts the next. */
  done(): void {
    if (this.#newest === this.current && !this.#newest?.receiving) this.#newest = undefined
    this.current = this.#pending.shift()
    this.current?.start(true)
  }

  /** The current request was the newest and will be read once more. Forgets that it came. */
  reopen(): void {
    this.#full = false
    this.#stoppedReading = false
    this.#hasReread = false
    this.done()
  }

  /** The client sent something malformed. The request that it belongs to is answered; else `refusal` gets its turn. */
  onMalformed(refusal: PipelinedRequest & { readonly reply: Reply }): void {
    if (this.#broken) return
    this.#broken = true
    if (this.#newest?.receiving) this.#newest.onMalformed(refusal.reply)
    else this.add(refusal)
    this.#fill()
  }

  /** The current answer is the last one. */
  last(): void {
    this.#fill()
    for (const request of this.#pending.splice(0)) request.abandon()
  }

  /** Ends the current request. Nothing follows it. */
  cutOff(): void {
    this.last()
    this.current?.cutOff()
  }

  #fill(): void {
    this.#full = true
    this.#stopReading()
  }

  /** Node would read everything that a client sends ahead. This makes it stop behind the next request's head. */
  #stopReading(): void {
    this.#stoppedReading = true
    const { socket } = this
    const { parser } = socket as Parsing
    // A parser that has left this socket may serve another one.
    if (parser?.socket !== socket) return
    parser.onIncoming = req => {
      // Node's own listener for `upgrade` stops the reading too.
      if (!this.#full) socket.pause()
      // As for an upgrade, Node hands over what follows with the `upgrade` event.
      req.upgrade = true
      return 2
    }
  }

  /** Leaves the rest unread until the socket ends. Node no longer reads this socket. */
  leaveUnread(linger: Deadlines): void {
    const { socket } = this
    if (socket.destroyed) return
    readOn(socket)
    if (socket.writableEnded) return void socket.resume()
    this.#unwatch()
    this.#unwatch = watchUpgradeSocket(socket, () => this.hangUp())
    socket.destroySoon = () => this.endConnection(linger)
  }

  /** Ends the connection. Reads and discards until the client ends it too, for a limited time. */
  endConnection(linger: Deadlines): void {
    this.#unwatch()
    this.socket.removeAllListeners('data').on('data', ignore)
    closeSoftly(this.socket, linger)
  }

  readonly gone = (): void => {
    const { current } = this
    this.current = undefined
    this.last()
    current?.abandon()
  }

  /** For sockets that Node no longer reads: the client is gone, so destroy the socket. */
  hangUp(): void {
    this.gone()
    this.socket.destroy()
  }
}

/** Makes Node read again after `pause` stopped the handle. An empty chunk ends the read that the stream waits for. */
export function readOn(socket: Socket): void {
  socket.push('')
}

function ignore(): void {}
