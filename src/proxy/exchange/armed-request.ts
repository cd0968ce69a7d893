import type { ArmedSend, ReleasePlan } from '../../core/queue/lane.js'
import type { ArmedWrite, ArmedWrites } from '../../pacing/armed-writes.js'
import {
  type ResponseHandler,
  requestHead,
  type UpstreamConnection,
  type UpstreamRequest,
} from '../upstream/http1-connection.js'
import { ConnectionPool } from '../upstream/http1-pool.js'
import type { ServerUser, UpstreamServer } from '../upstream/upstream-server.js'

export interface ArmedOwner {
  /** It may have been sent: the core shall take note. */
  settle(): void
  lost(): void
}

/** A request that the pacing thread writes to an upstream connection at its slot. */
export class ArmedRequest implements ArmedSend {
  readonly slot: number
  readonly server: UpstreamServer
  readonly #user: ServerUser
  readonly #method: string
  readonly #text: string
  readonly #write: ArmedWrite
  readonly #pool: ConnectionPool
  readonly #owner: ArmedOwner
  #connection: UpstreamConnection | undefined
  #sentAt: number | undefined

  /** @returns undefined if there is no connection, no room, or no thread for it */
  static arm(
    writes: ArmedWrites,
    server: UpstreamServer,
    request: UpstreamRequest,
    { plan, owner, user }: { readonly plan: ReleasePlan; readonly owner: ArmedOwner; readonly user: ServerUser },
  ): ArmedRequest | undefined {
    const { pool } = server
    // Only a head of HTTP/1.1 is known before its slot.
    if (!(pool instanceof ConnectionPool)) return undefined
    const connection = pool.reserve(plan.slot)
    const descriptor = connection?.descriptor
    if (connection === undefined || descriptor === undefined) return undefined
    const text = requestHead(request)
    const before = plan.after as ArmedRequest | undefined
    const after = before === undefined ? undefined : before.#write
    const write = writes.arm({ text, descriptor, slot: plan.slot, latest: plan.latest, after })
    const parts = { slot: plan.slot, method: request.method, text, owner, server, user }
    if (write !== undefined) return new ArmedRequest(parts, write, pool, connection)
    pool.putBack(connection)
    return undefined
  }

  private constructor(
    parts: {
      readonly slot: number
      readonly method: string
      readonly text: string
      readonly owner: ArmedOwner
      readonly server: UpstreamServer
      readonly user: ServerUser
    },
    write: ArmedWrite,
    pool: ConnectionPool,
    connection: UpstreamConnection,
  ) {
    this.slot = parts.slot
    this.#method = parts.method
    this.#text = parts.text
    this.#owner = parts.owner
    this.server = parts.server
    this.#user = parts.user
    this.server.enter(this.#user, 'inFlight')
    this.server.place.armed += 1
    this.#write = write
    this.#pool = pool
    this.#connection = connection
    this.#connection.guard({
      onEvent: () => this.#owner.settle(),
      beforeClose: () => void this.#write.revoke(),
      // It may have been written in the last moment: then its handler has to hear from the connection that it ended.
      onLost: () => this.#owner.lost(),
    })
  }

  get sentAt(): number | undefined {
    this.#sentAt ??= this.#write.sentAt
    return this.#sentAt
  }

  revoke(): boolean {
    if (this.#write.revoke()) return true
    this.#sentAt ??= this.#write.sentAt ?? this.slot
    return false
  }

  adopt(handler: ResponseHandler): void {
    const connection = this.#connection!
    this.#connection = undefined
    this.server.place.armed -= 1
    const { result } = this.#write
    connection.adopt(this.#method, handler, result < 0 ? undefined : this.#text.slice(result))
  }

  /** It has been sent, and nobody wants the answer. */
  discard(): void {
    const connection = this.#connection
    this.#connection = undefined
    connection?.guard(undefined)
    connection?.close()
    if (connection !== undefined) this.#leave()
  }

  giveBack(): void {
    const connection = this.#connection
    this.#connection = undefined
    if (connection === undefined) return
    connection.guard(undefined)
    this.#pool.putBack(connection)
    this.#leave()
  }

  #leave(): void {
    this.server.place.armed -= 1
    this.server.leave(this.#user, 'inFlight')
  }

  close(): void {
    this.giveBack()
    this.#write.free()
  }
}
