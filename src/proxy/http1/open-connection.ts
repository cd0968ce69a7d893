import { connect, type Socket } from 'node:net'
import { type ConnectionOptions, type TLSSocket, connect as tlsConnect } from 'node:tls'

/** Where to connect to, and how. */
export interface ConnectOptions {
  readonly host: string
  readonly port: number
  /** Undefined: plain TCP. */
  readonly tls: Pick<ConnectionOptions, 'servername' | 'checkServerIdentity' | 'ca'> | undefined
}

/** Takes the bytes of `buffer` before `end`. The buffer is valid only during the call. */
export type BytesReader = (buffer: Buffer, end: number) => void

/** ms of silence before the first TCP keep-alive probe. */
const PROBE_AFTER = 60_000

/**
 * All plain connections read into it. What a read brings is used up before the next one, so nothing is allocated for
 * what stays in this process.
 */
const INPUT = Buffer.allocUnsafeSlow(64 * 1024)

/** Starts to open connections to one server. */
export class Opener {
  readonly #options: ConnectOptions
  /** Of the last TLS connection, to shorten the next handshake. */
  #session: Buffer | undefined

  constructor(options: ConnectOptions) {
    this.#options = options
  }

  /**
   * @param onOpen called when the connection, with TLS, is established
   * @param read called with the bytes that arrive
   */
  open(onOpen: () => void, read: BytesReader): Socket {
    const { host, port, tls } = this.#options
    const shared = { host, port, noDelay: true, keepAlive: true, keepAliveInitialDelay: PROBE_AFTER } as const
    if (tls === undefined) {
      const callback = (end: number): boolean => {
        read(INPUT, end)
        return true
      }
      return connect({ ...shared, onread: { buffer: INPUT, callback } }, onOpen)
    }
    const session = this.#session === undefined ? undefined : { session: this.#session }
    const options: ConnectionOptions = { ...shared, ...tls, ...session, ALPNProtocols: ['http/1.1'] }
    const socket: TLSSocket = tlsConnect(options, onOpen)
    socket.on('session', (received: Buffer) => {
      this.#session = received
    })
    return socket.on('data', (chunk: Buffer) => read(chunk, chunk.length))
  }
}
