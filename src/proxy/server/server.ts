/** The proxy as a whole: its parts, its reload and its shutdown. */

import { randomUUID } from 'node:crypto'
import { readKeyPair } from '../../config/checks/readable-files.js'
import { routeKey, withEgressRoutes } from '../../config/derived/egress-routes.js'
import { bucketsOfSeveralLanes, groupsOf } from '../../config/derived/store-groups.js'
import { presentRates } from '../../config/schedule.js'
import { formatListen } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
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
import { Coalescing } from '../coalescing/groups.js'
import type { ProxyContext } from '../context.js'
import { Deadlines } from '../deadlines.js'
import { Egress, type ResolveName } from '../egress/egress.js'
import { BodyLimits } from '../exchange/body/body-limits.js'
import { OpenBodies } from '../exchange/body/open-bodies.js'
import { SharedTicketKey } from '../exchange/tickets/shared-ticket-key.js'
import { Tickets } from '../exchange/tickets/tickets.js'
import type { GrpcGate } from '../grpc/grpc-gate.js'
import { createTrust } from '../http/client-address.js'
import { ByteBudget } from '../http/connection/byte-budget.js'
import { LINGER } from '../http/connection/linger.js'
import { createId, Via } from '../http/via.js'
import { LearnedLimits } from '../learned-limits.js'
import { applyAdapted, applyLearned, applyLimits, applyOverride } from '../live-limits.js'
import { AnswerCount } from '../observe/answer-count.js'
import { combineObservers } from '../observe/fan-out.js'
import type { Observer } from '../observe/observer.js'
import type { Propagate } from '../observe/propagate.js'
import { Overrides } from '../overrides.js'
import { createRoutes, type Route, type RouteParts } from '../routing/route.js'
import { Timetable } from '../timetable.js'
import { SharedAdaptive } from '../upstream/shared-adaptive.js'
import { Upstreams } from '../upstream/upstreams.js'
import { PageStreams } from '../waiting/page-streams.js'
import { readPage } from '../waiting/waiting-page.js'

/** ms that a client may leave our own answer unread. */
const FLUSH = 60_000

/** What became of the requests that were there when a proxy began to end, or came then. Those whose clients left do not count. */
export interface Drained {
  readonly answered: number
  /** They were not done in time: answered 503, or broken off. */
  readonly cut: number
}

