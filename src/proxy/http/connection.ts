import type { Socket } from 'node:net'
import type { Deadlines } from '../deadlines.js'
import { addressKey, readAddress } from './client-address.js'
import { closeSoftly } from './linger.js'
import type { Reply } from './reply.js'
import { watchUpgradeSocket } from './websocket-tunnel.js'

/** How many requests a client may send ahead on one connection. What comes after them is not read before their answers. */
const MAX_PIPELINED = 64

interface Parsed {
  upgrade: boolean
}

/** What Node keeps at a socket, for which its own types have no names. */
interface Parsing {
  readonly parser?: { readonly socket: Socket; onIncoming: (req: Parsed) => number } | null
  readonly _httpMessage?: { emit(event: 'drain'): void } | null
}

/** What a connection takes through in turn. */
export interface PipelinedRequest {
  /** Whether the client is still sending it. */
  readonly receiving: boolean
  /**
   * Its turn has come.
   *
   * @param sentAhead it has waited behind another one: it gives other connections a turn first, so that a client that
   *   sends ahead without end takes no more than its share
   */
  start(sentAhead: boolean): void
  /** The client is gone. */
  abandon(): void
  /** What the client still sends of it cannot be understood: what to answer where it has no answer yet. */
  malformed(reply: Reply): void
  /** The server's time is over. */
  cutOff(): void
}

/**
 * A client's connection. It handles one request at a time, however many the client sends ahead. It has one listener for its
 * end, because Node tells only the first of several pipelined requests.
 */
export class ClientConnection {
  readonly socket: Socket
  /** The peer's address, and what the key `ip` is of it. */
  readonly peer: string
  readonly peerKey: string
  readonly encrypted: boolean
  /** There are too many connections: what it asks for is not done. */
  excess = false
  current: PipelinedRequest | undefined
  /** What came last, while it may still be coming. */
  #newest: PipelinedRequest | undefined
  #pending: PipelinedRequest[] = []
  /** Node has been told to stop reading HTTP behind the next request's head. */
  #stoppedReading = false
  /** The last one that waits is to be read once more, and there may be more behind it. */
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
    // Node takes its own listener away when a request is no plain one; without any, a reset would end the process.
    socket.on('error', ignore)
    // Node tells the answer itself only as long as it reads the connection as HTTP.
    socket.on('drain', () => {
      const { parser, _httpMessage } = socket as Parsing
      if (!parser) _httpMessage?.emit('drain')
    })
  }

  /** Takes no more. */
  get full(): boolean {
    return this.#full
  }

  /** What comes now is to be held back. */
  get stoppedReading(): boolean {
    return this.#stoppedReading
  }

  /** Not all that the client has sent is read, and the rest may hide that it has hung up. */
  get unread(): boolean {
    return this.#hasReread || this.#unwatch !== ignore
  }

  /** Nobody is behind the current one, but for what is held back. */
  get alone(): boolean {
    return this.#pending.length === (this.#hasReread ? 1 : 0)
  }

  /** Ignores the turn when the last answer has been given. */
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

  /** Adds one that is to be read only when its turn has come. */
  addReread(request: PipelinedRequest): void {
    this.#hasReread = true
    this.add(request)
  }

  /** The current one has been answered. */
  done(): void {
    if (this.#newest === this.current && !this.#newest?.receiving) this.#newest = undefined
    this.current = this.#pending.shift()
    this.current?.start(true)
  }

  /** The current one is what came last, and will be read once more: as if it had not come yet. */
  reopen(): void {
    this.#full = false
    this.#stoppedReading = false
    this.#hasReread = false
    this.done()
  }

  /** What comes cannot be understood, and nothing after it: what it is part of is spoiled, else `refusal` has its turn. */
  malformed(refusal: PipelinedRequest & { readonly reply: Reply }): void {
    if (this.#broken) return
    this.#broken = true
    if (this.#newest?.receiving) this.#newest.malformed(refusal.reply)
    else this.add(refusal)
    this.#fill()
  }

  /** The answer that is being given is the last one. */
  last(): void {
    this.#fill()
    for (const request of this.#pending.splice(0)) request.abandon()
  }

  /** Ends what is going on, and lets nothing follow it. */
  cutOff(): void {
    this.last()
    this.current?.cutOff()
  }

  /** Takes no more. */
  #fill(): void {
    this.#full = true
    this.#stopReading()
  }

  /** Node would read all that a client sends ahead, as fast as it comes. It stops behind the next request's head. */
  #stopReading(): void {
    this.#stoppedReading = true
    const { socket } = this
    const { parser } = socket as Parsing
    // One that is done with here may serve another connection.
    if (parser?.socket !== socket) return
    parser.onIncoming = req => {
      // Node's listener for this event still stops the reading itself.
      if (!this.#full) socket.pause()
      // An upgrade: what follows is no HTTP, and Node hands it over by the event of that name.
      req.upgrade = true
      return 2
    }
  }

  /** Nothing more is wanted, and Node does not read any more: what still comes stays unread until the end. */
  leaveUnread(linger: Deadlines): void {
    const { socket } = this
    if (socket.destroyed) return
    readOn(socket)
    if (socket.writableEnded) return void socket.resume()
    this.#unwatch()
    this.#unwatch = watchUpgradeSocket(socket, this.hangUp)
    socket.destroySoon = () => this.end(linger)
  }

  /** Ends it, but reads on for a while until the client ends it too; what comes is not looked at. */
  end(linger: Deadlines): void {
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

  /** For sockets that Node no longer looks after: the client has gone, and so does the socket. */
  readonly hangUp = (): void => {
    this.gone()
    this.socket.destroy()
  }
}

/** Makes Node read on what `pause` has stopped at the handle: an empty chunk ends the reading that the stream waits for. */
export function readOn(socket: Socket): void {
  socket.push('')
}

function ignore(): void {}
