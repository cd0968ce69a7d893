/** Answers about single keys of a running proxy, and changes to them. */
import { isIP } from 'node:net'
import type { BucketSettings } from '../../config/settings.js'
import type { ProxyContext } from '../../proxy/context.js'
import { addressKey, readAddress } from '../../proxy/http/client-address.js'
import { hashedKey } from '../../proxy/routing/key.js'
import { bucketsOf } from '../buckets-in-use.js'
import type { RecentRequests } from '../counters/recent-requests.js'
import { presentInstance } from './instance.js'
import { instanceState, type KeyState, type OverrideState, overrideState } from './key-state.js'
import type { ListedWaits } from './listed-waits.js'
import { newcomersOf } from './newcomer.js'
import { outlookOf, waitsOf } from './outlook.js'
import type { OverrideAnswer, OverrideChange } from './override-change.js'
import { type Reset, resetKey } from './reset.js'
import { type KeySearch, KeySearches } from './search.js'

/** The answers of one process, or of all workers together. */
export interface KeySource {
  /** Undefined: there is no such bucket. */
  key(bucket: string, key: string): Promise<KeyState | undefined>
  /** The keys with a text in them, or with this hash. */
  search(text: string): Promise<KeySearch>
  /** Undefined: there is no such bucket. */
  override(change: OverrideChange): Promise<OverrideAnswer | undefined>
  overrides(): Promise<readonly OverrideState[]>
  /**
   * Makes the bucket of a key as new but for who waits: what has passed is forgotten and a block ends. Undefined: there is no such
   * bucket.
   */
  reset(bucket: string, key: string): Promise<Reset | undefined>
}

export interface KeySourceOptions {
  readonly context: ProxyContext
  readonly recent: RecentRequests
  readonly waits: ListedWaits
  /** ms since 1970 */
  wallNow(): number
}

export function createKeySource({ context, recent, waits, wallNow }: KeySourceOptions): KeySource {
  const { bucketTable, overrides } = context
  const searches = new KeySearches(context, waits)
  const find = (name: string): BucketSettings | undefined => bucketsOf(context).find(bucket => bucket.name === name)
  return {
    async key(name, text) {
      const settings = find(name)
      if (settings === undefined) return undefined
      const key = keyOf(context, settings, text)
      const own = await presentInstance(context, settings, key)
      bucketTable.hold(own)
      try {
        const newcomers = newcomersOf(context, settings, key, own)
        const waits = await waitsOf(context, newcomers)
        const routes = newcomers.map((newcomer, place) => {
          return [newcomer.route.name, outlookOf(context, newcomer, waits[place]!)] as const
        })
        const override = overrides.find(name, key)
        return {
          ...{ at: wallNow(), bucket: name, hash: hashedKey(key) },
          ...instanceState(key, own, context.clock.now()),
          inFlight: own.inFlight,
          ...(override && { override: overrideState(override, wallNow()) }),
          predictedWaitMs: Math.max(0, ...routes.map(([, { predictedWaitMs }]) => predictedWaitMs)),
          routes: Object.fromEntries(routes),
          recent: recent.list(name, key),
        }
      } finally {
        bucketTable.rest(own)
      }
    },
    search: text => searches.find(text),
    async override(change) {
      const settings = find(change.bucket)
      if (settings === undefined) return undefined
      const { bucket, endsIn } = change
      const key = keyOf(context, settings, change.key)
      if (endsIn === 0) return { status: (await overrides.end(bucket, key)) ? 'ended' : 'absent' }
      const override = { ...change, key }
      const isSet = await overrides.set(override)
      return isSet ? { status: 'set', override: overrideState(override, wallNow()) } : { status: 'full' }
    },
    overrides: async () => overrides.list().map(override => overrideState(override, wallNow())),
    async reset(name, text) {
      const settings = find(name)
      return settings && resetKey(context, name, keyOf(context, settings, text))
    },
  }
}

/**
 * The key that is meant: an address may be written in any way, and stands for its network. With several parts they are separated by
 * line feeds.
 */
function keyOf({ bucketTable }: ProxyContext, { name, key: { parts, ipv6 } }: BucketSettings, text: string): string {
  if (bucketTable.look(name, text) !== undefined) return text
  const values = text.split('\n')
  if (values.length !== parts.length) return text
  const read = values.map((value, place) => {
    const address = parts[place]!.kind === 'ip' && isIP(value) !== 0 ? readAddress(value) : undefined
    return address === undefined ? value : addressKey(address, ipv6)
  })
  return read.join('\n')
}
