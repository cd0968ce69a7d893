/**
 * The shards of a Redis Cluster: each is a master with its hash slots. A shard is named after its first known master, and
 * keeps the name when a replica takes over.
 */
import { hashSlot, REGISTRY, SLOTS } from './keys.js'

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
