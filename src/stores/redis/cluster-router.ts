/**
 * The servers of a Redis Cluster and their hash slots.
 *
 * ioredis has a client for clusters. It sends a command again when the connection breaks before the answer, and does not say
 * which server answered. But a cost must not be taken twice, and each server has a clock of its own.
 */
import type { RedisOptions } from 'ioredis'
import { HORIZON, StoreError } from '../../core/store.js'
import { inTime } from '../in-time.js'
import { type Address, parseAddress } from './address.js'
import { hashSlot, hashTag, REGISTRY, SLOTS } from './keys.js'
import { type NodeOptions, RedisNode, signal } from './node.js'
import type { Redirection, Router } from './router.js'
import { Shards } from './shards.js'

/** ms between two looks at the cluster, while something is wrong and otherwise. */
const AMISS = 150
const WELL = 5_000
/** ms that a server may take to answer. */
const PATIENCE = 500
/** ms. A server that is no master any more is closed after this time: its answers may be on their way. */
const LINGER = 1_000

/** What CLUSTER SLOTS answers: from, to, and the servers, the master first: host, port, id. */
type SlotRange = [from: number, to: number, master: [host: Buffer | null, port: number], ...unknown[]]

export class ClusterRouter implements Router {
  readonly #seeds: readonly Address[]
  readonly #common: RedisOptions
  readonly #options: NodeOptions
  /** By host and port. */
  readonly #nodes = new Map<string, RedisNode>()
  readonly #owners: (RedisNode | undefined)[] = new Array(SLOTS).fill(undefined)
  /** Those that are no masters any more, each with the timer that closes it. */
  readonly #leaving = new Map<RedisNode, NodeJS.Timeout>()
  readonly #shards = new Shards()
  #known = signal()
  #looked: 'never' | 'in vain' | 'once' = 'never'
  #looking = false
  #timer: NodeJS.Timeout | undefined
  #closed = false

