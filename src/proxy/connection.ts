import type { Socket } from 'node:net'
import { addressKey, readAddress } from './address.js'

/** How many requests a client may send ahead on one connection; it gets answers to these, then the end. */
const MAX_PIPELINED = 64

/** What a connection takes through in turn. */
export interface Turn {
  /** Its turn has come. */
  start(): void
  /** The client is gone. */
  abandon(): void
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
  current: Turn | undefined
  #pending: Turn[] = []
  #full = false

  constructor(socket: Socket) {
    this.socket = socket
    this.peer = readAddress(socket.remoteAddress ?? '') ?? '0.0.0.0'
    this.peerKey = addressKey(this.peer)
    socket.once('close', this.gone)
  }

  /** True: what is answered now is the last. */
  get full(): boolean {
    return this.#full && this.#pending.length === 0
  }

  /** False: there are too many already, it is ignored. */
  add(turn: Turn): boolean {
    if (this.#full) return false
    if (this.current === undefined) {
      this.current = turn
      turn.start()
      return true
    }
    this.#pending.push(turn)
    if (this.#pending.length === MAX_PIPELINED) this.#full = true
    return true
  }

  /** The current one has been answered. */
  done(): void {
    this.current = this.#pending.shift()
    this.current?.start()
  }

  /** Ends what is going on, and lets nothing follow it. */
  cutOff(): void {
    for (const turn of this.#pending.splice(0)) turn.abandon()
    this.#full = true
    this.current?.cutOff()
  }

  readonly gone = (): void => {
    const turns = this.current === undefined ? this.#pending : [this.current, ...this.#pending]
    this.current = undefined
    this.#pending = []
    this.#full = true
    for (const turn of turns) turn.abandon()
  }
}
