import { type ClientHttp2Session, connect } from 'node:http2'
import type { TLSSocket } from 'node:tls'
import { Deadlines, Watched } from '../deadlines.js'
import { DeadSessionWatch, isDead, LOOK, MAX_SENT_HEAD } from '../http/http2.js'
import type { ResponseHandler, UpstreamRequest } from './http1-connection.js'
import { NO_LONGER_USED, Pool, type PoolOptions, type Waiting } from './http1-pool.js'
import { UpstreamStream } from './http2-stream.js'
import type { Opens } from './opener.js'

/** The code of a server that refuses HTTP/2 itself. */
const REFUSED_ALERT = 'ERR_SSL_ALERT_NO_APPLICATION_PROTOCOL'
/** Streams of a connection whose upstream has not said how many it takes. */
const USUAL_STREAMS = 100
/** Bytes that may come of an answer before any are taken, and of all answers of a connection that are on their way. */
const STREAM_WINDOW = 256 * 1024
const CONNECTION_WINDOW = 16 * 1024 * 1024
/** Bytes. The longest head, as over HTTP/1.1, and its fields. */
const MAX_HEAD = 64 * 1024
const MAX_FIELDS = 2_000

class Session extends Watched {
  opened = false
  served = false
  /** It takes no further stream. */
  isLeaving = false
  error: Error | undefined
  /** ms of the clock. From then on it takes no further stream. */
  readonly oldAt: number
  readonly http2: ClientHttp2Session
  readonly streams = new Set<UpstreamStream>()

  constructor(http2: ClientHttp2Session, oldAt: number) {
    super()
    this.http2 = http2
    this.oldAt = oldAt
    http2.on('goaway', (_code: number, last: number) => {
      this.isLeaving = true
      for (const stream of [...this.streams]) stream.leftOut(last)
    })
  }

  get hasRoom(): boolean {
    const { maxConcurrentStreams = USUAL_STREAMS } = this.http2.remoteSettings
    // Even of one that allows none, no further connection is opened for each request.
    const most = this.http2.pendingSettingsAck && !this.served ? USUAL_STREAMS : Math.max(1, maxConcurrentStreams)
    const isOpen = this.opened && !this.isLeaving && !this.http2.closed && !this.http2.destroyed
    return isOpen && this.streams.size < most && !isDead(this)
  }

  get hasUnanswered(): boolean {
    for (const stream of this.streams) if (stream.isUnanswered) return true
    return false
  }

  expired(): void {
    if (this.opened) return this.leave()
    this.error ??= Object.assign(new Error('the connection was not established in time'), { code: 'ETIMEDOUT' })
    this.http2.destroy()
  }

  leave(): void {
    this.isLeaving = true
    this.http2.close()
  }
}

/**
 * The connections to one upstream over HTTP/2. Each stream counts as a connection of the budget. A request takes the first
 * connection that has room for a stream. Without one it waits, first come, first served, and a connection is opened.
 */
export class Http2Pool extends Pool<Session> {
  readonly #url: string
  readonly #sessions = new Set<Session>()
  readonly #looks: Deadlines<DeadSessionWatch>
  #streams = 0

  /** @param url with its host, also of a Unix socket */
  constructor(url: string, options: PoolOptions) {
    super(options)
    this.#url = url
    this.#looks = new Deadlines(options.clock, LOOK)
  }

  get requests(): number {
    return this.waiting.size + this.#streams
  }

  /** As `ConnectionPool.send`. */
  send(request: UpstreamRequest, handler: ResponseHandler, onFree?: () => void): (() => void) | undefined {
    const session = this.waiting.size === 0 && this.budget.hasRoom ? this.#find() : undefined
    if (session === undefined) return this.wait(request, handler, onFree)
    this.#start(session, { request, handler, onFree })
    return undefined
  }

