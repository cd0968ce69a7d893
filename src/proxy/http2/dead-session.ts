/**
 * Sessions that are over without an event. When the other side breaks a rule of the connection, nghttp2 sends a GOAWAY and takes
 * nothing more. Node 20 then stops reading the socket, so it sees no end of it, and tells nothing. So each session is looked at.
 */
import type { Http2Session } from 'node:http2'
import type { Deadlines, Watched } from '../deadlines.js'

/** ms between two looks at a session. */
export const LOOK = 1_000

/** The part of a session in C++. */
interface Handle {
  /** nghttp2 takes frames, or has some to send. Missing in the first versions of Node 20. */
  hasPendingData?(): boolean
}

interface WatchedSession {
  readonly http2: Http2Session
  /** A stream has no answer yet, so nghttp2 has to take or to send frames of it. */
  readonly hasUnanswered: boolean
  /** Called at each look. */
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

/** Destroys a session soon after it has died. Its timer runs outside of nghttp2: see `resetSoon`. */
export class DeadSessionWatch implements Watched {
  list: object | undefined = undefined
  previous: Watched | undefined = undefined
  next: Watched | undefined = undefined
  dueAt = 0
  readonly #session: WatchedSession
  readonly #looks: Deadlines

  /** @param looks deadlines of `LOOK` */
  constructor(session: WatchedSession, looks: Deadlines) {
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
