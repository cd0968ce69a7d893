/** Counts what a proxy in this process does, for the admin server of this process or of the primary, and for OpenTelemetry. */
import { randomUUID } from 'node:crypto'
import { performance } from 'node:perf_hooks'
import type { Meter } from '@opentelemetry/api'
import { cpuSeconds, Metrics, type ServerState, timedStore } from '../../admin/counters/metrics.js'
import { RecentRequests } from '../../admin/counters/recent-requests.js'
import { TrafficTally } from '../../admin/counters/traffic-tally.js'
import { recordHour, totalsOf } from '../../admin/fleet/hour.js'
import { type FleetMember, passedOf, startShowing } from '../../admin/fleet/member.js'
import { bucketsOf } from '../../admin/keys/instance.js'
import { createKeySource } from '../../admin/keys/key-source.js'
import { ListedWaits } from '../../admin/keys/listed-waits.js'
import type { AdminSource } from '../../admin/server.js'
import { storeTypeOf, takeSnapshot } from '../../admin/take-snapshot.js'
import type { Settings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { ProxyContext } from '../../proxy/context.js'
import type { Observer } from '../../proxy/observe/observer.js'
import type { Store } from '../../sharing/store.js'
import { instanceName } from './worker-protocol.js'

export interface Instrumentation {
  readonly observers: readonly Observer[]
  timed(store: Store): Store
  /** Undefined: there is no admin server. */
  join(context: ProxyContext): AdminSource | undefined
}

/** @param meter gets the metrics, too */
export function createInstrumentation(settings: Settings, clock: Clock, meter?: Meter): Instrumentation {
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
    deliveries: () => (context?.deliveries?.isUsed ? context.deliveries : undefined),
    waitingPages: () => context?.pageStreams.size ?? 0,
    *servers() {
      const found = new Map<string, ServerState>()
      const used = new Set(context?.routes.map(({ upstream }) => upstream))
      for (const upstream of context?.upstreams ?? []) {
        const { settings, servers, leaving } = upstream
        for (const server of [...servers, ...leaving]) {
          const { url, place, breaker, check } = server
          const key = JSON.stringify([settings.url, url])
          // Routes to one upstream may have different settings for it.
          const before = found.get(key)
          const isJudged = (breaker ?? check) !== undefined && used.has(upstream) && !leaving.includes(server)
          const isUp = isJudged ? place.isUp && before?.isUp !== false : before?.isUp
          found.set(key, {
            ...{ upstream: settings.url, server: url, isUp },
            inFlight: place.sent + (before?.inFlight ?? 0),
          })
        }
      }
      yield* found.values()
    },
    *limits() {
      for (const { limits } of context === undefined ? [] : bucketsOf(context)) yield context!.learned.limitsOf(limits)
    },
    outside: () => context?.keyLimits.all() ?? [],
    canReadKeys: () => context?.identity?.canReadKeys,
    meter,
  })
  return {
    observers: [tally, metrics, recent],
    timed: store => timedStore(store, clock, metrics),
    join(running) {
      context = running
      tally.join(running.bucketTable)
      if (settings.admin === undefined) return undefined
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
      const board = running.sharing?.store.board
      // The workers of one primary need not: it asks each of them.
      const present = options.storeType === 'memory' ? undefined : board
      if (present !== undefined) running.sharing!.beforeLeaving(startShowing(present, self))
      const later = (ms: number, run: () => void): void => void setTimeout(run, ms).unref()
      // A store that is closed shows nothing any more, and the timer holds no process.
      const hours = recordHour({ id, name, wallNow, later, board, totals: () => totalsOf(tally) })
      return {
        members: async () => [await self()],
        hours: async () => hours(),
        views: async kind => (await (kind === 'present' ? present : board)?.views(kind)) ?? [],
        snapshot: () => takeSnapshot(options),
        ready: async () => ({ draining: running.leaving, admits: running.sharing?.admits ?? true }),
        metrics: async () => [await metrics.values()],
        deliveries: async order => (running.deliveries?.isUsed ? running.deliveries.administer(order) : undefined),
        ...createKeySource({ context: running, recent, tally, waits, wallNow }),
      }
    },
  }
}
