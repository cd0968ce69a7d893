import { randomUUID } from 'node:crypto'
import type { Server } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'
import { isDeepStrictEqual } from 'node:util'
import { readTlsFiles } from '../../config/checks/readable-files.js'
import { routeKey, withEgressRoutes } from '../../config/derived/egress-routes.js'
import { keyPartsOf, namesIn } from '../../config/derived/header-needs.js'
import { bucketsOfSeveralLanes, groupsOf } from '../../config/derived/store-groups.js'
import { presentRates } from '../../config/schedule.js'
import { formatListen } from '../../config/schema/address.js'
import type { Settings } from '../../config/settings.js'
import { BucketTable } from '../../core/bucket-table.js'
import type { Clock } from '../../core/clock.js'
import { Shaper } from '../../core/shaper.js'
import { type HandedSocket, startListening, urlOf } from '../../http/listening.js'
import type { Pacer } from '../../pacing/armed-writes.js'
import type { LeastInstances } from '../../sharing/headcount.js'
import type { OnOutage } from '../../sharing/shard.js'
import { Sharing } from '../../sharing/sharing.js'
import { type Store, StoreError } from '../../sharing/store.js'
import { createClientServer } from '../client/server.js'
import type { Deliveries, ProxyContext } from '../context.js'
import { Deadlines } from '../deadlines.js'
import { Egress, type ResolveName } from '../egress/egress.js'
import { OpenBodies } from '../exchange/body.js'
import { Coalescing } from '../features/coalesce.js'
import { PageStreams } from '../features/page-streams.js'
import { SharedTicketKey, Tickets } from '../features/tickets.js'
import { readPage } from '../features/waiting-page.js'
import { ByteBudget } from '../http/byte-budget.js'
import { createTrust } from '../http/client-address.js'
import { createId, Via } from '../http/headers.js'
import { BodyLimits, LINGER } from '../http/pace.js'
import { LearnedLimits } from '../learned-limits.js'
import { KeyLimits } from '../limits/key-limits.js'
import type { LoadLimits } from '../limits/load.js'
import type { WatchSource } from '../limits/watch-source.js'
import { applyAdapted, applyKeyLimits, applyLearned, applyLimits, applyOverride } from '../live-limits.js'
import { combineObservers, type Observer, type Propagate } from '../observe/observer.js'
import { Overrides } from '../overrides.js'
import { Identity } from '../routing/identity.js'
import { createRoutes, type Route, type RouteParts } from '../routing/route.js'
import { DepartingShaper, type GuestNews, type Link } from '../succession/departing.js'
import { Timetable } from '../timetable.js'
import { SharedAdaptive } from '../upstream/adaptive-limit.js'
import { FollowedNames, type OpenResolver } from '../upstream/followed-names.js'
import type { OpenerOf } from '../upstream/opener.js'
import { Upstreams } from '../upstream/upstreams.js'

/** ms that a client may leave our own answer unread. */
const FLUSH = 60_000

/** What became of the requests that were there when a proxy began to end, or came then. Those whose clients left do not count. */
export interface Drained {
  readonly answered: number
  /** They were not done in time: answered 503, or broken off. */
  readonly cut: number
}

export interface RunningProxy {
  /** Where it listens: `http://host:port`, `unix:/path` or `systemd:NAME` (a Unix socket), one for each `listen`. */
  readonly urls: readonly string[]
  /** The first of them. */
  readonly url: string
  readonly context: ProxyContext
  /** One for each `listen`. */
  readonly servers: readonly Server[]
  /** A successor decides from now on (succession/departing.ts). @returns hears what it says, and when it is gone */
  handOver(link: Link): { readonly complete: Promise<void>; told(news: GuestNews): void; end(): void }
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
  readonly pacer: Pacer
  /** For timeouts. A few ms do not matter here. */
  readonly clock: Clock
  /** ms since 1970, for times of day and dates in headers. Default: that of the system. */
  readonly wallNow?: () => number
  readonly observer?: Observer
  /** Resolves names for egress. Default: as the system does. */
  readonly resolveName?: ResolveName
  /** Opens connections to upstreams, but for tunnels. Default: over the network. */
  readonly openerOf?: OpenerOf
  /** Asks DNS for upstreams with `dns`. Default: the servers of the system, or of the configuration. */
  readonly openResolver?: OpenResolver
  readonly propagate?: Propagate | undefined
  /** The program's id in `Via`. Default: a new one. */
  readonly id?: string
  /** The store that instances share. Undefined: memory. */
  readonly shared?: {
    readonly store: Store
    readonly onOutage: OnOutage
    readonly least?: LeastInstances
    /** Unlike that of all other instances. Default: a new one. */
    readonly id?: string
  }
  /** Sockets that another process listens on, by the place in `listen`. Absent: it opens its own. */
  readonly handed?: readonly (HandedSocket | undefined)[]
  /** Reads limits of single keys. Default: in a thread. */
  readonly loadLimits?: LoadLimits
  /** Tells when they may have changed. Default: looks at files and asks PostgreSQL. */
  readonly watchLimits?: WatchSource
  /** Stores requests of routes with `deliver`, and sends them. Absent: they are forwarded as others are. */
  readonly deliveries?: Deliveries | undefined
  /** Called before it listens. */
  readonly prepared?: (context: ProxyContext) => Promise<void>
}

