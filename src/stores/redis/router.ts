/** Which server a bucket lives on. */
import type { StoreError } from '../../core/store.js'
import type { Address } from './address.js'
import { REGISTRY } from './keys.js'
import type { Manner, RedisNode } from './node.js'

export interface Router {
  /** Instances of equal numbers can be decided on in one step. */
  partitionOf(group: string): number
  /** The partition of other keys, by their tag. */
  partitionOfTag(tag: string): number
  /** The masters, by names that outlive them. As in `Store`. */
  readonly shards: readonly string[] | undefined
  shardOf(group: string): string
  /** The tag of the registry of instances at a shard. */
  registryOf(shard: string): string
  /** The server of a partition, if it is known. */
  find(partition: number): RedisNode | undefined
  /** Where news can be heard: at any of these. */
  readonly addresses: readonly Address[]
  /** Resolves when a server is known. Undefined: waiting is of no use. */
  readonly pending: Promise<void> | undefined
  /** How far ahead a slot may be claimed in a partition, in ms. */
  horizonOf(partition: number): number
  /** Why no server is known. */
  readonly error: StoreError
  /** A server says where to go instead (MOVED, ASK), or that it is not the one (READONLY, CLUSTERDOWN). */
  redirect(error: Error, partition: number, from: RedisNode): Redirection | undefined
  /** A call to a partition had no answer. */
  suspect(partition: number): void
  /** Writes to each server what `send` sends at once. */
  together(send: () => void): void
  close(): void
}

export interface Redirection extends Manner {
  readonly node: RedisNode
}

/** One server, or the master that Sentinels name. */
export class SingleRouter implements Router {
  readonly #node: RedisNode
  readonly pending = undefined
  readonly shards = undefined

  constructor(node: RedisNode) {
    this.#node = node
  }

  get addresses(): readonly Address[] {
    return [this.#node.address]
  }

  horizonOf(): number {
    return this.#node.horizon
  }

  get error(): StoreError {
    return this.#node.error
  }

  partitionOf(): number {
    return 0
  }

  partitionOfTag(): number {
    return 0
  }

  shardOf(): string {
    return ''
  }

  registryOf(): string {
    return REGISTRY
  }

  find(): RedisNode {
    return this.#node
  }

  /** A replica: there is another master, which Sentinels know. */
  redirect({ message }: Error): undefined {
    if (message.startsWith('READONLY')) this.#node.reconnect('it is a replica')
    return undefined
  }

  suspect(): void {
    this.#node.suspect()
  }

  together(send: () => void): void {
    this.#node.together(send)
  }

  close(): void {
    this.#node.close()
  }
}
