import { STATUS_CODES } from 'node:http'
import { type ClientHttp2Session, type ClientHttp2Stream, constants, type OutgoingHttpHeaders } from 'node:http2'
import { Readable } from 'node:stream'
import type { UploadBody } from '../http/client.js'
import { ProtocolError } from '../http/fields.js'
import { http2Fields, regularFields, resetSoon, UNTAKEN } from '../http/http2.js'
import type { ResponseHandler, SendingConnection, UpstreamRequest } from './http1-connection.js'
import { ResponseFraming } from './response-parser.js'

const NONE: readonly string[] = []

export class UpstreamStream implements SendingConnection {
  readonly reused: boolean
  isUnanswered = true
  readonly #request: UpstreamRequest
  readonly #onOver: () => void
  #handler: ResponseHandler | undefined
  #stream: ClientHttp2Stream | undefined
  #trailers = NONE
  /** Bytes that are still to come. Undefined: it is not known. */
  #left: number | undefined
  #isWhole = false

  /**
   * @param session `used`: it has carried a request before
   * @param onOver called once, when it does not need its place any more, before the handler hears of the end
   */
  constructor(request: UpstreamRequest, handler: ResponseHandler, session: 'new' | 'used', onOver: () => void) {
    this.#request = request
    this.#handler = handler
    this.reused = session === 'used'
    this.#onOver = onOver
  }

  send(session: ClientHttp2Session, scheme: string): void {
    const handler = this.#handler!
    handler.sending(this)
    if (this.#handler !== handler) return
    const { body } = this.#request
    let stream: ClientHttp2Stream
    try {
      stream = session.request(this.#headers(scheme), { endStream: body === null })
    } catch (error) {
      const { message } = error as Error
      const isGone = session.closed || session.destroyed
      process.nextTick(() => this.#fail(isGone ? untaken(message) : disconnected(message)))
      return
    }
    this.#stream = stream
    // A reset without an error ends a stream as END_STREAM does (RFC 9113 8.1), but Node closes it first.
    stream.push = chunk => {
      if (chunk === null && !stream.closed) this.#isWhole = true
      return Readable.prototype.push.call(stream, chunk)
    }
    stream
      .on('headers', this.#onInterim)
      .once('response', this.#onResponse)
      .on('data', this.#onData)
      .once('trailers', (_headers, _flags, raw: readonly string[] = NONE) => {
        this.#trailers = regularFields(raw)
      })
      .once('end', this.#onEnd)
      .on('error', this.#onError)
      .once('close', () => this.#broken('the upstream closed the stream'))
    if (body !== null) this.#upload(stream, body)
  }

  #headers(scheme: string): OutgoingHttpHeaders {
    const { method, target, headers, contentLength, body } = this.#request
    const fields = http2Fields({ ':method': method, ':scheme': scheme, ':path': target }, headers)
    fields[':authority'] = fields.host
    delete fields.host
    // gRPC asks each hop whether trailers get through. They do.
    if (String(fields['content-type']).startsWith('application/grpc')) fields.te = 'trailers'
    if (body === null && contentLength === undefined) delete fields['content-length']
    return fields
  }

  #upload(stream: ClientHttp2Stream, body: UploadBody): void {
    body.keep?.()
    body.on('data', (chunk: Buffer) => {
      // Also called if the stream ends before.
      const isTaken = stream.write(chunk, () => body.written?.(chunk.length))
      if (!isTaken && !stream.destroyed) body.pause()
    })
    body.once('end', () => stream.end())
    stream.on('drain', () => body.resume())
  }

  pause(handler: ResponseHandler): void {
    if (this.#handler === handler) this.#stream?.pause()
  }

  resume(handler: ResponseHandler): void {
    if (this.#handler === handler) this.#stream?.resume()
  }

  abort(handler: ResponseHandler): void {
    if (this.#handler === handler) this.drop()
  }

  /** A GOAWAY says that no stream above `last` has been processed (RFC 9113 6.8). */
  leftOut(last: number): void {
    if (this.isUnanswered && (this.#stream?.id ?? 0) > last)
      this.#fail(untaken('the upstream ended the connection before this request'))
  }

  drop(): void {
    const stream = this.#stream
    if (this.#release() !== undefined && stream !== undefined) resetSoon(stream, constants.NGHTTP2_CANCEL)
  }

  #release(): ResponseHandler | undefined {
    const handler = this.#handler
    this.#handler = undefined
    if (handler !== undefined) this.#onOver()
    return handler
  }

  readonly #onInterim = (headers: { ':status'?: number }, _flags: number, raw: readonly string[] = NONE): void => {
    this.#handler?.interim(headers[':status'] ?? 0, regularFields(raw))
  }

  readonly #onResponse = ({ ':status': status = 0 }, flags: number, raw: readonly string[] = NONE): void => {
    this.isUnanswered = false
    this.#request.body?.forget?.()
    const fields = regularFields(raw)
    let length: number | undefined
    try {
      if (status < 200 || status > 599) throw new ProtocolError(`the status ${status}`)
      length = new ResponseFraming(fields, 'HTTP/1.1').length
    } catch (error) {
      return this.#fail(error as Error)
    }
    if ((flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0) length = 0
    this.#left = this.#request.method === 'HEAD' ? undefined : length
    this.#handler?.responseStarted({ status, reason: STATUS_CODES[status] ?? '', fields, length })
  }

  readonly #onData = (chunk: Buffer): void => {
    if (this.#left !== undefined) this.#left -= chunk.length
    this.#handler?.responseData(chunk, 0, chunk.length)
  }

  /** Trailers may be told in the same tick. */
  readonly #onEnd = (): void => {
    process.nextTick(() => {
      const stream = this.#stream!
      if (stream.rstCode || !this.#isWhole || (this.#left ?? 0) > 0)
        return this.#broken('the upstream reset the stream')
      const handler = this.#release()
      // It has answered early and wants no more of the body.
      if (!stream.writableEnded) resetSoon(stream, constants.NGHTTP2_NO_ERROR)
      handler?.responseEnded(this.#trailers)
    })
  }

  readonly #onError = (error: Error & { code?: string }): void => {
    const isReset = error.code === undefined || error.code.startsWith('ERR_HTTP2')
    if (isReset) this.#broken(error.message)
    else this.#fail(error)
  }

  /** It ends without a whole answer. One that was refused before an answer has not been processed (RFC 9113 8.7). */
  #broken(message: string): void {
    const isRefused = this.isUnanswered && this.#stream?.rstCode === constants.NGHTTP2_REFUSED_STREAM
    this.#fail(isRefused ? untaken(message) : disconnected(message))
  }

  #fail(error: Error): void {
    const handler = this.#release()
    if (this.#stream !== undefined) resetSoon(this.#stream, constants.NGHTTP2_CANCEL)
    handler?.failed(error)
  }
}

function untaken(message: string): Error {
  return Object.assign(new Error(message), { code: UNTAKEN })
}

function disconnected(message: string): Error {
  return Object.assign(new Error(message), { code: 'ECONNRESET' })
}
