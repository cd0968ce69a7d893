import type { Socket } from 'node:net'
import { Watched } from '../deadlines.js'
import type { UploadBody } from '../http/client.js'
import { fieldLines, ProtocolError } from '../http/fields.js'
import type { Opens } from './opener.js'
import { type ResponseHead, ResponseParser, type ResponseSink } from './response-parser.js'

/** Methods whose requests have content, if only an empty one. */
const HAVE_CONTENT = new Set(['POST', 'PUT', 'PATCH'])

export interface UpstreamRequest {
  readonly method: string
  readonly target: string
  /** Names and values in turn. They go out as they are. */
  readonly headers: readonly string[]
  readonly body: UploadBody | null
  /** The length of the body that the headers tell. Undefined: they tell none. A body is then sent in chunks. */
  readonly contentLength: number | undefined
}

export interface SendingConnection {
  /** It had served a request before this one. So its end may be the close of an idle connection and not a failure. */
  readonly reused: boolean
  /** Ends the handler's request if it is still open. The handler hears nothing more. */
  abort(handler: ResponseHandler): void
  pause(handler: ResponseHandler): void
  resume(handler: ResponseHandler): void
}

/** What becomes of a request. The last call is `responseEnded` or `failed`; there is none after an abort. */
export interface ResponseHandler {
  /** The head is being written. @param connection to abort, pause and resume */
  sending(connection: SendingConnection): void
  /** The head has been written, after the request had waited for a connection. */
  sentLate(): void
  interim(status: number, fields: readonly string[]): void
  responseStarted(head: ResponseHead): void
  responseData(buffer: Buffer, from: number, to: number): void
  responseEnded(trailers: readonly string[]): void
  failed(error: Error): void
}

/** Sees to a request that another thread will write to the connection, or has written. */
interface WriteGuard {
  /** Something has happened to the connection. A request that has been written now gets its handler, by `adopt`. */
  onEvent(): void
  /** The descriptor is about to be closed. After this nobody writes to it. */
  beforeClose(): void
  /** The connection is of no use any more, and the request has not been written. */
  onLost(): void
}

export interface ConnectionOwner {
  /** Each connection takes one request only. The request says `Connection: close`. */
  readonly single: boolean
  /** It is open and has no request, or no more. */
  ready(connection: UpstreamConnection): void
  /** It has ended. `error`: why. Undefined: it was closed on purpose, or was idle. */
  closed(connection: UpstreamConnection, error: Error | undefined): void
}

export class UpstreamConnection extends Watched implements ResponseSink, SendingConnection {
  opened = false
  reused = false
  /** ms of the clock. It is not used for another request after this time. */
  usableUntil = Infinity
  /** ms of the clock. From then on it serves no other request. */
  oldAt = Infinity
  served = false
  onFree: (() => void) | undefined = undefined
  readonly #owner: ConnectionOwner
  readonly #socket: Socket
  readonly #parser = new ResponseParser(this)
  #handler: ResponseHandler | undefined
  #upload: Upload | undefined
  #guard: WriteGuard | undefined
  #closed = false
  #error: Error | undefined

  constructor(opener: Opens, owner: ConnectionOwner) {
    super()
    this.#owner = owner
    this.#socket = opener.open({
      onOpen: this.#onOpen,
      onRead: this.#read,
      beforeClose: () => this.#guard?.beforeClose(),
    })
    this.#socket.on('error', this.#onError).once('end', this.#onEnd).once('close', this.#onClose)
  }

  get keepAlive(): number | undefined {
    return this.#parser.keepAlive
  }

  get usable(): boolean {
    return this.opened && !this.#closed && this.#handler === undefined && this.#socket.writable
  }

  /**
   * What another thread writes to. The number is free for others after `beforeClose`. Undefined: it may not, as with TLS, or
   * while the end of an upload that was answered early still waits to be written.
   */
  get descriptor(): number | undefined {
    // Node does not declare this field. It is the same in Node 20, 22 and 24.
    const { fd = -1 } = (this.#socket as { _handle?: { readonly fd?: number } | null })._handle ?? {}
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

  guard(guard: WriteGuard | undefined): void {
    this.#guard = guard
  }

  adopt(method: string, handler: ResponseHandler, rest: string | undefined): void {
    this.#guard = undefined
    if (!this.#begin(method, handler)) return
    if (rest === undefined || this.#closed)
      process.nextTick(() => this.#handler === handler && this.#fail(disconnected()))
    else if (rest !== '') this.#socket.write(rest, 'latin1')
  }

  #begin(method: string, handler: ResponseHandler): boolean {
    this.#handler = handler
    this.reused = this.served
    this.served = true
    this.#parser.expect(method)
    handler.sending(this)
    return this.#handler === handler
  }

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

  close(): void {
    this.#settleGuard()
    this.#release()
    this.#parser.stop()
    this.#socket.destroy()
    if (this.#closed) return
    this.#closed = true
    this.#owner.closed(this, this.#error)
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
}

/** All that comes before the body. @param more further header lines */
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

class Upload {
  ended = false
  readonly #socket: Socket
  readonly #body: UploadBody
  readonly #chunked: boolean
  #starting = true
  #chunk: Buffer | undefined
  /** The body has ended, perhaps before its last piece was written. */
  #isLast = false
  #stopped = false

  /** Writes the head at once, with what the body has by now. @param framing `sized`: the head has a Content-Length */
  constructor(socket: Socket, head: string, body: UploadBody, framing: 'sized' | 'chunked') {
    this.#socket = socket
    this.#body = body
    this.#chunked = framing === 'chunked'
    socket.cork()
    socket.write(head, 'latin1')
    body.on('data', this.#take).once('end', this.#finish)
    socket.on('drain', this.#resume)
    // What the body has comes in the next tick, and its end in the tick after.
    process.nextTick(() => process.nextTick(this.#started))
  }

  stop(): void {
    this.#stopped = true
    this.#body.off('data', this.#take).off('end', this.#finish)
    this.#socket.off('drain', this.#resume)
  }

  readonly #started = (): void => {
    this.#starting = false
    this.#socket.uncork()
  }

  /**
   * Writes what comes with the head at once, and later pieces after all sockets have been read: a write to an upstream that
   * has answered early and closed ends the connection, and would lose that answer.
   */
  readonly #take = (chunk: Buffer): void => {
    if (this.#starting) return this.#write(chunk)
    this.#body.pause()
    this.#chunk = chunk
    setImmediate(this.#writeChunk)
  }

  readonly #writeChunk = (): void => {
    const chunk = this.#chunk!
    this.#chunk = undefined
    if (this.#stopped) return this.#body.written?.(chunk.length)
    this.#body.resume()
    this.#write(chunk)
    if (this.#isLast) this.#finish()
  }

  #write(chunk: Buffer): void {
    const socket = this.#socket
    // Also called if the connection ends before.
    const written = (): void => this.#body.written?.(chunk.length)
    let taken: boolean
    if (this.#chunked) {
      socket.cork()
      socket.write(`${chunk.length.toString(16)}\r\n`, 'latin1')
      socket.write(chunk, written)
      taken = socket.write('\r\n', 'latin1')
      socket.uncork()
    } else taken = socket.write(chunk, written)
    if (!taken) this.#body.pause()
  }

  readonly #resume = (): void => {
    if (this.#chunk === undefined) this.#body.resume()
  }

  readonly #finish = (): void => {
    this.#isLast = true
    if (this.#chunk !== undefined) return
    this.stop()
    this.ended = true
    if (this.#chunked) this.#socket.write('0\r\n\r\n', 'latin1')
  }
}
