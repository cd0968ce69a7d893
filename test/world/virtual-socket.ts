/**
 * Two ends of a connection without a network: bytes arrive in pieces of any size, each after its time, and in order. A window is full until
 * the other end has read. A close, a reset and a write to who has gone do what they do over TCP.
 */
import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'
import type { Clock } from '../../src/core/clock.js'

export interface Line {
  readonly clock: Clock
  chance(): number
  /** ms that a piece takes. */
  delay(): number
  /** How likely a write is cut in two, each time. */
  readonly cuts: number
  /** Something happens: continuations are to run before time goes on. */
  stirred(): void
}

/** Bytes on the way and unread before a writer has to wait. */
const WINDOW = 16 * 1024

type Done = (error?: Error | null) => void

export class VirtualSocket extends Duplex {
  remoteAddress: string | undefined
  readonly remotePort = 1
  peer!: VirtualSocket
  /** Its process is gone: it hears nothing, and says nothing more. */
  isDead = false
  /** Sees what is written, at the moment of the write. */
  onWrite: ((text: string) => void) | undefined
  readonly #line: Line
  readonly #unread: (Buffer | null)[] = []
  #wants = false
  #lastDue = 0
  #onTheWay = 0
  #waiting: Done | undefined
  #isReset = false

  constructor(line: Line) {
    super({ allowHalfOpen: true })
    this.#line = line
  }

  override _read(): void {
    this.#wants = true
    this.#deliver()
  }

  override _write(chunk: Buffer, _encoding: string, done: Done): void {
    this.onWrite?.(chunk.toString('latin1'))
    for (let rest = chunk; rest.length > 0; ) {
      const isCut = rest.length > 1 && this.#line.chance() < this.#line.cuts
      const size = isCut ? 1 + Math.floor((rest.length - 1) * this.#line.chance()) : rest.length
      this.#send(rest.subarray(0, size))
      rest = rest.subarray(size)
    }
    if (this.#onTheWay < WINDOW) return done()
    this.#waiting = done
  }

  override _final(done: Done): void {
    this.#send(null)
    done()
  }

  override _destroy(error: Error | null, done: Done): void {
    this.#waiting = undefined
    if (this.#isReset) this.#after(() => this.peer.reset())
    else if (!this.writableFinished) this.#send(null)
    done(error)
  }

  destroySoon(): void {
    if (this.writable) this.end()
    if (this.writableFinished) this.destroy()
    else this.once('finish', () => this.destroy())
  }

  resetAndDestroy(): this {
    this.#isReset = true
    return this.destroy()
  }

  /** The other end has reset the connection. */
  reset(): void {
    if (this.destroyed || this.isDead) return
    this.#line.stirred()
    this.#isReset = false
    this.destroy(Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET' }))
  }

  /** Its process ends as by SIGKILL. */
  die(): void {
    this.isDead = true
    this.removeAllListeners()
    this.on('error', () => undefined)
    if (!this.destroyed) this.#after(() => this.peer.reset())
  }

  #send(piece: Buffer | null): void {
    if (this.isDead) return
    const bytes = piece?.length ?? 0
    // A writer may use its buffer again.
    const copy = piece === null ? null : Buffer.from(piece)
    this.#onTheWay += bytes
    this.#after(() => this.peer.#receive(copy))
  }

  /** Runs when what is sent now arrives. */
  #after(run: () => void): void {
    const { clock, delay } = this.#line
    this.#lastDue = Math.max(this.#lastDue, clock.now() + delay())
    clock.at(this.#lastDue, run)
  }

  #receive(piece: Buffer | null): void {
    if (this.isDead) return
    this.#line.stirred()
    if (this.destroyed) {
      if (piece !== null) this.#after(() => this.peer.reset())
      return
    }
    this.#unread.push(piece)
    this.#deliver()
  }

  #deliver(): void {
    while (this.#wants && this.#unread.length > 0) {
      const piece = this.#unread.shift()!
      this.#wants = piece === null ? false : this.push(piece)
      if (piece === null) this.push(null)
      else this.peer.#taken(piece.length)
    }
  }

  #taken(bytes: number): void {
    this.#onTheWay -= bytes
    const done = this.#waiting
    if (done === undefined || this.#onTheWay >= WINDOW) return
    this.#waiting = undefined
    this.#line.stirred()
    done()
  }
}

/** The ends of a new connection. */
export function connected(line: Line): [VirtualSocket, VirtualSocket] {
  const [one, other] = [new VirtualSocket(line), new VirtualSocket(line)]
  one.peer = other
  other.peer = one
  return [one, other]
}

/** As the proxy takes it: it uses no more of a socket than this has. */
export function asSocket(socket: VirtualSocket): Socket {
  return socket as unknown as Socket
}