export interface RunningProxy {
  /** `http://host:port` */
  readonly url: string
  /** `host:port` where gates are asked by gRPC. */
  readonly grpc: string | undefined
  readonly context: ProxyContext
  /**
   * Stops accepting and lets queued and running requests finish for up to `timeout` ms, and those that clients have sent by now on
   * open connections. The rest are answered 503.
   * Resolves when every connection is closed. Another call returns the same promise.
   *
   * @param delay ms for which it goes on accepting first. Each connection closes after its current request meanwhile, so
   *   that its client comes again, to another instance.
   */
  drain(timeout: number, delay?: number): Promise<Drained>
  /**
   * Puts another configuration into effect. If it throws, nothing has changed. Waiting requests keep their order and
   * leave at the new rates; levels stay. `listen`, `maxHeaderSize` and `maxHeaders` stay as they were. The files of certificates,
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
  const { pacer, clock, wallNow = Date.now, id = createId(), shared } = options
  const answers = new AnswerCount()
  const observer = combineObservers([options.observer ?? {}, answers])
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
    const pages = new Map(
      next.routes.map(each => [routeKey(each), each.waitingPage && readPage(each.waitingPage.template)]),
    )
    return present => {
      upstreams.commit(prepared)
      for (const { quota, breaker, warmUp } of upstreams) {
        quota?.join(context)
        breaker?.join(context)
        warmUp?.join(pacer, () => applyLearned(context, upstream => upstream.warmUp === warmUp))
      }
      const partsOf = (key: string): RouteParts => ({ upstream: prepared.byRoute.get(key)!, page: pages.get(key) })
      return createRoutes(present.routes, partsOf, context.routes)
    }
  }
  const timetable = new Timetable({
    clock,
    now: () => pacer.now(),
    wallNow,
    changed(present, what) {
      context.shaper.control.recall()
      const before = new Map(context.routes.map(route => [routeKey(route.settings), route]))
      context.routes = createRoutes(present.routes, key => before.get(key)!, context.routes)
      const expired = applyLimits(context, present, upstreams)
      if (what === 'rates') observer.rescheduled?.(presentRates(present, wallNow()), expired)
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
  const bodyBytes = new ByteBudget(settings.limits.bufferMemory)
  const tickets = new Tickets()
  tickets.configure(settings.ticketKeys)
  const sharedTicketKey =
    shared &&
    new SharedTicketKey({
      ...{ clock, store: shared.store, tickets },
      isUsed: () => context.routes.some(({ settings }) => settings.appointments),
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
    overrides: new Overrides({
      clock,
      now: () => pacer.now(),
      store: sharing?.store,
      changed: (bucket, key) => applyOverride(context, bucket, key),
      told: (override, what) => observer.overridden?.(override, what),
    }),
    rateLearned: quota => applyLearned(context, upstream => upstream.quota === quota),
    routes: [],
    egress,
    trust: createTrust(settings.trustProxy),
    via: new Via(id),
    tickets,
    pageStreams: new PageStreams(clock),
    observer,
    propagate: options.propagate,
    coalescing: new Coalescing(bodyBytes, () => context.shaper.wake()),
    bodyBytes,
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
    sharedTicketKey?.close()
    context.overrides.close()
    await Promise.all([upstreams.close(), sharing?.close()])
  }
  sharing?.group(groupsOf(settings.routes), bucketsOfSeveralLanes(settings.routes))
  const joined = await sharing?.join({
    shaper: context.shaper,
    clock: pacer,
    buckets: () => context.bucketTable.all(),
    peek: (name, key) => context.bucketTable.peek(name, key),
    gates: () => [...upstreams].map(upstream => upstream.gate),
  })
  sharedAdaptive?.join()
  context.overrides.join()
  await sharedTicketKey?.join()
  if (joined === false && shared?.onOutage === 'closed') {
    await close()
    throw new StoreError(sharing!.reason)
  }
  const closeAll = async (error: Error): Promise<never> => {
    await grpc?.close()
    await close()
    throw error
  }
  let grpc: GrpcGate | undefined
  if (settings.listen.grpc !== undefined) {
    // Only here is gRPC loaded.
    const { startGrpcGate } = await import('../grpc/grpc-gate.js')
    grpc = await startGrpcGate(context, settings.listen.grpc).catch(closeAll)
  }
  await startListening(server, settings.listen).catch(closeAll)

  const drain = async (timeout: number, delay: number): Promise<Drained> => {
    const before = answers.count
    if (delay > 0) {
      context.leaving = true
      context.pageStreams.endAll()
      await new Promise<void>(resolve => void clock.at(clock.now() + delay, resolve))
    }
    context.draining = true
    context.pageStreams.endAll()
    grpc?.leave()
    await clients.leave()
    // A client whose connection closes opens another one. As long as we listen, it would be lost when we stop.
    context.leaving = true
    await new Promise<void>(resolve => {
      const cancel = clock.at(clock.now() + timeout, resolve)
      drained = () => {
        cancel()
        resolve()
      }
      if (context.inProgress === 0 || timeout <= 0) drained()
    })
    // Waiting requests first: a place in flight that becomes free now must not release one of them.
    const closed = clients.close()
    const requests = [...connections].flatMap(connection => connection.requests)
    const inFlight = new Set(requests.filter(request => request.inFlight))
    for (const request of requests) if (!inFlight.has(request)) request.cutOff()
    for (const request of inFlight) request.cutOff()
    const cut = requests.length + ((await grpc?.close()) ?? 0)
    // Answers just given are written before their connections close.
    const cancel = clock.at(clock.now() + LINGER.silence, () => {
      for (const { socket } of connections) socket.destroy()
    })
    for (const connection of connections) connection.endUnused()
    await closed
    cancel()
    await close()
    return { answered: Math.max(0, answers.count - before - cut), cut }
  }
  let draining: Promise<Drained> | undefined
  return {
    url: urlOf(server),
    grpc: grpc && formatListen({ ...settings.listen.grpc!, port: grpc.port }),
    context,
    drain: (timeout, delay = 0) => (draining ??= drain(timeout, delay)),
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
      sharing?.group(groupsOf(next.routes), bucketsOfSeveralLanes(next.routes))
      context.trust = createTrust(next.trustProxy)
      tickets.configure(next.ticketKeys)
      void sharedTicketKey?.ask()
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
      // Pages ask again, and find the routes that are in effect now.
      context.pageStreams.endAll()
      return applyLimits(context, present, upstreams)
    },
  }
}
