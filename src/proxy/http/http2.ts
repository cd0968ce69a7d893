/** Header fields between HTTP/1.1, as the rest of the program has them, and HTTP/2 (RFC 9113 8.2). */
import type { Http2Session, Http2Stream, OutgoingHttpHeaders } from 'node:http2'
import { type Deadlines, Watched } from '../deadlines.js'
import { NameSet } from './fields.js'

/** What HTTP/2 says in frames, and `te`, which speaks of the next hop only. Node throws at them. */
const OF_HTTP1 = new NameSet([
  'connection',
  'http2-settings',
  'keep-alive',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
])

/** Bytes of the longest head that we send. An upstream's head of HTTP/1.1 or a client's may be longer than Node's usual 64 kB. */
export const MAX_SENT_HEAD = 1024 * 1024
/** Node throws at any other name. */
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/
/** Fields whose lines cannot be joined. */
const LINES = new Set(['set-cookie', 'www-authenticate', 'proxy-authenticate'])

/**
 * The fields of an HTTP/2 message. Names become lower-case. Several lines of a name are joined (RFC 9110 5.3), because Node
 * refuses several lines of some.
 *
 * @param pseudo its pseudo-fields
 * @param fields names and values in turn
 */
export function http2Fields(pseudo: OutgoingHttpHeaders, fields: readonly string[]): OutgoingHttpHeaders {
  // A field may be called `constructor`.
  const to: OutgoingHttpHeaders = Object.assign(Object.create(null), pseudo)
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at]!.toLowerCase()
    if (OF_HTTP1.has(name) || !TOKEN.test(name)) continue
    const value = fields[at + 1]!
    const before = to[name]
    if (before === undefined) to[name] = LINES.has(name) ? [value] : value
    else if (Array.isArray(before)) before.push(value)
    else to[name] = `${before}${name === 'cookie' ? '; ' : ', '}${value}`
  }
  return to
}

/** The fields of a message without its pseudo-fields: names and values in turn. */
export function regularFields(raw: readonly string[]): string[] {
  const fields: string[] = []
  for (let at = 0; at < raw.length; at += 2) if (raw[at]![0] !== ':') fields.push(raw[at]!, raw[at + 1]!)
  return fields
}

/** The code of an error where the other side says that it has not processed a request, or has never got it. */
export const UNTAKEN = 'SHAPER_UNTAKEN'

/**
 * Resets a stream in the next turn of the event loop.
 *
 * Node tells of frames from within nghttp2, and a reset sends what waits. While nghttp2 closes another stream, it would send empty
 * frames of that one without end, or free it twice. Either ends the process.
 */
export function resetSoon(stream: Http2Stream, code: number): void {
  setImmediate(() => stream.close(code))
}

/** Resets a stream in the next turn, so that its end is not sent before. */
export function breakOffSoon(stream: Http2Stream, why: string): void {
  setImmediate(() => stream.destroy(new Error(why)))
}

/** ms between two looks at a session. */
export const LOOK = 1_000

/** The part of a session in C++: whether nghttp2 takes frames, or has some to send. The first versions of Node 20 lack it. */
interface Handle {
  hasPendingData?(): boolean
}

interface WatchedSession {
  readonly http2: Http2Session
  /** A stream has no answer yet, so nghttp2 has to take or to send frames of it. */
  readonly hasUnanswered: boolean
  looked?(): void
}

let handleKey: symbol | undefined

/** Node has no public name for it. */
function handleOf(session: Http2Session): Handle | undefined {
  handleKey ??= Object.getOwnPropertySymbols(session).find(({ description }) => description === 'kHandle')
  return handleKey === undefined ? undefined : (Reflect.get(session, handleKey) as Handle | undefined)
}

/** A session that closes is over once it has no streams, and what it has written may still be on its way. */
export function isDead(session: WatchedSession): boolean {
  const { http2 } = session
  if (http2.destroyed || (http2.closed && !session.hasUnanswered)) return false
  return handleOf(http2)?.hasPendingData?.() === false
}

/**
 * Sessions that are over without an event. When the other side breaks a rule of the connection, nghttp2 sends a GOAWAY and takes
 * nothing more. Node 20 then stops reading the socket, so it sees no end of it, and tells nothing. So each session is looked at.
 *
 * Destroys a session soon after it has died. Its timer runs outside of nghttp2: see `resetSoon`.
 */
export class DeadSessionWatch extends Watched {
  readonly #session: WatchedSession
  readonly #looks: Deadlines

  constructor(session: WatchedSession, looks: Deadlines) {
    super()
    this.#session = session
    this.#looks = looks
    looks.watch(this)
    session.http2.once('close', () => looks.unwatch(this))
  }

  expired(): void {
    const { http2 } = this.#session
    if (isDead(this.#session)) http2.destroy(new Error('the other side broke the rules of HTTP/2'))
    else if (!http2.destroyed) {
      this.#looks.watch(this)
      this.#session.looked?.()
    }
  }
}