/** @throws if an address or a certificate cannot be used, or if the store does not answer and `onOutage` is `closed` */
export async function startProxy(options: ProxyOptions): Promise<RunningProxy> {
  const { pacer, clock, wallNow = Date.now, id = createId(), shared } = options
  /** Those whose clients left do not count. */
  let answered = 0
  const counter: Observer = {
    finished(_request, outcome) {
      if (outcome !== 'cancelled') answered += 1
    },
  }
  const observer = combineObservers([options.observer ?? {}, counter])
  const settings = withEgressRoutes(options.settings)
  const egress = settings.egress && new Egress(settings.egress, options.resolveName)
  const readOwn = () =>
    settings.listen.map(({ tls }) => {
      if (tls === undefined) return undefined
      const { clientCa, ...pair } = tls
      return readTlsFiles({ ...pair, ...(clientCa !== undefined && { ca: clientCa }) })
    })
  let own = readOwn()
  const clients = createClientServer(settings, own, clock)
  const upstreams = new Upstreams({
    clock,
    now: () => pacer.now(),
    wake: gate => context.shaper.wake(gate),
    adapted: limit => applyAdapted(context, limit),
    adaptiveFound: limit => sharedAdaptive?.tell(limit),
    isShared: shared !== undefined,
    lookupFor: egress && (port => egress.lookupFor(port)),
    openerOf: options.openerOf,
    names: new FollowedNames({
      clock,
      open: options.openResolver,
      told: (url, found, failure) =>
        observer.resolved?.(
          url,
          found.map(({ host }) => host),
          failure,
        ),
    }),
  })
  const adaptiveLimits = () => [...upstreams].flatMap(({ adaptive }) => adaptive ?? [])
  const sharedAdaptive = shared && new SharedAdaptive(shared.store, adaptiveLimits)
  const prepare = async (next: Settings): Promise<(present: Settings) => Route[]> => {
    const pages = new Map(
      next.routes.map(each => [routeKey(each), each.waitingPage && readPage(each.waitingPage.template)]),
    )
    const claims = namesIn(keyPartsOf(next.routes), 'jwt')
    const jwt = claims.length === 0 ? undefined : next.identity?.jwt
    const before = context.identity
    const told: Observer['keysRead'] = (url, failure) => observer.keysRead?.(url, failure)
    const open = async () => ({
      prepared: await upstreams.prepare(next.routes),
      identity: jwt && (await Identity.open({ settings: jwt, claims, clock, wallNow, told }, before)),
    })
    const limits = await context.keyLimits.prepare(next.buckets)
    const { prepared, identity } = await open().catch(error => {
      limits.giveUp()
      throw error
    })
    return present => {
      if (identity !== before) before?.close()
      context.identity = identity
      upstreams.commit(prepared)
      limits.commit()
      for (const upstream of upstreams) {
        upstream.quota?.join(context)
        upstream.join(context, pacer, () => applyLearned(context, each => each === upstream))
      }
      const partsOf = (key: string): RouteParts => ({ upstream: prepared.byRoute.get(key)!, page: pages.get(key) })
      return createRoutes(present.routes, partsOf, context)
    }
  }
  const timetable = new Timetable({
    clock,
    now: () => pacer.now(),
    wallNow,
    changed(present, what) {
      context.shaper.engine.recall()
      const before = new Map(context.routes.map(route => [routeKey(route.settings), route]))
      context.routes = createRoutes(present.routes, key => before.get(key)!, context)
      const expired = applyLimits(context, present, upstreams)
      if (what === 'rates') observer.rescheduled?.(presentRates(present, wallNow()), expired)
    },
  })
  /** The last ones are in use. */
  const allBodyLimits = [new BodyLimits(clock, settings.limits)]
  let drained = (): void => undefined
  const sharing =
    shared && new Sharing({ id: randomUUID(), ...shared, clock, changed: news => observer.shared?.(news) })
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
      ...(sharing && { share: sharing.shareBy(pacer) }),
    }),
    bucketTable: new BucketTable(
      settings.limits.maxKeys,
      sharing && ((limits, key) => sharing.createBucket(limits, key)),
    ),
    sharing,
    upstreams,
    learned: new LearnedLimits(),
    overrides: new Overrides({
      clock,
      now: () => pacer.now(),
      store: sharing?.store,
      changed: (bucket, key) => applyOverride(context, bucket, key),
      told: (override, what) => observer.overridden?.(override, what),
    }),
    keyLimits: new KeyLimits({
      ...{ clock, wallNow, load: options.loadLimits, watch: options.watchLimits },
      changed: (bucket, keys) => void applyKeyLimits(context, bucket, keys),
      told: news => observer.limitsRead?.(news),
    }),
    rateLearned: quota => applyLearned(context, upstream => upstream.quota === quota),
    routes: [],
    egress,
    trust: createTrust(settings.trustProxy),
    via: new Via(id),
    identity: undefined,
    deliveries: options.deliveries,
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
    hasSuccessor: false,
    inProgress: 0,
    idle: () => drained(),
  }
  if (pacer.writes !== undefined) pacer.writes.onNews = () => context.shaper.wake()
  const commitFirst = await prepare(settings)
  context.routes = commitFirst(timetable.follow(settings))
  context.learned.adjust(context.routes)
  clients.accept(context)
  const { servers, connections } = clients
  const close = async (): Promise<void> => {
    context.linger.silence.close()
    context.linger.total.close()
    for (const limits of allBodyLimits) limits.close()
    timetable.close()
    context.shaper.engine.close()
    context.flush.close()
    context.identity?.close()
    sharedAdaptive?.close()
    sharedTicketKey?.close()
    context.overrides.close()
    context.keyLimits.close()
    await options.deliveries?.close()
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
  await options.deliveries?.start(context).catch(async error => {
    await close()
    throw error
  })
  await options.prepared?.(context)
  for (const [index, server] of servers.entries()) {
    const listen = settings.listen[index]!
    await startListening(server, listen, options.handed?.[index]).catch(async (error: Error) => {
      for (const started of servers.slice(0, index)) started.close()
      await close()
      throw Object.assign(error, { listen })
    })
  }
  const urls = servers.map((server, index) => urlOf(server, formatListen(settings.listen[index]!)))

  const drain = async (timeout: number, delay: number): Promise<Drained> => {
    const before = answered
    if (delay > 0) {
      context.leaving = true
      context.pageStreams.endAll()
      await new Promise<void>(resolve => void clock.at(clock.now() + delay, resolve))
    }
    context.draining = true
    options.deliveries?.leave()
    context.pageStreams.endAll()
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
    for (const request of requests) if (!inFlight.has(request)) request.end('shutdown')
    for (const request of inFlight) request.end('shutdown')
    const cut = requests.length
    // Answers just given are written before their connections close.
    const cancel = clock.at(clock.now() + LINGER.silence, () => {
      for (const { socket } of connections) socket.destroy()
    })
    for (const connection of connections) connection.endUnused()
    await closed
    cancel()
    await close()
    return { answered: Math.max(0, answered - before - cut), cut }
  }
  /** What a store would keep. */
  const tellKept = ({ send }: Link): void => {
    send({ verb: 'key', key: context.tickets.made })
    for (const override of context.overrides.list()) send({ verb: 'override', override })
    for (const { bucket, state } of adaptiveLimits()) {
      // The answers by which it would measure the capacity come here.
      const phase = state.phase === 'draining' ? 'climbing' : state.phase
      send({ verb: 'adaptive', bucket: bucket.name, state: { ...state, phase } })
    }
  }
  /** No store has this. One client in a turn of the event loop, as there may be 100 waits of each. */
  const tellLearnt = async ({ send, machine }: Link): Promise<void> => {
    for (const [route, { patience }] of new Map(context.routes.map(({ name, waits }) => [name, waits])))
      for (const [client, waits] of [...patience.waits(pacer.now())]) {
        send({ verb: 'waits', route, client, waits: waits.map(wait => ({ ...wait, at: machine.theirs(wait.at) })) })
        await turn()
      }
  }
  let draining: Promise<Drained> | undefined
  return {
    urls,
    url: urls[0]!,
    context,
    servers,
    handOver(link) {
      context.shaper.engine.recall()
      const departing = new DepartingShaper(context.shaper, context.routes, pacer, link)
      context.shaper = departing
      context.hasSuccessor = true
      if (sharing === undefined) tellKept(link)
      return {
        complete: departing.complete.then(() => tellLearnt(link)),
        told: news => departing.told(news),
        end: () => {
          context.shaper = departing.end()
          context.hasSuccessor = context.draining
        },
      }
    },
    drain: (timeout, delay = 0) => (draining ??= drain(timeout, delay)),
    async reload(loaded) {
      const next = withEgressRoutes(loaded)
      const renewed = readOwn()
      const commit = await prepare(next)
      const commitDeliveries = await options.deliveries?.prepare(next)
      context.shaper.engine.recall()
      const present = timetable.follow(next)
      context.routes = commit(present)
      commitDeliveries?.()
      if (!isDeepStrictEqual(renewed, own)) {
        own = renewed
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
