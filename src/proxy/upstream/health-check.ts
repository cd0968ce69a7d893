import type { HealthSettings } from '../../config/settings.js'
import type { Cancel } from '../../core/clock.js'
import { formatDuration } from '../../core/units.js'
import type { RequestFailure } from '../observe/observer.js'
import type { Breaker, Guarded } from './health.js'
import type { ResponseHandler, SendingConnection } from './http1-connection.js'
import type { ConnectionPool } from './http1-pool.js'
import type { Http2Pool } from './http2-pool.js'
import type { ResponseHead } from './response-parser.js'
import { describeError } from './upstream-error.js'

/**
 * A timer that is late by this, in ms: this process stood still, and the answer may lie here unread. It is given as long as
 * that to be read.
 */
const STALL = 20

interface CheckedServer extends Guarded {
  readonly authority: string
  readonly breaker: Breaker | undefined
  forsake(): void
}

/**
 * Asks a server regularly whether it is well (contract 14.3). `fall` failures in a row take it down, `rise` passes in a row bring
 * it up again. Checks are no requests: they pass no bucket and no gate, each on a connection of its own.
 */
export class HealthCheck {
  /** Why the last check failed. Undefined: it passed. */
  failure: RequestFailure | undefined
  /** Of the next check, in ms of the clock. */
  nextProbeAt = Infinity
  readonly sender: ConnectionPool | Http2Pool
  readonly #settings: HealthSettings
  readonly #server: CheckedServer
  #state: 'new' | 'checking' | 'closed' = 'new'
  /** Results in a row that are not those of the present state. */
  #others = 0
  #cancel: Cancel = () => false

  constructor(settings: HealthSettings, server: CheckedServer, sender: ConnectionPool | Http2Pool) {
    this.#settings = settings
    this.#server = server
    this.sender = sender
  }

  /** Begins to check. The first checks of many servers and instances are spread over an interval. */
  join(): void {
    if (this.#state !== 'new') return
    this.#state = 'checking'
    this.#planNext(this.#settings.interval * Math.random())
  }

  close(): void {
    this.#cancel()
    this.#state = 'closed'
    this.sender.close()
  }

  #planNext(after: number): void {
    const { clock } = this.#server
    this.nextProbeAt = clock.now() + after
    this.#cancel = clock.at(this.nextProbeAt, () => this.#ask())
  }

  #ask(): void {
    const { path, timeout, interval } = this.#settings
    const { authority, clock } = this.#server
    const startedAt = clock.now()
    let connection: SendingConnection | undefined
    let leave: (() => void) | undefined
    let isOver = false
    const finish = (failure: RequestFailure | undefined): void => {
      if (isOver) return
      isOver = true
      cancel()
      leave?.()
      connection?.abort(handler)
      if (this.#state === 'closed') return
      this.#planNext(Math.max(0, startedAt + interval - clock.now()))
      this.#found(failure)
    }
    let deadline = startedAt + timeout
    let cancel: Cancel
    const wait = (): void => {
      cancel = clock.at(deadline, () => {
        const late = clock.now() - deadline
        if (late < STALL)
          return finish({ detail: `its check ${path} was not answered within ${formatDuration(timeout)}` })
        deadline = clock.now() + Math.min(late, timeout)
        wait()
      })
    }
    wait()
    const handler: ResponseHandler = {
      sending: used => {
        leave = undefined
        connection = used
      },
      sentLate: () => undefined,
      interim: () => undefined,
      responseStarted: ({ status }: ResponseHead) => {
        const isGood = this.#settings.status.includes(status)
        finish(isGood ? undefined : { detail: `its check ${path} was answered ${status}` })
      },
      responseData: () => undefined,
      responseEnded: () => undefined,
      failed: error => finish({ detail: `its check ${path} failed: ${describeError(error)[1]}`, cause: error }),
    }
    const headers = ['Host', authority, 'User-Agent', 'shaper', 'Accept', '*/*']
    leave = this.sender.send({ method: 'GET', target: path, headers, body: null, contentLength: undefined }, handler)
  }

  #found(failure: RequestFailure | undefined): void {
    const { place, owner, url, breaker, warmUp } = this.#server
    const { rise, fall } = this.#settings
    this.failure = failure
    const isOther = place.isDown === (failure === undefined)
    this.#others = isOther ? this.#others + 1 : 0
    if (this.#others < (place.isDown ? rise : fall)) return
    this.#others = 0
    place.isDown = !place.isDown
    if (place.isDown) {
      owner.serverChanged(url, 'failing', failure)
      // Else they may still be answered here.
      if (!owner.isDown) this.#server.forsake()
      return
    }
    if (breaker?.isOpen) return breaker.startAnew()
    warmUp?.begin()
    owner.serverChanged(url, 'answering')
  }
}
