import type { ArmedSend, ReleasePlan } from '../../core/queue/lane.js'
import type { ArmedWrite, ArmedWrites } from '../../pacing/armed-writes.js'
import type { ConnectionPool } from '../http1/connection-pool.js'
import {
  type ResponseHandler,
  requestHead,
  type UpstreamConnection,
  type UpstreamRequest,
} from '../http1/upstream-connection.js'

/** What an armed request tells its owner. */
export interface ArmedOwner {
  /** It may have been sent: the core shall take note. */
  settle(): void
  /** Its connection has ended before it was sent. */
  lost(): void
}

/** A request that the pacing thread writes to an upstream connection at its slot. */
export class ArmedRequest implements ArmedSend {
  readonly slot: number
  readonly #method: string
  readonly #text: string
  readonly #write: ArmedWrite
  readonly #pool: ConnectionPool
  readonly #owner: ArmedOwner
  /** Undefined once it is adopted or given back. */
  #connection: UpstreamConnection | undefined
  #sentAt: number | undefined

  /** @returns undefined if there is no connection, no room, or no thread for it */
  static arm(
    writes: ArmedWrites,
    pool: ConnectionPool,
    request: UpstreamRequest,
    { plan, owner }: { readonly plan: ReleasePlan; readonly owner: ArmedOwner },
  ): ArmedRequest | undefined {
    const connection = pool.reserve(plan.slot)
    const descriptor = connection?.descriptor
    if (connection === undefined || descriptor === undefined) return undefined
    const text = requestHead(request)
    const before = plan.after as ArmedRequest | undefined
    const after = before === undefined ? undefined : before.#write
    const write = writes.arm({ text, descriptor, slot: plan.slot, latest: plan.latest, after })
    if (write !== undefined)
      return new ArmedRequest({ plan, owner, write, pool, connection, text, method: request.method })
    pool.putBack(connection)
    return undefined
  }

  private constructor(parts: {
    readonly plan: ReleasePlan
    readonly owner: ArmedOwner
    readonly write: ArmedWrite
    readonly pool: ConnectionPool
    readonly connection: UpstreamConnection
    readonly text: string
    readonly method: string
  }) {
    this.slot = parts.plan.slot
    this.#method = parts.method
    this.#text = parts.text
    this.#write = parts.write
    this.#pool = parts.pool
    this.#owner = parts.owner
    this.#connection = parts.connection
    this.#connection.guard({
      onEvent: () => this.#owner.settle(),
      beforeClose: () => void this.#write.revoke(),
      // It may have been written in the last moment: then its handler has to hear from the connection that it ended.
      onLost: () => this.#owner.lost(),
    })
  }

  /** When it was sent, in ms. Undefined: it was not, or not yet. */
  get sentAt(): number | undefined {
    this.#sentAt ??= this.#write.sentAt
    return this.#sentAt
  }

  revoke(): boolean {
    if (this.#write.revoke()) return true
    this.#sentAt ??= this.#write.sentAt ?? this.slot
    return false
  }

  /** It has been sent: the handler gets the answer. */
  adopt(handler: ResponseHandler): void {
    const connection = this.#connection!
    this.#connection = undefined
    const { result } = this.#write
    connection.adopt(this.#method, handler, result < 0 ? undefined : this.#text.slice(result))
  }

  /** It has been sent, and nobody wants the answer. */
  discard(): void {
    const connection = this.#connection
    this.#connection = undefined
    connection?.guard(undefined)
    connection?.close()
  }

  /** It was taken back: others may use its connection. */
  giveBack(): void {
    const connection = this.#connection
    this.#connection = undefined
    if (connection === undefined) return
    connection.guard(undefined)
    this.#pool.putBack(connection)
  }

  close(): void {
    this.giveBack()
    this.#write.free()
  }
}