  keepNone(): void {
    this.keepsNone = true
    for (const session of [...this.#sessions]) if (session.streams.size === 0 && session.opened) session.leave()
  }

  change(opener: Opens): void {
    this.opener = opener
    for (const session of [...this.#sessions]) if (!session.served) session.http2.destroy()
    this.useRoom()
  }

  close(): void {
    this.isClosed = true
    this.budget.leave(this)
    for (const { streams, http2 } of [...this.#sessions]) {
      for (const stream of [...streams]) stream.drop()
      http2.destroy()
    }
    for (const each of [this.opening, this.idle, this.spare, this.#looks]) each.close()
    this.failWaiting(new Error(NO_LONGER_USED))
  }

  useRoom(): void {
    while (this.waiting.size > 0 && this.budget.hasRoom) {
      const session = this.#find()
      if (session === undefined) return this.#openForWaiting()
      const waiting = this.waiting.shift()!
      this.#start(session, waiting)
      waiting.handler.sentLate()
    }
  }

  closeUnused(): boolean {
    return false
  }

  #openForWaiting(): void {
    const each = this.options.keepAlive === 0 ? 1 : USUAL_STREAMS
    while (this.opening.size * each < this.waiting.size) this.#open()
  }

  #find(): Session | undefined {
    const now = this.clock.now()
    for (const session of this.#sessions) {
      if (session.hasRoom && (!session.served || (now < session.oldAt && this.options.keepAlive > 0))) return session
    }
    return undefined
  }

  #start(session: Session, { request, handler, onFree }: Pick<Waiting, 'request' | 'handler' | 'onFree'>): void {
    const { streams, served } = session
    const stream = new UpstreamStream(request, handler, served ? 'used' : 'new', () => {
      streams.delete(stream)
      this.#streams -= 1
      if (streams.size === 0) {
        const isOver = this.options.keepAlive === 0 || this.keepsNone || this.clock.now() >= session.oldAt
        if (isOver) session.leave()
        else if (!session.isLeaving) this.idle.watch(session)
      }
      this.budget.closed()
      onFree?.()
    })
    session.served = true
    streams.add(stream)
    this.#streams += 1
    this.idle.unwatch(session)
    this.spare.unwatch(session)
    this.budget.opened()
    stream.send(session.http2, new URL(this.#url).protocol.slice(0, -1))
  }

  #open(): void {
    const socket = this.opener.openHttp2()
    const http2 = connect(this.#url, {
      createConnection: () => socket,
      maxHeaderListPairs: MAX_FIELDS,
      maxSendHeaderBlockLength: MAX_SENT_HEAD,
      settings: { enablePush: false, initialWindowSize: STREAM_WINDOW, maxHeaderListSize: MAX_HEAD },
    })
    const session = new Session(http2, this.clock.now() + this.options.maxAge)
    this.#sessions.add(session)
    this.opening.watch(session)
    http2
      .on('error', error => {
        session.error ??= error
      })
      .once('connect', () => {
        if ('encrypted' in socket && (socket as TLSSocket).alpnProtocol !== 'h2') {
          session.error = Object.assign(new Error('the upstream does not speak HTTP/2'), { code: REFUSED_ALERT })
          return http2.destroy()
        }
        this.#opened(session)
      })
      .once('close', () => this.#ended(session))
  }

  #opened(session: Session): void {
    session.opened = true
    session.http2.setLocalWindowSize(CONNECTION_WINDOW)
    new DeadSessionWatch(session, this.#looks)
    this.opening.unwatch(session)
    this.spare.watch(session)
    this.useRoom()
  }

  #ended(session: Session): void {
    this.#sessions.delete(session)
    for (const each of [this.opening, this.idle, this.spare]) each.unwatch(session)
    if (this.isClosed) return
    const isLast = this.opening.size === 0 && this.#find() === undefined
    if (!session.opened && isLast) this.failWaiting(session.error ?? new Error('the upstream closed the connection'))
    else this.useRoom()
  }
}
