import { connect, type LookupFunction, type NetConnectOpts, Socket, type SocketConstructorOpts } from 'node:net'
import { type ConnectionOptions, type TLSSocket, connect as tlsConnect } from 'node:tls'

export interface ServerAddress {
  readonly host: string
  readonly port: number
  /** Of a Unix socket. Then the connection goes there, and not to host and port. */
  readonly path?: string
}

export interface ConnectOptions extends ServerAddress {
  /** Resolves the host. The connection goes to an address that it finds. Absent: as the system does. */
  readonly lookup?: LookupFunction
  readonly tls: Pick<ConnectionOptions, 'servername' | 'checkServerIdentity' | 'ca' | 'cert' | 'key'> | undefined
}

/** Takes the bytes of `buffer` before `end`. The buffer is valid only during the call. */
type BytesReader = (buffer: Buffer, end: number) => void
const PROBE_AFTER = 60_000
/** All plain connections read into it. What a read brings is used up before the next one. */
const INPUT = Buffer.allocUnsafeSlow(64 * 1024)

/** A connection whose descriptor another thread may write to. */
class GuardedSocket extends Socket {
  readonly #beforeClose: () => void

  /** @param beforeClose called before the descriptor is closed, also when Node closes it by itself */
  constructor(options: NetConnectOpts, beforeClose: () => void) {
    super(options as SocketConstructorOpts)
    this.#beforeClose = beforeClose
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#beforeClose()
    super._destroy(error, callback)
  }
}

export interface SocketEvents {
  /** The connection, with TLS, is established. */
  onOpen(): void
  onRead: BytesReader
  /** Its descriptor is about to be closed. Not called with TLS, where nobody else writes. */
  beforeClose(): void
}

/** How connections to an upstream are opened. */
export interface Opens {
  /** Opens a connection for HTTP/2, to be read by another reader. */
  openHttp2(): Socket
  open(events: SocketEvents): Socket
}

export type OpenerOf = (options: ConnectOptions) => Opens

export class Opener implements Opens {
  readonly #options: ConnectOptions
  /** Of the last TLS connection, to shorten the next handshake. */
  #session: Buffer | undefined

  constructor(options: ConnectOptions) {
    this.#options = options
  }

  openHttp2(): Socket {
    const { tls, ...to } = this.#options
    const shared = { ...to, noDelay: true, keepAlive: true, keepAliveInitialDelay: PROBE_AFTER } as const
    return tls === undefined ? connect(shared) : this.#openTls({ ...shared, ...tls, ALPNProtocols: ['h2'] })
  }

  open({ onOpen, onRead: read, beforeClose }: SocketEvents): Socket {
    const { tls, ...to } = this.#options
    const shared = { ...to, noDelay: true, keepAlive: true, keepAliveInitialDelay: PROBE_AFTER } as const
    if (tls === undefined) {
      const callback = (end: number): boolean => {
        read(INPUT, end)
        return true
      }
      const options = { ...shared, onread: { buffer: INPUT, callback } }
      return new GuardedSocket(options, beforeClose).connect(options, onOpen)
    }
    const socket = this.#openTls({ ...shared, ...tls, ALPNProtocols: ['http/1.1'] })
    return socket.once('secureConnect', onOpen).on('data', (chunk: Buffer) => read(chunk, chunk.length))
  }

  #openTls(options: ConnectionOptions): TLSSocket {
    const session = this.#session === undefined ? undefined : { session: this.#session }
    const socket = tlsConnect({ ...options, ...session })
    return socket.on('session', (received: Buffer) => {
      this.#session = received
    })
  }
}