  /** @param urls of some of its servers. User, password and TLS are those of the first one. */
  constructor(urls: readonly string[], options: NodeOptions) {
    this.#seeds = urls.map(parseAddress)
    const { username, password, tls } = this.#seeds[0]!.options
    this.#common = { ...(username && { username }), ...(password && { password }), ...(tls && { tls }) }
    this.#options = { ...options, onChange: () => this.#lookSoon(0) }
    for (const { options: seed } of this.#seeds) this.#node(seed.host!, seed.port!)
  }

  get pending(): Promise<void> | undefined {
    return this.#looked === 'never' ? this.#known.promise : undefined
  }

  get addresses(): readonly Address[] {
    return Array.from(this.#nodes.values(), ({ address }) => address)
  }

  horizonOf(partition: number): number {
    return this.#owners[partition]?.horizon ?? HORIZON.least
  }

  get error(): StoreError {
    if (this.#closed) return new StoreError('the store is closed')
    const [node] = this.#nodes.values()
    const known = this.#looked === 'once' || node === undefined
    return known ? new StoreError('no server of the Redis Cluster has this slot') : node.error
  }

  partitionOf(group: string): number {
    return hashSlot(hashTag(group))
  }

  partitionOfTag(tag: string): number {
    return hashSlot(tag)
  }

  get shards(): readonly string[] {
    return this.#shards.names
  }

  shardOf(group: string): string {
    return this.#shards.nameOf(this.partitionOf(group))
  }

  /** While a shard is not known any registry will do. */
  registryOf(shard: string): string {
    return this.#shards.registryOf(shard) ?? REGISTRY
  }

  find(partition: number): RedisNode | undefined {
    return this.#owners[partition]
  }

  redirect({ message }: Error, partition: number, from: RedisNode): Redirection | undefined {
    const [kind, , address] = message.split(' ')
    if (kind !== 'MOVED' && kind !== 'ASK') {
      if (kind === 'READONLY' || kind === 'CLUSTERDOWN') this.#lookSoon(0)
      return undefined
    }
    const at = address!.lastIndexOf(':')
    const host = address!.slice(0, at)
    // Without a host it is the server that answers. IPv6 addresses have no brackets here.
    const node = this.#node(host === '' ? from.redis.options.host! : host, Number(address!.slice(at + 1)))
    if (kind === 'MOVED') {
      this.#owners[partition] = node
      this.#lookSoon(0)
    }
    return { node, asking: kind === 'ASK' }
  }

  suspect(partition: number): void {
    this.#owners[partition]?.suspect()
    this.#lookSoon(0)
  }

  together(send: () => void): void {
    let all = send
    for (const node of this.#nodes.values()) {
      const others = all
      all = () => node.together(others)
    }
    all()
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
    for (const node of this.#nodes.values()) node.close()
    for (const [node, timer] of this.#leaving) {
      clearTimeout(timer)
      node.close()
    }
    this.#nodes.clear()
    this.#leaving.clear()
    this.#known.raise()
  }

  #node(host: string, port: number): RedisNode {
    const name = `${host}:${port}`
    const known = this.#nodes.get(name)
    if (known !== undefined) return known
    const node = new RedisNode({ name, options: { ...this.#common, host, port } }, this.#options)
    this.#nodes.set(name, node)
    return node
  }

  #lookSoon(delay: number): void {
    if (this.#looking || this.#closed) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#look(), delay)
    this.#timer.unref()
  }

  /**
   * Asks all servers where the hash slots are. The first answer counts. After an election some servers still name the
   * master that is down: such an answer counts only if there is no other.
   */
  async #look(): Promise<void> {
    this.#looking = true
    const asked = [...this.#nodes.values()].filter(node => node.ready)
    const answers = asked.map(async node => ({ node, ranges: await slotsOf(node) }))
    const sound = answers.map(async answer => {
      const { node, ranges } = await answer
      if (ranges.some(range => this.#nodes.get(masterOf(range, node).name)?.down)) throw new Error('out of date')
      return answer
    })
    const first = await Promise.any(sound).catch(() => Promise.any(answers).catch(() => undefined))
    this.#looking = false
    if (this.#closed) return
    const someAreComing = [...this.#nodes.values()].some(node => node.pending !== undefined)
    if (first !== undefined) {
      this.#learn(first.ranges, first.node)
      this.#looked = 'once'
    } else if (this.#looked === 'never' && !someAreComing) this.#looked = 'in vain'
    if (this.#looked !== 'never') this.#known.raise()
    this.#lookSoon(first !== undefined && this.#isWell() ? WELL : AMISS)
  }

  #isWell(): boolean {
    return this.#owners.every(node => node?.ready)
  }

  #learn(ranges: readonly SlotRange[], from: RedisNode): void {
    const masters = new Set<RedisNode>()
    const owners: (RedisNode | undefined)[] = new Array(SLOTS).fill(undefined)
    for (const range of ranges) {
      const { host, port } = masterOf(range, from)
      const node = this.#node(host, port)
      masters.add(node)
      const [first, last] = range
      owners.fill(node, first, last + 1)
    }
    for (const [at, node] of owners.entries()) this.#owners[at] = node
    this.#shards.learn(owners.map(node => node?.name))
    for (const { options } of this.#seeds) masters.add(this.#node(options.host!, options.port!))
    for (const [name, node] of this.#nodes) {
      if (masters.has(node)) continue
      this.#nodes.delete(name)
      this.#leaving.set(node, setTimeout(() => this.#left(node), LINGER).unref())
    }
  }

  #left(node: RedisNode): void {
    this.#leaving.delete(node)
    node.close()
  }
}

/** The master of a range, as this server names it. Without a host it is the server itself. */
function masterOf([, , [host, port]]: SlotRange, from: RedisNode): { host: string; port: number; name: string } {
  const known = host === null || host.length === 0 ? from.redis.options.host! : host.toString()
  return { host: known, port, name: `${known}:${port}` }
}

/** @throws it does not answer, or not in time */
function slotsOf(node: RedisNode): Promise<readonly SlotRange[]> {
  const ask = () => node.redis.callBuffer('cluster', ['SLOTS']) as Promise<readonly SlotRange[]>
  return inTime(PATIENCE, () => new Error('no answer'), ask)
}
