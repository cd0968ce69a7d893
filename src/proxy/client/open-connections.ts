import type { Socket } from 'node:net'
import type { ProxyContext } from '../context.js'
import type { OpenConnection } from '../http/client.js'
import type { PeerAddress } from '../http/client-address.js'

/** Connections above a limit that still get a 503. Further ones are closed without an answer. */
export const EXCESS = 256
/** `excess`: its requests are answered 503. `none`: it is closed without an answer. */
export type Room = 'free' | 'excess' | 'none'
type Limits = Pick<ProxyContext, 'maxConnections' | 'connectionsPerClient' | 'trust'>

export class OpenConnections {
  readonly all = new Set<OpenConnection>()
  readonly #byClient = new Tally()
  readonly #takeIdle: () => OpenConnection | undefined

  constructor(takeIdle: () => OpenConnection | undefined) {
    this.#takeIdle = takeIdle
  }

  get clients(): number {
    return this.#byClient.size
  }

  add(connection: OpenConnection): void {
    this.all.add(connection)
    this.#byClient.add(connection.peerKey)
  }

  delete(connection: OpenConnection): void {
    if (this.all.delete(connection)) this.#byClient.remove(connection.peerKey)
  }

  /** Finds room for a newcomer. If there are too many in all, an idle one is closed for it. */
  makeRoomFor(peer: PeerAddress, limits: Limits): Room {
    const { maxConnections } = limits
    const own = this.#byClient.of(peer.peerKey)
    const most = shareOf(peer, limits)
    if (own >= most + EXCESS) return 'none'
    if (own < most && (this.all.size < maxConnections || this.#closeIdle())) return 'free'
    return this.all.size < maxConnections + EXCESS ? 'excess' : 'none'
  }

  #closeIdle(): boolean {
    const idle = this.#takeIdle()
    if (idle === undefined) return false
    // Its socket closes a little later. Its place is free now.
    this.delete(idle)
    idle.socket.destroy()
    return true
  }
}

/** Bounds the sockets of each client of a TLS server during the handshake, when they are no open connections yet. */
export class Handshakes {
  readonly #byClient = new Tally()

  add(socket: Socket, peer: PeerAddress | undefined, limits: Limits): void {
    if (peer === undefined || this.#byClient.of(peer.peerKey) >= shareOf(peer, limits) + EXCESS)
      return void socket.destroy()
    this.#byClient.add(peer.peerKey)
    socket.once('close', () => this.#byClient.remove(peer.peerKey))
  }
}

/** Connections are counted by peer. Behind a trusted hop there are many clients. */
function shareOf({ peer }: PeerAddress, { connectionsPerClient, trust }: Limits): number {
  return trust(peer, 0) ? Infinity : connectionsPerClient
}

class Tally {
  readonly #counts = new Map<string, number>()

  get size(): number {
    return this.#counts.size
  }

  of(key: string): number {
    return this.#counts.get(key) ?? 0
  }

  add(key: string): void {
    this.#counts.set(key, this.of(key) + 1)
  }

  remove(key: string): void {
    const left = this.of(key) - 1
    if (left > 0) this.#counts.set(key, left)
    else this.#counts.delete(key)
  }
}
