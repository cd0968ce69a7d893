import { Socket } from 'node:net'
import type { ProxyContext } from '../context.js'
import { Exchange } from '../exchange/exchange.js'
import type { ClientAnswer, ClientRequest, RequestBody, WholeAnswer } from '../http/client.js'
import type { PeerAddress } from '../http/client-address.js'
import type { ClientConnection } from '../http/connection/client-connection.js'
import type { Reply } from '../http/reply.js'
import type { Route } from '../routing/route.js'

/** A request that a proxy asks for by gRPC. */
export interface AskedFor {
  readonly method: string
  /** With the query. */
  readonly target: string
  readonly host: string | undefined
  /** Names and values in turn, without Host and without those that frame a body. */
  readonly headers: readonly string[]
}

export interface GateVerdict extends WholeAnswer {
  /** It was rejected or has expired. Else what is not a 204 says that the request could not be decided on. */
  readonly isRejection: boolean
}

/** Only gates answer, and no byte of a client's comes here. */
const NO_SOCKET = new Socket()

/** A question by gRPC as an exchange of a gate. It has no connection of a client, and no body. */
export class AskedExchange extends Exchange {
  #isRejection = false

  constructor(context: ProxyContext, peer: PeerAddress, asked: AskedFor, decided: (verdict: GateVerdict) => void) {
    const answer = new CallAnswer(whole => decided({ ...whole, isRejection: this.#isRejection }))
    super(context, new CallConnection(peer), requestOf(asked), answer)
  }

  protected override get routes(): readonly Route[] {
    return super.routes.filter(({ settings }) => settings.gate !== undefined)
  }

  override turnedAway(outcome: 'rejected' | 'expired' | 'failed', reply: Reply): void {
    this.#isRejection = outcome !== 'failed'
    super.turnedAway(outcome, reply)
  }
}

function requestOf({ method, target, host, headers }: AskedFor): ClientRequest {
  const rawHeaders = host === undefined ? headers : ['Host', host, ...headers]
  return { method, url: target, httpVersionMinor: host === undefined ? 0 : 1, rawHeaders, complete: true }
}

/** One question at a time stands for a connection. */
class CallConnection implements ClientConnection {
  readonly socket = NO_SOCKET
  readonly encrypted = false
  readonly excess = false
  readonly unread = false
  readonly alone = false
  readonly full = false
  readonly isAhead = false
  readonly current = undefined
  readonly peer: string
  readonly peerKey: string

  constructor({ peer, peerKey }: PeerAddress) {
    this.peer = peer
    this.peerKey = peerKey
  }

  last(): void {}
  done(): void {}
  endConnection(): void {}
  cutOff(): void {}
  hangUp(): void {}
}

/** An answer of our own. No other is ever given. */
class CallAnswer implements ClientAnswer {
  statusCode = 200
  headersSent = false
  owner: ClientAnswer['owner'] = undefined
  readonly taken = 0
  readonly #send: (answer: WholeAnswer) => void

  constructor(send: (answer: WholeAnswer) => void) {
    this.#send = send
  }

  sendWhole(answer: WholeAnswer): void {
    this.statusCode = answer.status
    this.headersSent = true
    this.#send(answer)
    this.owner?.finished()
  }

  onceDrained(): void {}
  writeContinue(): void {}
  earlyHints(): void {}
  limitFlush(): void {}
  readRest(): void {}
  cut(): void {}

  openBody(): RequestBody {
    throw new Error('a question has no body')
  }

  start(): void {
    throw new Error('a gate forwards nothing')
  }

  data(): boolean {
    return true
  }

  complete(): void {}

  recall(): boolean {
    return false
  }
}
