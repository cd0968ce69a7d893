/** What an exchange knows of its client. The server for clients implements it (`proxy/client`). */
import type { Deadlines } from '../deadlines.js'
import type { UploadBody } from '../http1/upload.js'

/** A request as it comes. */
export interface ClientRequest {
  readonly method: string
  /** The target, as it came. */
  readonly url: string
  /** The second number of HTTP/1.x. */
  readonly httpVersionMinor: 0 | 1
  /** Names and values in turn, as they came. */
  readonly rawHeaders: readonly string[]
  /** All of it has come. */
  readonly complete: boolean
  /** It came over HTTP/2. */
  readonly isHttp2?: true
  /** It has a body whose length no header tells, nor that there is one, as over HTTP/2. */
  readonly unsized?: boolean
}

/** The body of a request on its way to the upstream. It is read from the client only as fast as it is taken. */
export interface RequestBody extends UploadBody {
  /** The upstream does not take what has come. */
  readonly held: boolean
  /** Called when bytes have come from the client, and when the upstream's connection has taken some. */
  onProgress: () => void
  /** All of it has come. */
  readonly whole: boolean
  /** All of it has come, or no more is read before some is taken. */
  readonly ready: boolean
  /** Called when it becomes ready. */
  onReady: () => void
  /** Reads up to this many bytes before any are taken. */
  buffer(bytes: number): void
  /** What has come and was not taken, to be looked at only. */
  readonly pieces: readonly Uint8Array[]
  /**
   * Reads on where a hang-up may be hidden: until the body ends, enough has come, or nothing more comes at once. It
   * notices a reset at once. It notices a FIN only behind what it reads.
   *
   * @param done not called after a hang-up, which destroys the body
   */
  readAhead(done: () => void): void
  /** The same body from its beginning. Undefined: it was not kept. */
  again(): RequestBody | undefined
}

/** The head of an answer that is passed on. */
export interface AnswerHead {
  readonly status: number
  readonly reason: string
  /** Names and values in turn. */
  readonly headers: readonly string[]
  /** Bytes of the body. 0: there is none, whatever the headers say. Undefined: its end is not known yet. */
  readonly length: number | undefined
  /** Bytes that may be read ahead of the client. */
  readonly ahead: number
  /** The client, whose share of the buffers counts. */
  readonly client: string
}

/** An answer with a known length. */
export interface WholeAnswer {
  readonly status: number
  readonly reason: string
  /** Names and values in turn, Content-Length among them. */
  readonly headers: readonly string[]
  /** One byte for each character. */
  readonly body: string
}

/** Hears when an answer is over. */
export interface AnswerOwner {
  /** The socket has taken all of it. Called once. */
  finished(): void
  /** The client takes less of it than `limits.minBodyRate`. Its connection ends next. */
  takenTooSlowly(): void
}

/** The answer to one request: a whole one of our own, or one that is passed on in pieces. */
export interface ClientAnswer {
  readonly statusCode: number
  /** The head has been given to the connection, so there can be no other answer. */
  readonly headersSent: boolean
  owner: AnswerOwner | undefined
  /** Bytes that the client has taken, of all that its connection was given. 0 until something had to wait for it. */
  readonly taken: number
  /** Runs once when the client takes more again. To be called after `data` has returned false. */
  onceDrained(run: () => void): void
  /**
   * The body of the request, for one reader.
   *
   * @param client whose share of the buffers it counts in
   */
  openBody(client: string): RequestBody
  writeContinue(): void
  /**
   * Sends a 103 (RFC 8297), unless the client has unread data: it must not pile up.
   *
   * @param fields names and values in turn
   */
  earlyHints(fields: readonly string[]): void
  /** Sends and ends an answer of our own, with a `Date`. Nothing has been sent before. */
  sendWhole(answer: WholeAnswer): void
  /** Closes the connection if the client does not take the answer in time. */
  limitFlush(deadlines: Deadlines): void
  /** Begins an answer that is passed on. The head waits a moment for a body, so that one write carries both. */
  start(head: AnswerHead): void
  /**
   * Sends part of the body. The bytes are copied or sent before it returns.
   *
   * @returns false if the client takes less than it is sent
   */
  data(buffer: Buffer, from: number, to: number): boolean
  /** @param trailers names and values in turn; sent only if the body goes out in chunks */
  complete(trailers: readonly string[]): void
  /**
   * Takes a started answer back.
   *
   * @returns false if part of it may have left
   */
  recall(): boolean
  /**
   * Ends the connection in the middle of an answer. The client cannot take what it has for a whole one.
   *
   * @param flush how long the client may take for what has come of the answer; undefined: what has not left is dropped.
   *   Over HTTP/1.0 it always is, because only a broken connection tells that the answer is not whole
   */
  cut(flush?: Deadlines): void
  /**
   * Reads what the client still sends of its request. Unread bytes would hide its next request, and closing with unread
   * bytes would cost it this answer.
   */
  readRest(): void
}
