/** Answers about single keys of a running proxy, and changes to them. */
import { isAnyRate } from '../../config/derived/default-capacity.js'
import type { BucketSettings } from '../../config/settings.js'
import { defined } from '../../core/structures/defined.js'
import type { ProxyContext } from '../../proxy/context.js'
import { hashedKey } from '../../proxy/routing/key.js'
import type { Override } from '../../sharing/board.js'
import type { RecentRequests } from '../counters/recent-requests.js'
import type { TrafficTally } from '../counters/traffic-tally.js'
import type { WatchedSnapshot } from '../snapshot/snapshot.js'
import { bucketsOf, knownOrMeant, listedState, presentInstance, whyNoKey } from './instance.js'
import { instanceState, type KeyState, type OverrideState, overrideState } from './key-state.js'
import type { ListedWaits } from './listed-waits.js'
import { heldByAny, newcomersOf, outlookOf, waitsOf } from './newcomer.js'
import type { OverrideAnswer } from './override-change.js'
import { type Reset, resetKey } from './reset.js'
import { type KeySearch, KeySearches } from './search.js'

/** The answers of one process, or of all workers together. */
export interface KeySource {
  /** Why no request can have a key, and what to do. Undefined: one can, or there is no such bucket. */
  whyNoKey(bucket: string, key: string): Promise<string | undefined>
  key(bucket: string, key: string): Promise<KeyState | undefined>
  /** The requests of a key from now on. Undefined: there is no such bucket. */
  watch(bucket: string, key: string): Promise<WatchedSnapshot | undefined>
  /** The keys with a text in them, or with this hash. */
  search(text: string): Promise<KeySearch>
  override(change: Override): Promise<OverrideAnswer | undefined>
  overrides(): Promise<readonly OverrideState[]>
  /** Makes the bucket as new but for who waits. Undefined: there is no such bucket. */
  reset(bucket: string, key: string): Promise<Reset | undefined>
}

export interface KeySourceOptions {
  readonly context: ProxyContext
  readonly recent: RecentRequests
  readonly tally: TrafficTally
  readonly waits: ListedWaits
  /** ms since 1970, as fine as the clock of the proxy. */
  wallNow(): number
}

export function createKeySource({ context, recent, tally, waits, wallNow }: KeySourceOptions): KeySource {
  const { bucketTable, overrides } = context
  const searches = new KeySearches(context, waits)
  const find = (name: string): BucketSettings | undefined => bucketsOf(context).find(bucket => bucket.name === name)
  return {
    whyNoKey: async (name, text) => {
      const settings = find(name)
      const key = settings && knownOrMeant(context, settings, text)
      // One that came before a reload may be of another kind.
      return key === undefined || bucketTable.look(name, key) !== undefined ? undefined : whyNoKey(settings!, key)
    },
    async key(name, text) {
      const settings = find(name)
      if (settings === undefined) return undefined
      const key = knownOrMeant(context, settings, text)
      const own = await presentInstance(context, settings, key)
      bucketTable.hold(own)
      try {
        const newcomers = newcomersOf(context, settings, key, own)
        const waits = await waitsOf(context, newcomers)
        const routes = newcomers.map((newcomer, place) => {
          return [newcomer.route.name, outlookOf(context, newcomer, waits[place]!)] as const
        })
        const override = overrides.find(name, key)
        const { maxInFlight } = own.limits
        const heldBy = heldByAny(newcomers)
        return {
          ...{ at: wallNow(), bucket: name, hash: hashedKey(key) },
          ...(context.keyLimits.ownerOf(settings, key) && { outside: true as const }),
          ...instanceState(key, own, context.clock.now()),
          ...tally.oldestWaits([own]).of(own),
          inFlight: own.inFlight,
          ...defined({ maxInFlight, override: override && overrideState(override, wallNow()) }),
          ...(heldBy.length > 0 && { heldBy }),
          predictedWaitMs: Math.max(0, ...routes.map(([, { predictedWaitMs }]) => predictedWaitMs)),
          routes: Object.fromEntries(routes),
          recent: recent.list(name, key),
        }
      } finally {
        bucketTable.rest(own)
      }
    },
    async watch(name, text) {
      const settings = find(name)
      if (settings === undefined) return undefined
      const key = knownOrMeant(context, settings, text)
      const events = tally.watched.ask(name, key, context.clock.now())
      const own = await presentInstance(context, settings, key)
      const { offered, released, rejected } = events
      const instance = { ...listedState(context, name, [key, own]), ...tally.oldestWaits([own]).of(own) }
      return { bucket: name, instance, offered, released, rejected, focus: events.focus(key) }
    },
    search: text => searches.find(text),
    async override(change) {
      const settings = find(change.bucket)
      if (change.endsIn === 0) return endOverride(context, settings, change)
      if (settings === undefined) return undefined
      const key = knownOrMeant(context, settings, change.key)
      const detail = whyNoKey(settings, key) ?? whyNoLimits(settings, change)
      if (detail !== undefined) return { status: 'wrong', detail }
      const override = { ...change, key }
      const isSet = await overrides.set(override)
      return isSet ? { status: 'set', override: overrideState(override, wallNow()) } : { status: 'full' }
    },
    overrides: async () => overrides.list().map(override => overrideState(override, wallNow())),
    async reset(name, text) {
      const settings = find(name)
      return settings && resetKey(context, name, knownOrMeant(context, settings, text))
    },
  }
}

/** @param settings undefined: a reload may have taken its bucket away */
async function endOverride(
  context: ProxyContext,
  settings: BucketSettings | undefined,
  { bucket, key: text }: Override,
): Promise<OverrideAnswer | undefined> {
  const { overrides } = context
  const key = settings === undefined ? text : knownOrMeant(context, settings, text)
  if (settings === undefined && overrides.find(bucket, key) === undefined) return undefined
  if (await overrides.end(bucket, key)) return { status: 'ended' }
  const detail = settings && whyNoKey(settings, key)
  return detail === undefined ? { status: 'absent' } : { status: 'wrong', detail }
}

function whyNoLimits({ name, limits, quota }: BucketSettings, { rate }: Override): string | undefined {
  if (quota !== undefined)
    return rate === undefined ? undefined : `${name} is a quota, which has no rate; give "capacity", its limit, alone`
  if (rate !== undefined || !isAnyRate(limits)) return undefined
  return `${name} has no rate, so a capacity alone does nothing; give "rate" as well`
}
