/** The proxy as a whole: its parts, its reload and its shutdown. */

import { randomUUID } from 'node:crypto'
import { readKeyPair } from '../../config/checks/readable-files.js'
import { routeKey, withEgressRoutes } from '../../config/egress-routes.js'
import { presentRates } from '../../config/schedule.js'
import type { Settings } from '../../config/settings.js'
import { groupsOf } from '../../config/store-groups.js'
import { BucketTable } from '../../core/bucket-table.js'
import type { Clock } from '../../core/clock.js'
import { Shaper } from '../../core/shaper.js'
import type { OnOutage } from '../../core/shared-shaper.js'
import { type Store, StoreError } from '../../core/store.js'
import { startListening, urlOf } from '../../http/listening.js'
import type { Pacer } from '../../pacing/pacer.js'
import type { LeastInstances } from '../../sharing/headcount.js'
import { Sharing } from '../../sharing/sharing.js'
import { createOwnServer } from '../client/own-server.js'
import type { ProxyContext } from '../context.js'
import { Deadlines } from '../deadlines.js'
import { Egress, type ResolveName } from '../egress/egress.js'
import { BodyLimits } from '../exchange/body-limits.js'
import { OpenBodies } from '../exchange/open-bodies.js'
import { createTrust } from '../http/client-address.js'
import { ByteBudget } from '../http/connection/byte-budget.js'
import { LINGER } from '../http/connection/linger.js'
import { createId, Via } from '../http/via.js'
import { LearnedLimits } from '../learned-limits.js'
import { applyAdapted, applyLearned, applyLimits } from '../live-limits.js'
import type { Observer } from '../observe/observer.js'
import type { Propagate } from '../observe/propagate.js'
import { createRoutes, type Route } from '../routing/route.js'
import { Timetable } from '../timetable.js'
import { SharedAdaptive } from '../upstream/shared-adaptive.js'
import { Upstreams } from '../upstream/upstreams.js'

/** ms that a client may leave our own answer unread. */
const FLUSH = 60_000

export interface RunningProxy {
  /** `http://host:port` */
  readonly url: string
  readonly context: ProxyContext
  /** Stops accepting and goes on serving. Each connection closes after its current request. */
  leave(): void
  /**
   * Stops accepting and lets queued and running requests finish for up to `timeout` ms. The rest are answered 503.
   * Resolves when every connection is closed. Another call returns the same promise.
   */
  drain(timeout: number): Promise<void>
  /**
   * Puts another configuration into effect. If it throws, nothing has changed. Waiting requests keep their order and
   * leave at the new rates; levels stay. `listen` and `maxHeaderSize` stay as they were. The files of certificates,
   * keys and authorities are read again, for new connections.
   *
   * @returns how many waiting requests were answered 503 because they would now exceed their `maxWait`, by route
   * @throws if a certificate, key or authority cannot be read
   */
  reload(settings: Settings): Promise<Map<string, number>>
}

export interface ProxyOptions {
  readonly settings: Settings
  /** Paces releases. */
  readonly pacer: Pacer
  /** For timeouts. A few ms do not matter here. */
  readonly clock: Clock
  /** ms since 1970, for times of day and dates in headers. Default: that of the system. */
  readonly wallNow?: () => number
  readonly observer?: Observer
  /** Resolves names for egress. Default: as the system does. */
  readonly resolveName?: ResolveName
  readonly propagate?: Propagate | undefined
  /** The program's id in `Via`. Default: a new one. */
  readonly id?: string
  /** The store that instances share. Undefined: memory. */
  readonly shared?: { readonly store: Store; readonly onOutage: OnOutage; readonly least?: LeastInstances }
}

/**
 * @throws if the address cannot be listened on, if a certificate cannot be read, or if the store does not answer and
 *   `onOutage` is `closed`
 */
