import type { Socket } from 'node:net'
import type { PeerAddress } from '../client-address.js'
import type { Reply } from '../reply.js'

/** A client's connection, as its server knows it. */
export interface OpenConnection extends PeerAddress {
  readonly socket: Socket
  /** There are too many connections: its requests are answered 503. */
  excess: boolean
  /** Its requests that are not answered yet. */
  readonly requests: readonly PipelinedRequest[]
  /** No further request is taken. */
  last(): void
  /** The server drains: it closes after its current request. Without one it closes soon, unless another one comes. */
  leave(): void
  /** Closes it if it has no request, or has only part of one. */
  endUnused(): void
}

/**
 * Where a request comes from: a connection that handles one at a time, however many the client sends ahead, or a stream of
 * HTTP/2.
 */
export interface ClientConnection extends PeerAddress {
  readonly socket: Socket
  readonly encrypted: boolean
  /** There are too many connections: its requests are answered 503. */
  readonly excess: boolean
  /** Some of what the client sent is unread and may hide a hang-up. */
  readonly unread: boolean
  /** Nothing that has come waits behind the current request. */
  readonly alone: boolean
  /** No further request is taken. */
  readonly full: boolean
  /** The current request was sent before the one ahead of it had its answer. */
  readonly isAhead: boolean
  readonly current: PipelinedRequest | undefined
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

/** A request that a connection handles in its turn. */
export interface PipelinedRequest {
  /** It is at the upstream. */
  readonly inFlight: boolean
  start(): void
  abandon(): void
  /**
   * The rest of the request is malformed.
   *
   * @param reply the answer, unless it has one already
   */
  onMalformed(reply: Reply): void
  /** The server stops now. */
  cutOff(): void
}
