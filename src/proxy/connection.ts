import type { Socket } from 'node:net'
import { addressKey, readAddress } from './address.js'
import type { Reply } from './reply.js'

/** How many requests a client may send ahead on one connection; it gets answers to these, then the end. */
const MAX_PIPELINED = 64

/** What is drawn up for each request; Node's own type has no name for it. */
interface Parsing {
  readonly parser?: { readonly socket: Socket; onIncoming: () => number } | null
}

/** What a connection takes through in turn. */
export interface Turn {
  /** Whether the client is still sending it. */
  readonly receiving: boolean
  /** Its turn has come. */
  start(): void
  /** The client is gone. */
  abandon(): void
  /** What the client still sends of it cannot be understood: what to answer where it has no answer yet. */
  spoil(reply: Reply): void
  /** The server's time is over. */
  cutOff(): void
}

/**
 * A client's connection: one request at a time, whoever sent how many ahead, and one listener for its end (of
 * pipelined requests only the first is told by Node).
 */
export class Connection {
  readonly socket: Socket
  /** The peer's address, and what the key `ip` is of it. */
  readonly peer: string
  readonly peerKey: string
  readonly encrypted: boolean
  /** There are too many connections: what it asks for is not done. */
  excess = false
  current: Turn | undefined
  /** What came last, while it may still be coming. */
  #newest: Turn | undefined
  #pending: Turn[] = []
  #full = false
  #broken = false

  constructor(socket: Socket) {
    this.socket = socket
    this.peer = readAddress(socket.remoteAddress ?? '') ?? '0.0.0.0'
    this.peerKey = addressKey(this.peer)
    this.encrypted = 'encrypted' in socket
    socket.once('close', this.gone)
    // Node takes its own listener away when a request is no plain one; without any, a reset would end the process.
    socket.on('error', ignore)
  }

  /** Takes no more. */
  get full(): boolean {
    return this.#full
  }

  /** Nobody is behind the current one. */
  get alone(): boolean {
    return this.#pending.length === 0
  }

  /** Ignores the turn when there are too many already, or the last answer has been given. */
  add(turn: Turn): void {
    if (this.#full) return
    this.#newest = turn
    if (this.current === undefined) {
      this.current = turn
      turn.start()
      return
    }
    this.#pending.push(turn)
    if (this.#pending.length === MAX_PIPELINED) this.#fill()
  }

  /** The current one has been answered. */
  done(): void {
    if (this.#newest === this.current && !this.#newest?.receiving) this.#newest = undefined
    this.current = this.#pending.shift()
    this.current?.start()
  }

  /** The current one is what came last, and will be read once more: as if it had not come yet. */
  reopen(): void {
    this.#full = false
    this.done()
  }

  /** What comes cannot be understood, and nothing after it: what it is part of is spoiled, else `refusal` has its turn. */
  spoil(refusal: Turn & { readonly reply: Reply }): void {
    if (this.#broken) return
    this.#broken = true
    if (this.#newest?.receiving) this.#newest.spoil(refusal.reply)
    else this.add(refusal)
    this.#fill()
  }

  /** The answer that is being given is the last one. */
  last(): void {
    this.#fill()
    for (const turn of this.#pending.splice(0)) turn.abandon()
  }

  /** Ends what is going on, and lets nothing follow it. */
  cutOff(): void {
    this.last()
    this.current?.cutOff()
  }

  /** Takes no more. Node would keep every request that comes until the connection ends, however many they are. */
  #fill(): void {
    this.#full = true
    const { parser } = this.socket as Parsing
    // One that is done with here may serve another connection.
    if (parser?.socket === this.socket) parser.onIncoming = drop
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

/** To the parser: go on, with the body and what follows it. */
function drop(): number {
  return 0
}

function ignore(): void {}