export async function startProxy(options: ProxyOptions): Promise<RunningProxy> {
  const { pacer, clock, wallNow = Date.now, observer = {}, id = createId(), shared } = options
  const settings = withEgressRoutes(options.settings)
  const egress = settings.egress && new Egress(settings.egress, options.resolveName)
  const { tls } = settings.listen
  let pair = tls && readKeyPair(tls)
  const clients = createOwnServer(settings, pair, clock)
  const upstreams = new Upstreams({
    clock,
    now: () => pacer.now(),
    wake: gate => context.shaper.wake(gate),
    adapted: limit => applyAdapted(context, limit),
    adaptiveFound: limit => sharedAdaptive?.tell(limit),
    isShared: shared !== undefined,
    lookupFor: egress && (port => egress.lookupFor(port)),
  })
  const adaptiveLimits = () => [...upstreams].flatMap(({ adaptive }) => adaptive ?? [])
  const sharedAdaptive = shared && new SharedAdaptive(shared.store, adaptiveLimits)
  const prepare = async (next: Settings): Promise<(present: Settings) => Route[]> => {
    const prepared = await upstreams.prepare(next.routes)
    return present => {
      upstreams.commit(prepared)
      for (const { quota, breaker, warmUp } of upstreams) {
        quota?.join(context)
        breaker?.join(context)
        warmUp?.join(pacer, () => applyLearned(context, upstream => upstream.warmUp === warmUp))
      }
      return createRoutes(present.routes, key => prepared.byRoute.get(key)!, context.routes)
    }
  }
  const timetable = new Timetable({
    clock,
    wallNow,
    changed(present) {
      context.shaper.control.recall()
      const before = new Map(context.routes.map(route => [routeKey(route.settings), route.upstream]))
      context.routes = createRoutes(present.routes, key => before.get(key)!, context.routes)
      const expired = applyLimits(context, present, upstreams)
      observer.rescheduled?.(presentRates(present, wallNow()), expired)
    },
  })
  /** The last ones are in use. */
  const allBodyLimits = [new BodyLimits(clock, settings.limits)]
  let drained = (): void => undefined
  const sharing =
    shared &&
    new Sharing({
      ...shared,
      clock,
      id: randomUUID(),
      changed: news => observer.shared?.(news),
    })
  const context: ProxyContext = {
    clock: pacer,
    wallNow,
    shaper: new Shaper({
      clock: pacer,
      maxQueued: settings.limits.maxQueued,
      ...(pacer.writes && { timer: clock }),
      ...(sharing && { store: sharing.store, unanswered: (stack, askedAt) => sharing.unanswered(stack, askedAt) }),
    }),
    bucketTable: new BucketTable(
      settings.limits.maxKeys,
      sharing && ((limits, key) => sharing.createBucket(limits, key)),
    ),
    sharing,
    learned: new LearnedLimits(),
    rateLearned: quota => applyLearned(context, upstream => upstream.quota === quota),
    routes: [],
    egress,
    trust: createTrust(settings.trustProxy),
    via: new Via(id),
    observer,
    propagate: options.propagate,
    bodyBytes: new ByteBudget(settings.limits.bufferMemory),
    bodyLimits: allBodyLimits[0]!,
    openBodies: new OpenBodies(),
    linger: { silence: new Deadlines(clock, LINGER.silence), total: new Deadlines(clock, LINGER.total) },
    flush: new Deadlines(clock, FLUSH),
    maxConnections: settings.limits.maxConnections,
    connectionsPerClient: settings.limits.connectionsPerClient,
    tunnelIdleTimeout: settings.limits.tunnelIdleTimeout,
    leaving: false,
    draining: false,
    inProgress: 0,
    idle: () => drained(),
  }
  if (pacer.writes !== undefined) pacer.writes.onNews = () => context.shaper.wake()
  const commitFirst = await prepare(settings)
  context.routes = commitFirst(timetable.follow(settings))
  context.learned.adjust(context.routes)
  clients.accept(context)
  const { server, connections } = clients
  const close = async (): Promise<void> => {
    context.linger.silence.close()
    context.linger.total.close()
    for (const limits of allBodyLimits) limits.close()
    timetable.close()
    context.shaper.control.close()
    context.flush.close()
    sharedAdaptive?.close()
    await Promise.all([upstreams.close(), sharing?.close()])
  }
  sharing?.group(groupsOf(settings.routes))
  const joined = await sharing?.join({
    shaper: context.shaper,
    clock: pacer,
    buckets: () => context.bucketTable.all(),
    peek: (name, key) => context.bucketTable.peek(name, key),
    gates: () => [...upstreams].map(upstream => upstream.gate),
  })
  sharedAdaptive?.join()
  if (joined === false && shared?.onOutage === 'closed') {
    await close()
    throw new StoreError('the store does not answer')
  }
  await startListening(server, settings.listen).catch(async error => {
    await close()
    throw error
  })

  const leave = (): void => {
    if (context.leaving) return
    context.leaving = true
    clients.leave()
  }
  const drain = async (timeout: number): Promise<void> => {
    context.leaving = true
    context.draining = true
    const closed = clients.close()
    await new Promise<void>(resolve => {
      const cancel = clock.at(clock.now() + timeout, resolve)
      drained = () => {
        cancel()
        resolve()
      }
      if (context.inProgress === 0) drained()
    })
    // Waiting requests first: a place in flight that becomes free now must not release one of them.
    const inFlight = new Set([...connections].filter(({ current }) => current?.inFlight))
    for (const connection of connections) if (!inFlight.has(connection)) connection.cutOff()
    for (const connection of inFlight) connection.cutOff()
    // Answers just given are written before their connections close.
    const cancel = clock.at(clock.now() + LINGER.silence, () => {
      for (const { socket } of connections) socket.destroy()
    })
    for (const connection of connections) if (connection.current === undefined) connection.socket.destroySoon()
    await closed
    cancel()
    await close()
  }
  let draining: Promise<void> | undefined
  return {
    url: urlOf(server),
    context,
    leave,
    drain: timeout => (draining ??= drain(timeout)),
    async reload(loaded) {
      const next = withEgressRoutes(loaded)
      const renewed = tls && readKeyPair(tls)
      const commit = await prepare(next)
      context.shaper.control.recall()
      const present = timetable.follow(next)
      context.routes = commit(present)
      if (renewed && !(renewed.cert.equals(pair!.cert) && renewed.key.equals(pair!.key))) {
        pair = renewed
        clients.renew(renewed)
      }
      if (next.egress !== undefined) egress?.configure(next.egress)
      sharing?.group(groupsOf(next.routes))
      context.trust = createTrust(next.trustProxy)
      context.shaper.maxQueued = next.limits.maxQueued
      context.bucketTable.maxKeys = next.limits.maxKeys
      context.maxConnections = next.limits.maxConnections
      context.connectionsPerClient = next.limits.connectionsPerClient
      context.tunnelIdleTimeout = next.limits.tunnelIdleTimeout
      context.bodyBytes.most = next.limits.bufferMemory
      if (!context.bodyLimits.are(next.limits)) {
        context.bodyLimits = new BodyLimits(clock, next.limits)
        allBodyLimits.push(context.bodyLimits)
      }
      clients.limit(next.limits)
      return applyLimits(context, present, upstreams)
    },
  }
}
