/**
 * The servers of a Redis Cluster and their hash slots.
 *
 * ioredis has a client for clusters. It sends a command again when the connection breaks before the answer, and does not say
 * which server answered. But a cost must not be taken twice, and each server has a clock of its own.
 */
import type { RedisOptions } from 'ioredis'
import { keptIn } from '../../core/structures/maps.js'
import { HORIZON, StoreError } from '../../sharing/store.js'
import { inTime } from '../timing.js'
import { hashSlot, hashTag, REGISTRY, SLOTS } from './keys.js'
import {
  type Address,
  type NodeOptions,
  parseAddress,
  type Redirection,
  RedisNode,
  type Router,
  signal,
} from './link.js'

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
    const options = { ...this.#common, host, port }
    return keptIn(this.#nodes, name, () => new RedisNode({ name, options }, this.#options))
  }

  #lookSoon(delay: number): void {
    if (this.#looking || this.#closed) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#look(), delay)
    this.#timer.unref()
  }

  /** Asks all servers. The first answer counts, unless it names a master that is down and there is another. */
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
    this.#lookSoon(first !== undefined && this.#owners.every(node => node?.ready) ? WELL : AMISS)
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

/** The shards of a Redis Cluster. One is named after its first known master, also when a replica takes over. */
export class Shards {
  /** Another array once slots have moved. */
  names: readonly string[] = []
  /** By hash slot: the address of the master, and the shard. */
  #owners: readonly (string | undefined)[] = []
  #shards: readonly (string | undefined)[] = new Array(SLOTS).fill(undefined)
  /** By shard: the tag of its registry. */
  #registries: ReadonlyMap<string, string> = new Map()

  /** @param owners the address of the master of each slot */
  learn(owners: readonly (string | undefined)[]): void {
    const named = this.#nameMasters(owners)
    const shards = owners.map(owner => (owner === undefined ? undefined : named.get(owner)!))
    const isNews = shards.some((shard, slot) => shard !== this.#shards[slot])
    this.#owners = owners
    this.#shards = shards
    if (!isNews) return
    this.names = [...new Set(shards)].filter(shard => shard !== undefined)
    this.#registries = new Map(this.names.map(shard => [shard, registryOn(shard, shards)]))
  }

  #nameMasters(owners: readonly (string | undefined)[]): ReadonlyMap<string, string> {
    const masters = new Set(owners)
    const named = new Map<string, string>()
    for (const [slot, owner] of this.#owners.entries()) {
      if (owner !== undefined && masters.has(owner)) named.set(owner, this.#shards[slot]!)
    }
    const taken = new Set(named.values())
    for (const [slot, owner] of owners.entries()) {
      if (owner === undefined || named.has(owner)) continue
      const name = nameOfNew(owner, slot, this.#shards[slot], taken)
      named.set(owner, name)
      taken.add(name)
    }
    return named
  }

  /** The shard of a slot. Empty: it is not known. */
  nameOf(slot: number): string {
    return this.#shards[slot] ?? ''
  }

  registryOf(shard: string): string | undefined {
    return this.#registries.get(shard)
  }
}

/** The first registry that lives on a shard: all instances that know the same slots find the same one. */
function registryOn(shard: string, shards: readonly (string | undefined)[]): string {
  for (let number = 0; ; number += 1) {
    const tag = `${REGISTRY}${number}`
    if (shards[hashSlot(tag)] === shard) return tag
  }
}

/** A new master goes by the name of the shard that it takes over, if that has no other master now. */
function nameOfNew(owner: string, slot: number, before: string | undefined, taken: ReadonlySet<string>): string {
  if (before !== undefined && !taken.has(before)) return before
  return taken.has(owner) ? `${owner} (slot ${slot})` : owner
}
