/** What an exchange knows of its client. The server for clients implements it (`proxy/client`). */

import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'
import type { QueuedBucket } from '../../core/bucket/queued-bucket.js'
import type { Deadlines } from '../deadlines.js'
import type { Outcome } from '../observe/observer.js'
import type { PeerAddress } from './client-address.js'

export interface ClientRequest {
  readonly method: string
  readonly url: string
  readonly httpVersionMinor: 0 | 1
  readonly rawHeaders: readonly string[]
  readonly complete: boolean
  readonly isHttp2?: true
  /** It has a body whose length no header tells, nor that there is one, as over HTTP/2. */
  readonly unsized?: boolean
  /** It was stored, and is sent in its turn now. Absent: its client waits for the answer. */
  readonly stored?: StoredRequest
}

/** A request that was accepted to be sent later (src/deliver). */
export interface StoredRequest {
  readonly route: string
  /** What its token said when it was accepted. */
  readonly claims: ReadonlyMap<string, string>
  /** Whether it may still be sent. Asked at its release. */
  mayLeave(): boolean
  sent(): void
  /** @param isTried it was sent, or could not be sent to its upstream */
  ended(outcome: Outcome, fate: 'tried' | 'untried'): void
}

export interface UploadBody extends Readable {
  /** The connection has taken this many bytes that were read before, or it never will. */
  written?(bytes: number): void
  /** It may have to be sent again: keeps what is about to be read, if all of it has come. */
  keep?(): void
  forget?(): void
}

/** The body of a request on its way to the upstream. It is read from the client only as fast as it is taken. */
export interface RequestBody extends UploadBody {
  /** The upstream does not take what has come. */
  readonly held: boolean
  onProgress: () => void
  readonly whole: boolean
  /** All of it has come, or no more is read before some is taken. */
  readonly ready: boolean
  onReady: () => void
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

export interface AnswerHead {
  readonly status: number
  readonly reason: string
  readonly headers: readonly string[]
  /** Bytes of the body. 0: there is none, whatever the headers say. Undefined: its end is not known yet. */
  readonly length: number | undefined
  readonly ahead: number
  readonly client: string
}

export interface WholeAnswer {
  readonly status: number
  readonly reason: string
  /** Names and values in turn, Content-Length among them. */
  readonly headers: readonly string[]
  /** One byte for each character. */
  readonly body: string
}

export interface RenderedPage {
  /** One character for each byte of UTF-8. */
  readonly html: string
  readonly headers: readonly string[]
}

/** An answer of our own: a problem document (RFC 9457), or a page. */
export interface Reply {
  readonly status: number
  readonly detail: string
  /** The buckets that rejected the request. */
  readonly violated?: readonly QueuedBucket[]
  readonly retryAfterMs?: number | undefined
  readonly headers?: readonly string[]
  readonly close?: boolean
  /** Takes the place of the problem document. */
  readonly page?: RenderedPage
  /** It is not for what the client did: what is needed to serve it is away. */
  readonly outage?: boolean
}

export interface AnswerOwner {
  /** The socket has taken all of it. Called once. */
  answerSent(): void
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
  /** The body of the request, for one reader. @param client whose share of the buffers it counts in */
  openBody(client: string): RequestBody
  writeContinue(): void
  earlyHints(fields: readonly string[]): void
  /** Sends and ends an answer of our own, with a `Date`. Nothing has been sent before. */
  sendWhole(answer: WholeAnswer): void
  /** Closes the connection if the client does not take the answer in time. */
  limitFlush(deadlines: Deadlines): void
  /** Begins an answer that is passed on. The head waits a moment for a body, so that one write carries both. */
  start(head: AnswerHead): void
  /** Sends part of the body, or copies it. @returns false if the client takes less than it is sent */
  data(buffer: Buffer, from: number, to: number): boolean
  /** @param trailers names and values in turn; sent only if the body goes out in chunks */
  complete(trailers: readonly string[]): void
  /** Takes a started answer back. @returns false if part of it may have left */
  recall(): boolean
  /**
   * Ends the connection in the middle of an answer. The client cannot take what it has for a whole one.
   *
   * @param flush how long the client may take for what has come of the answer; undefined: what has not left is dropped.
   *   Over HTTP/1.0 it always is, because only a broken connection tells that the answer is not whole
   */
  cut(flush?: Deadlines): void
  /** Reads what the client still sends. Unread bytes would hide its next request, and a close could cost it this answer. */
  readRest(): void
}

export interface OpenConnection extends PeerAddress {
  readonly socket: Socket
  /** There are too many connections: its requests are answered 503. */
  excess: boolean
  readonly requests: readonly PipelinedRequest[]
  /** No further request is taken. */
  last(): void
  /** The server drains: it closes after its current request. Without one it closes soon, unless another one comes. */
  leave(): void
  /** Closes it if it has no request, or has only part of one. */
  endUnused(): void
}

/** Where a request comes from: a connection of HTTP/1.1, which handles one at a time, or a stream of HTTP/2. */
export interface ClientConnection extends PeerAddress {
  readonly socket: Socket
  readonly encrypted: boolean
  readonly excess: boolean
  /** Some of what the client sent is unread and may hide a hang-up. */
  readonly unread: boolean
  /** Nothing that has come waits behind the current request. */
  readonly alone: boolean
  readonly full: boolean
  /** The current request was sent before the one ahead of it had its answer. */
  readonly isAhead: boolean
  /** Counts the head of the current request in the buffers of its client. False: that holds too much. Over HTTP/2 only. */
  holdHead?(client: string): boolean
  /** The current answer is the last one. */
  last(): void
  /** The current request has been answered: the next may start. */
  done(): void
  /** Ends the connection. Reads and discards until the client ends it too, for a limited time. */
  endConnection(): void
  /** Ends it, and gives up its request. */
  hangUp(): void
}

export interface PipelinedRequest {
  readonly inFlight: boolean
  start(): void
  /** Ends it wherever it is: its client has hung up, or the server stops now. */
  end(why: 'hang-up' | 'shutdown'): void
  /** The rest of the request is malformed. @param reply the answer, unless it has one already */
  onMalformed(reply: Reply): void
}
