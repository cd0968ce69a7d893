import type { RequestSender } from '../http1/connection-pool.js'
import type { ResponseHandler, UpstreamRequest } from '../http1/upstream-connection.js'
import type { ConnectionLimit } from './connection-limit.js'

/** Sends requests that have no place in the gate: those of `off` routes, and dry runs. */
export class UngatedSender implements RequestSender {
  limit: ConnectionLimit
  readonly #pool: RequestSender

  constructor(pool: RequestSender, limit: ConnectionLimit) {
    this.#pool = pool
    this.limit = limit
  }

  send(request: UpstreamRequest, handler: ResponseHandler): (() => void) | undefined {
    const { limit } = this
    let waited = false
    let leavePool: (() => void) | undefined
    const leaveLimit = limit.enter(() => {
      leavePool = this.#pool.send(request, handler, limit.leave)
      if (waited && leavePool === undefined) handler.sentLate()
    })
    if (leaveLimit === undefined) return leavePool
    waited = true
    return () => {
      leaveLimit()
      leavePool?.()
    }
  }
}
