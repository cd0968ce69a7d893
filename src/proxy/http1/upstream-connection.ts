import type { Socket } from 'node:net'
import type { Watched } from '../deadlines.js'
import { fieldLines, ProtocolError } from './fields.js'
import type { Opener } from './open-connection.js'
import { type ResponseHead, ResponseParser, type ResponseSink } from './response-parser.js'
import { Upload, type UploadBody } from './upload.js'

/** Methods whose requests have content, if only an empty one. */
const HAVE_CONTENT = new Set(['POST', 'PUT', 'PATCH'])

/** A field that Node does not declare. It is the same in Node 20, 22 and 24. */
interface Undeclared {
  readonly _handle?: { readonly fd?: number } | null
}

/** A request to an upstream. */
export interface UpstreamRequest {
  readonly method: string
  readonly target: string
  /** Names and values in turn. They go out as they are. */
  readonly headers: readonly string[]
  /** Null: there is none. */
  readonly body: UploadBody | null
  /** The length of the body that the headers tell. Undefined: they tell none. A body is then sent in chunks. */
  readonly contentLength: number | undefined
}

/** What a request has been sent on. */
export interface SendingConnection {
  /** It had served a request before this one. So its end may be the close of an idle connection and not a failure. */
  readonly reused: boolean
  /** Ends the handler's request if it is still open. The handler hears nothing more. */
  abort(handler: ResponseHandler): void
  /** Stops reading the response of this handler's request. */
  pause(handler: ResponseHandler): void
  resume(handler: ResponseHandler): void
}

/** What becomes of a request. The last call is `responseEnded` or `failed`; there is none after an abort. */
export interface ResponseHandler {
  /**
   * The head is being written.
   *
   * @param connection to abort, pause and resume
   */
  sending(connection: SendingConnection): void
  /** The head has been written, after the request had waited for a connection. */
  sentLate(): void
  interim(status: number, fields: readonly string[]): void
  responseStarted(head: ResponseHead): void
  /** Part of the body. The buffer is valid only during the call. */
  responseData(buffer: Buffer, from: number, to: number): void
  responseEnded(trailers: readonly string[]): void
  failed(error: Error): void
}

/** Sees to a request that another thread will write to the connection, or has written. */
export interface WriteGuard {
  /** Something has happened to the connection. A request that has been written now gets its handler, by `adopt`. */
  onEvent(): void
  /** The descriptor is about to be closed. After this nobody writes to it. */
  beforeClose(): void
  /** The connection is of no use any more, and the request has not been written. */
  onLost(): void
}

/** What a connection tells its pool. */
export interface ConnectionOwner {
  /** Each connection takes one request only. The request says `Connection: close`. */
  readonly single: boolean
  /** It is open and has no request, or no more. */
  ready(connection: UpstreamConnection): void
  /** It has ended. `error`: why. Undefined: it was closed on purpose, or was idle. */
  closed(connection: UpstreamConnection, error: Error | undefined): void
}

