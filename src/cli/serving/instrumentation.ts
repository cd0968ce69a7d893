/** What is counted of a proxy in this process, for its admin server or that of the workers' primary. */
import { performance } from 'node:perf_hooks'
import { Metrics } from '../../admin/counters/metrics.js'
import { watchStore } from '../../admin/counters/timed-store.js'
import { TrafficTally } from '../../admin/counters/traffic-tally.js'
import type { AdminSource } from '../../admin/http/server.js'
import { bucketsOf, resetInstance, storeTypeOf, takeSnapshot } from '../../admin/take-snapshot.js'
import type { Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { Store } from '../../core/store.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { Observer } from '../../proxy/observe/observer.js'

export interface Watch {
  readonly observers: readonly Observer[]
  /** The store to use in place of this one. */
  watched(store: Store): Store
  /** Where the proxy is that it watches: before its first request. */
  join(context: ProxyContext): AdminSource
}

export function createWatch(settings: Settings, clock: Clock): Watch {
  const wallNow = (): number => performance.timeOrigin + performance.now()
  const tally = new TrafficTally({ now: () => clock.now(), wallNow })
  let context: ProxyContext | undefined
  const metrics = new Metrics({
    tally,
    *keys() {
      for (const { name } of context === undefined ? [] : bucketsOf(context))
        yield [name, context!.bucketTable.size(name)]
    },
  })
  return {
    observers: [tally, metrics],
    watched: store => watchStore(store, clock, metrics),
    join(joined) {
      context = joined
      tally.join(joined.bucketTable)
      const options = { context: joined, tally, storeType: storeTypeOf(settings), wallNow }
      return {
        snapshot: async () => takeSnapshot(options),
        ready: async () => ({ draining: joined.draining, storeReady: joined.sharing?.ready ?? true }),
        metrics: async () => [await metrics.values()],
        reset: (bucket, key) => resetInstance(joined, bucket, key),
      }
    },
  }
}
