/** Finds keys by a text in them, or by their hash in logs: in breaks, as there may be a million, one search at a time. */
import type { BucketSettings } from '../../config/settings.js'
import type { ProxyContext } from '../../proxy/context.js'
import { addressKey } from '../../proxy/http/client-address.js'
import { readNetwork } from '../../proxy/http/meant-key.js'
import { hashedKey } from '../../proxy/routing/key.js'
import type { ListedKey } from '../fleet/fleet.js'
import { mergedBy, mergeInstances } from '../snapshot/merge-snapshots.js'
import type { InstanceSnapshot } from '../snapshot/snapshot.js'
import { bucketsOf } from './instance.js'
import type { ListedWaits } from './listed-waits.js'

/** Found keys of each bucket that are told. */
const TOLD = 20
/** After so many in a bucket it looks for no more there. */
const MANY = 500
/** Keys that are looked at between two breaks. To hash one takes longer. */
const AT_ONCE = { text: 2_000, hash: 200 }
/** Searches that wait for others. */
const MOST_WAITING = 16
const HASH = /^[0-9a-f]{12}$/

/** As `Snapshot` has buckets, those without a found key left out. */
export interface KeySearch {
  /** ms since 1970 */
  readonly at: number
  readonly buckets: readonly FoundKeys[]
}

interface FoundKeys {
  readonly name: string
  /** At most 20: those that are or begin with the text first, then the fullest. */
  readonly fullest: readonly InstanceSnapshot[]
  readonly hasMore: boolean
}

export class KeySearches {
  readonly #context: ProxyContext
  readonly #waits: ListedWaits
  #waiting = 0
  #last: Promise<unknown> = Promise.resolve()

  constructor(context: ProxyContext, waits: ListedWaits) {
    this.#context = context
    this.#waits = waits
  }

  /** @throws if too many searches wait */
  find(text: string): Promise<KeySearch> {
    if (this.#waiting >= MOST_WAITING) return Promise.reject(new Error('too many searches wait; try again'))
    this.#waiting += 1
    const search = this.#last
      .then(() => this.#find(text))
      .finally(() => {
        this.#waiting -= 1
      })
    this.#last = search.catch(() => undefined)
    return search
  }

  async #find(text: string): Promise<KeySearch> {
    const { clock, wallNow, bucketTable } = this.#context
    const wanted = text.toLowerCase()
    const test = keyTest(text)
    const list = this.#waits.list()
    const buckets: FoundKeys[] = []
    for (const settings of bucketsOf(this.#context)) {
      const found = await this.#keysOf(settings, test, HASH.test(text) ? AT_ONCE.hash : AT_ONCE.text)
      const now = clock.now()
      const ranked = found
        .flatMap(key => {
          const bucket = bucketTable.look(settings.name, key)
          return bucket === undefined ? [] : [{ key, bucket, rank: rankOf(key.toLowerCase(), wanted) }]
        })
        .sort((a, b) => b.rank - a.rank || b.bucket.occupancy(now) - a.bucket.occupancy(now))
      const fullest = ranked.slice(0, TOLD).map(({ key, bucket }) => list.add(settings, [key, bucket]))
      if (fullest.length > 0) buckets.push({ name: settings.name, fullest, hasMore: ranked.length > TOLD })
    }
    await list.fill()
    return { at: wallNow(), buckets }
  }

  async #keysOf({ name }: BucketSettings, test: (key: string) => boolean, atOnce: number): Promise<string[]> {
    const found = new Set<string>()
    let looked = 0
    for (const key of this.#context.bucketTable.keys(name)) {
      if (test(key)) found.add(key)
      if (found.size >= MANY) break
      looked += 1
      if (looked % atOnce === 0) await new Promise(setImmediate)
    }
    return [...found]
  }
}

/** A whole IPv6 address or network as keys have it. An address stands for its /64. Undefined: the text is neither. */
function networkText(text: string): string | undefined {
  const network = readNetwork(text)
  return network && addressKey(network.address, network.bits === 128 ? 64 : network.bits)
}

export function keyTest(text: string): (key: string) => boolean {
  const wanted = text.toLowerCase()
  const network = networkText(text)
  const matches = (key: string): boolean =>
    key.toLowerCase().includes(wanted) || (network !== undefined && key.includes(network))
  return HASH.test(text) ? key => hashedKey(key) === text || matches(key) : matches
}

export function withFoundElsewhere(search: KeySearch, found: readonly ListedKey[]): KeySearch {
  const buckets = found.map(({ bucket, instance }) => ({ name: bucket, fullest: [instance], hasMore: false }))
  return mergeSearches([search, { at: search.at, buckets }])
}

function rankOf(key: string, wanted: string): number {
  if (key === wanted) return 2
  return key.startsWith(wanted) ? 1 : 0
}

export function mergeSearches(parts: readonly KeySearch[]): KeySearch {
  const buckets = new Map<string, FoundKeys>()
  for (const { name, fullest, hasMore } of parts.flatMap(part => part.buckets)) {
    const known = buckets.get(name)
    const all = mergedBy([...(known?.fullest ?? []), ...fullest], ({ key }) => key, mergeInstances)
    buckets.set(name, {
      name,
      fullest: all.slice(0, TOLD),
      hasMore: hasMore || known?.hasMore === true || all.length > TOLD,
    })
  }
  return { at: Math.max(...parts.map(({ at }) => at)), buckets: [...buckets.values()] }
}