/** One connection to an upstream over HTTP/1.1. It takes one request at a time. */
export class UpstreamConnection implements ResponseSink, SendingConnection, Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  /** It is established. */
  opened = false
  reused = false
  /** ms of the clock. It is not used for another request after this time. */
  usableUntil = Infinity
  /** ms of the clock. From then on it serves no other request. */
  oldAt = Infinity
  /** It has had a request. */
  served = false
  /** Called when its request does not need it any more. */
  onFree: (() => void) | undefined = undefined
  readonly #owner: ConnectionOwner
  readonly #socket: Socket
  readonly #parser = new ResponseParser(this)
  #handler: ResponseHandler | undefined
  #upload: Upload | undefined
  #guard: WriteGuard | undefined
  #closed = false
  #error: Error | undefined

  constructor(opener: Opener, owner: ConnectionOwner) {
    this.#owner = owner
    this.#socket = opener.open({
      onOpen: this.#onOpen,
      onRead: this.#read,
      beforeClose: () => this.#guard?.beforeClose(),
    })
    this.#socket.on('error', this.#onError).once('end', this.#onEnd).once('close', this.#onClose)
  }

  /** ms for which the upstream keeps the idle connection. Undefined: it has not said. */
  get keepAlive(): number | undefined {
    return this.#parser.keepAlive
  }

  /** It can take a request. */
  get usable(): boolean {
    return this.opened && !this.#closed && this.#handler === undefined && this.#socket.writable
  }

  /**
   * What another thread writes to. The number is free for others after `beforeClose`. Undefined: it may not, as with TLS, or
   * while the end of an upload that was answered early still waits to be written.
   */
  get descriptor(): number | undefined {
    const { fd = -1 } = (this.#socket as Undeclared)._handle ?? {}
    return fd < 0 || this.#socket.writableLength > 0 || 'encrypted' in this.#socket ? undefined : fd
  }

  send(request: UpstreamRequest, handler: ResponseHandler): void {
    const { body } = request
    if (!this.#begin(request.method, handler)) return
    const head = requestHead(request, this.#owner.single ? 'Connection: close\r\n' : '')
    if (body === null) this.#socket.write(head, 'latin1')
    else {
      this.#upload = new Upload(this.#socket, head, body, request.contentLength === undefined ? 'chunked' : 'sized')
    }
  }

  /** Another thread may write a request to it from now on. */
  guard(guard: WriteGuard | undefined): void {
    this.#guard = guard
  }

  /**
   * Takes over a request that another thread has written.
   *
   * @param rest what it could not write. Undefined: the connection was broken
   */
  adopt(method: string, handler: ResponseHandler, rest: string | undefined): void {
    this.#guard = undefined
    if (!this.#begin(method, handler)) return
    if (rest === undefined || this.#closed)
      process.nextTick(() => this.#handler === handler && this.#fail(disconnected()))
    else if (rest !== '') this.#socket.write(rest, 'latin1')
  }

  /** @returns false if the handler has given up at once */
  #begin(method: string, handler: ResponseHandler): boolean {
    this.#handler = handler
    this.reused = this.served
    this.served = true
    this.#parser.expect(method)
    handler.sending(this)
    return this.#handler === handler
  }

  /** Lets a guarded request that has been written be adopted. */
  #settleGuard(): void {
    this.#guard?.onEvent()
  }

  pause(handler: ResponseHandler): void {
    if (this.#handler === handler) this.#socket.pause()
  }

  resume(handler: ResponseHandler): void {
    if (this.#handler === handler) this.#socket.resume()
  }

  abort(handler: ResponseHandler): void {
    if (this.#handler === handler) this.close()
  }

  /** Ends the connection. The handler of an open request hears nothing more. */
  close(): void {
    this.#settleGuard()
    this.#release()
    this.#parser.stop()
    this.#socket.destroy()
    this.#tellClosed()
    const guard = this.#guard
    this.#guard = undefined
    guard?.onLost()
  }

  /** The connection was not established in time, or its deadline unused has passed. */
  expired(): void {
    if (!this.opened) {
      this.#error = Object.assign(new Error('the connection was not established in time'), { code: 'ETIMEDOUT' })
    }
    this.close()
  }

  interim(status: number, fields: readonly string[]): void {
    this.#handler!.interim(status, fields)
  }

  head(head: ResponseHead): void {
    this.#handler!.responseStarted(head)
  }

  body(buffer: Buffer, from: number, to: number): void {
    this.#handler!.responseData(buffer, from, to)
  }

  end(trailers: readonly string[]): void {
    const handler = this.#handler!
    const reusable =
      !this.#owner.single && this.#parser.persistent && (this.#upload === undefined || this.#upload.ended)
    this.#release()
    // The last piece may have been more than the client took.
    if (this.#socket.isPaused()) this.#socket.resume()
    // Before the handler, which may let the next request go: it shall find this connection.
    if (!reusable) this.oldAt = -Infinity
    this.#owner.ready(this)
    handler.responseEnded(trailers)
  }

  /** @returns the handler of the request that was open */
  #release(): ResponseHandler | undefined {
    const handler = this.#handler
    this.#handler = undefined
    this.#upload?.stop()
    this.#upload = undefined
    return handler
  }

  #fail(error: Error): void {
    this.#settleGuard()
    const handler = this.#release()
    this.#error ??= error
    this.close()
    handler?.failed(error)
  }

  readonly #onOpen = (): void => {
    if (this.#closed) return
    this.opened = true
    this.#owner.ready(this)
  }

  readonly #read = (buffer: Buffer, end: number): void => {
    this.#settleGuard()
    if (this.#closed) return
    try {
      this.#parser.read(buffer, end)
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error
      this.#fail(error)
    }
  }

  readonly #onEnd = (): void => {
    this.#settleGuard()
    if (this.#closed) return
    if (this.#parser.ended()) this.close()
    else this.#fail(disconnected())
  }

  readonly #onError = (error: Error): void => {
    if (!this.#closed) this.#fail(error)
  }

  readonly #onClose = (): void => {
    if (!this.#closed) this.#fail(disconnected())
  }

  #tellClosed(): void {
    if (this.#closed) return
    this.#closed = true
    this.#owner.closed(this, this.#error)
  }
}

/**
 * @param more further header lines
 * @returns all that comes before the body
 */
export function requestHead({ method, target, headers, body, contentLength }: UpstreamRequest, more = ''): string {
  let head = `${method} ${target} HTTP/1.1\r\n${fieldLines(headers)}${more}`
  // RFC 9110 8.6: some servers insist on a length.
  if (contentLength === undefined && body === null && HAVE_CONTENT.has(method)) head += 'Content-Length: 0\r\n'
  else if (contentLength === undefined && body !== null) head += 'Transfer-Encoding: chunked\r\n'
  return `${head}\r\n`
}

function disconnected(): Error {
  return Object.assign(new Error('the upstream closed the connection'), { code: 'ECONNRESET' })
}
