/** Counts what a proxy in this process does, for the admin server of this process or of the primary. */
import { randomUUID } from 'node:crypto'
import { performance } from 'node:perf_hooks'
import { bucketsOf } from '../../admin/buckets-in-use.js'
import { Metrics } from '../../admin/counters/metrics.js'
import { RecentRequests } from '../../admin/counters/recent-requests.js'
import { timedStore } from '../../admin/counters/timed-store.js'
import { TrafficTally } from '../../admin/counters/traffic-tally.js'
import { type FleetMember, passedOf } from '../../admin/fleet/member.js'
import { recordHour } from '../../admin/fleet/record-hour.js'
import { startShowing } from '../../admin/fleet/show-self.js'
import { cpuSeconds, totalsOf } from '../../admin/fleet/totals.js'
import type { AdminSource } from '../../admin/http/server.js'
import { createKeySource } from '../../admin/keys/key-source.js'
import { ListedWaits } from '../../admin/keys/listed-waits.js'
import { storeTypeOf, takeSnapshot } from '../../admin/take-snapshot.js'
import type { Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { Store } from '../../core/store.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { Observer } from '../../proxy/observe/observer.js'
import { instanceName } from './instance-name.js'

export interface Instrumentation {
  readonly observers: readonly Observer[]
  /** The same store with its calls timed. */
  timed(store: Store): Store
  /** Sets the proxy to watch. Call it before the first request. */
  join(context: ProxyContext): AdminSource
}

export function createInstrumentation(settings: Settings, clock: Clock): Instrumentation {
  const wallNow = (): number => performance.timeOrigin + performance.now()
  const recent = new RecentRequests(wallNow)
  const tally = new TrafficTally({ now: () => clock.now(), wallNow })
  let context: ProxyContext | undefined
  const metrics = new Metrics({
    tally,
    *keys() {
      for (const { name } of context === undefined ? [] : bucketsOf(context))
        yield [name, context!.bucketTable.size(name)]
    },
    *waits() {
      const now = clock.now()
      for (const { name, waits } of context?.routes ?? [])
        yield { route: name, patience: waits.patience.usual(now), service: waits.service.usual }
    },
    waitingPages: () => context?.pageStreams.size ?? 0,
    *upstreams() {
      const isUp = new Map<string, boolean>()
      for (const { upstream } of context?.routes ?? []) {
        const { settings, breaker } = upstream
        // Routes to one upstream may have different settings for it.
        if (breaker !== undefined) isUp.set(settings.url, !breaker.isOpen && isUp.get(settings.url) !== false)
      }
      yield* isUp
    },
    *limits() {
      for (const { limits } of context === undefined ? [] : bucketsOf(context)) yield context!.learned.limitsOf(limits)
    },
  })
  return {
    observers: [tally, metrics, recent],
    timed: store => timedStore(store, clock, metrics),
    join(running) {
      context = running
      tally.join(running.bucketTable)
      const waits = new ListedWaits(running)
      const options = { context: running, tally, storeType: storeTypeOf(settings), waits, wallNow }
      const id = randomUUID()
      const name = instanceName()
      const self = async (): Promise<FleetMember> => {
        const snapshot = await takeSnapshot(options)
        return {
          id,
          name,
          age: 0,
          snapshot,
          passed: passedOf(snapshot.routes, ({ upstreamResponses }) => upstreamResponses['5xx']),
          cpu: cpuSeconds(),
        }
      }
      // A store that is closed shows nothing any more, and the timers hold no process.
      const board = running.sharing?.store.board
      // The workers of one primary need not: it asks each of them.
      const present = options.storeType === 'memory' ? undefined : board
      if (present !== undefined) startShowing(present, self)
      const later = (ms: number, run: () => void): void => void setTimeout(run, ms).unref()
      const hours = recordHour({ id, name, wallNow, later, board, totals: () => totalsOf(tally) })
      return {
        members: async () => [await self()],
        hours: async () => hours(),
        views: async kind => (await (kind === 'present' ? present : board)?.views(kind)) ?? [],
        snapshot: () => takeSnapshot(options),
        ready: async () => ({ draining: running.leaving, admits: running.sharing?.admits ?? true }),
        metrics: async () => [await metrics.values()],
        ...createKeySource({ context: running, recent, tally, waits, wallNow }),
      }
    },
  }
}
