import type { LookupFunction } from 'node:net'
import { isDeepStrictEqual } from 'node:util'
import { readTlsFiles, type TlsFiles } from '../../config/checks/readable-files.js'
import type { ServerSettings, UpstreamSettings } from '../../config/settings.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Gate } from '../../core/queue/lane.js'
import { ServerSet, type Wanted } from '../../core/release/server-set.js'
import { formatAuthority } from '../../http/authority.js'
import { Deadlines } from '../deadlines.js'
import type { RequestFailure } from '../observe/observer.js'
import type { AdaptiveLimit } from './adaptive-limit.js'
import { ConnectionLimit } from './connection-limit.js'
import type { FollowedName, FollowedNames } from './followed-names.js'
import type { HealthContext, ServerOwner } from './health.js'
import { ConnectionPool } from './http1-pool.js'
import type { OpenerOf } from './opener.js'
import type { UpstreamQuota } from './upstream-quota.js'
import { destinationOf, type ServerSite, type ServerUser, UpstreamServer } from './upstream-server.js'

export interface UpstreamsOptions {
  readonly clock: Clock
  /** The time of releases, in ms. */
  readonly now: () => number
  readonly wake: (gate: Gate) => void
  readonly adapted: (limit: AdaptiveLimit) => void
  readonly adaptiveFound: (limit: AdaptiveLimit) => void
  readonly isShared: boolean
  readonly lookupFor: ((port: number) => LookupFunction) | undefined
  readonly openerOf?: OpenerOf | undefined
  readonly names: FollowedNames
}

/** ms. How long requests wait for an upstream all of whose servers fail their checks, if it has no breaker that says. */
const USUAL_HOLD = 5_000

export class Upstream implements ServerOwner {
  settings: UpstreamSettings
  /** All its URLs, or that of the built-in echo upstream. */
  url: string
  servers: readonly UpstreamServer[] = []
  /** They finish what they have. */
  readonly #gone = new Set<UpstreamServer>()
  readonly #set = new ServerSet()
  /** Those of servers with `dns`. */
  #names: readonly FollowedName[] = []
  /** It may have been another upstream's before a reload, and may serve requests of both. */
  limit: ConnectionLimit
  /** Requests that wait for their release to it, and will then need a connection of its pool. */
  queued = 0
  /** All its requests, from their arrival to the end of their answers. */
  requests = 0
  /** Called when the last of its requests has ended. Set while the upstream is no longer in use. */
  onUnused: (() => void) | undefined
  readonly answer: Deadlines
  /** When the head of an answer last came, in ms. */
  answeredAt = -Infinity
  /** Between two pieces of a body, in either direction. */
  readonly progress: Deadlines
  readonly clock: Clock
  /** Its announced limits; undefined: they are not used. */
  quota: UpstreamQuota | undefined
  /** The rate that it can take, as far as that is known. Undefined: it does not adapt. */
  adaptive: AdaptiveLimit | undefined
  /** What the files of `tls` held when they were last read. */
  tlsFiles: TlsFiles
  readonly #options: UpstreamsOptions
  #context: HealthContext | undefined
  /** That of the core. */
  #clock: Clock | undefined
  #partChanged: () => void = () => undefined
  /** It is about to look whether what is armed is meant for the right servers. */
  #looks = false
  /** All its servers have been down for longer than requests wait. */
  #isGivenUp = false
  /** Another upstream has its gate. It only serves the requests that it has. */
  #isRetired = false
  /** Set while all its servers are down. */
  #cancelHold: Cancel | undefined

  /**
   * @param url the URL to connect to: that of the settings, or of the built-in echo upstream
   * @throws if a file of `tls` cannot be read or is bad
   */
  constructor(settings: UpstreamSettings, url: string, options: UpstreamsOptions) {
    const { clock, wake } = options
    this.settings = settings
    this.url = url
    this.#options = options
    this.clock = clock
    this.tlsFiles = readTlsFiles(settings.tls)
    this.limit = new ConnectionLimit(this.#set, wake)
    this.answer = new Deadlines(clock, settings.responseTimeout)
    this.progress = new Deadlines(clock, settings.idleTimeout)
    this.#configure()
  }

  get gate(): Gate {
    return this.limit.gate
  }

  /** What has failed, while all its servers are down. */
  get failure(): RequestFailure | undefined {
    if (!this.isDown) return undefined
    for (const { breaker, check } of this.servers) {
      const failure = breaker?.failure ?? check?.failure
      if (failure !== undefined) return { ...failure, isEarlier: true }
    }
    const failure = this.#names.find(name => name.failure !== undefined)?.failure
    return failure && { ...failure, isEarlier: true }
  }

  get isDown(): boolean {
    return this.#set.isDown
  }

  /** The part of its usual rate that it gets: that of the server that has warmed up most. */
  get part(): number {
    let most = 0
    for (const { place } of this.servers) if (place.isUp) most = Math.max(most, place.part)
    return most === 0 ? 1 : most
  }

  /** @param from when a pause ends, in ms of the clock */
  warmUp(from: number): void {
    for (const { warmUp } of this.servers) warmUp?.begin(from)
  }

  /** ms until the next probe or check, or the next question about a name without an address */
  get retryAfter(): number {
    return Math.max(0, this.#nextTry - this.clock.now())
  }

  get #nextTry(): number {
    let next = Infinity
    for (const { place, breaker, check } of this.servers)
      next = Math.min(next, (place.isDown ? check : breaker)?.nextProbeAt ?? Infinity)
    for (const { found, nextAt } of this.#names) if (found.length === 0) next = Math.min(next, nextAt)
    return next === Infinity ? -Infinity : next
  }

  refuses(mayWait: boolean): boolean {
    const { gate } = this
    if (!gate.blocked || gate.probe) return false
    return !mayWait || this.#isGivenUp
  }

  join(context: HealthContext, clock: Clock, partChanged: () => void): void {
    this.#context ??= context
    this.#partChanged = partChanged
    this.#clock = clock
    // It may have been told other addresses since it was prepared.
    if (this.#names.length > 0 && !this.#isRetired) this.#serve()
    for (const name of this.#names) name.join(this.#addressesChanged)
    this.#joinServers()
    // The gate may come from another upstream.
    if (this.isDown || this.gate.blocked) this.#follow()
  }

  /** DNS says other addresses. Those that are gone finish what they have. */
  readonly #addressesChanged = (): void => {
    if (!this.#isRetired) this.#context!.shaper.engine.recall(this.gate)
    this.#serve()
    this.#joinServers()
    if (this.#isRetired) this.retire()
    else this.#follow()
  }

  #joinServers(): void {
    if (this.#context === undefined) return
    for (const { warmUp, check } of this.servers) {
      warmUp?.join(this.#clock!, this.#partChanged)
      check?.join()
    }
  }

  /**
   * The server for a request that has passed the gate, or needs no place in it. One that was tried is not chosen again.
   * Undefined: none takes it, as servers may have gone down since it passed.
   */
  pick(wanted: Wanted): UpstreamServer | undefined {
    const { servers } = this
    if (servers.length === 1) return wanted.tried === undefined ? servers[0] : undefined
    const place = this.#set.pick(wanted)
    return place && servers.find(server => server.place === place)
  }

  /** The server that was picked last is not used. */
  returnTurn(): void {
    this.#set.returnTurn()
  }

  enter(server: UpstreamServer, user: ServerUser, how: 'inFlight' | 'ungated'): void {
    const { gate } = this
    server.enter(user, how)
    if (!gate.blocked || !server.place.probing) return
    gate.probe = false
    gate.probing = true
    // Not now: this is a release. Another server may take a probe, too.
    process.nextTick(this.#allowProbe)
    // Others may have come while the probe waited for its bucket.
    if (this.#isGivenUp) this.#refuseAll()
  }

  /** A request is over. What is armed towards a busier server may go to its one. */
  left(from: 'inFlight' | 'ungated'): void {
    // Others leave the gate, too, which looks then.
    if (from === 'ungated' && this.servers.some(({ place }) => place.rules.connections !== undefined))
      this.limit.serversChanged()
    if (this.servers.length === 1 || this.#looks || this.gate.armed === 0 || !this.#set.isUneven) return
    this.#looks = true
    // Not now: what has ended the request may be in the middle of something.
    process.nextTick(() => {
      this.#looks = false
      const { shaper } = this.#context!
      shaper.engine.recall(this.gate)
      shaper.wake()
    })
  }

  /** Opens connections in advance for so many requests in the queue. */
  keepReady(queued: number): void {
    const each = Math.ceil(queued / this.servers.length)
    for (const { place, pool } of this.servers) if (place.isUp && pool instanceof ConnectionPool) pool.keepReady(each)
  }

  serverChanged(url: string, state: 'failing' | 'answering', failure?: RequestFailure): void {
    this.#follow()
    this.#context?.observer.broken?.(url, state, failure, this.isDown ? 'down' : 'up')
  }

  /** The gate follows its servers. */
  #follow(): void {
    const { gate } = this
    if (this.#context === undefined || this.#isRetired) return
    const { engine } = this.#context.shaper
    if (this.isDown) {
      const hold = this.settings.breaker?.hold ?? USUAL_HOLD
      this.#cancelHold ??= this.clock.at(this.clock.now() + hold, () => {
        this.#isGivenUp = true
        this.#refuseAll()
      })
      gate.probeAt = this.#nextTry
      if (!gate.blocked) {
        engine.block(gate)
        this.#followProbes()
      }
      this.#allowProbe()
    } else if (gate.blocked) {
      this.#isGivenUp = false
      this.#endHold()
      engine.unblock(gate)
    } else if (this.servers.length > 1) {
      // What is armed is meant for servers of before.
      engine.recall(gate)
    }
    this.limit.serversChanged()
    if (this.servers.length > 1) this.#partChanged()
  }

  /** While one of its servers is up, a probe of another one says nothing about the gate. */
  #followProbes(): void {
    this.gate.probing = this.gate.blocked && this.servers.some(({ place }) => place.probing)
  }

  probeDue(): void {
    this.#followProbes()
    if (this.gate.blocked) this.#allowProbe()
    else this.limit.serversChanged()
  }

  /** While all are down one request passes, if one of them takes it: its probe is due, and its check has not found it down. */
  readonly #allowProbe = (): void => {
    const { gate } = this
    if (!gate.blocked || this.#isRetired) return
    gate.probe = false
    if (this.servers.some(({ place }) => place.takesNext)) this.#context!.shaper.engine.allowProbe(gate)
  }

  probeOver(): void {
    const { gate } = this
    this.#followProbes()
    gate.probeAt = this.#nextTry
    if (this.#isGivenUp) this.#refuseAll()
  }

  #refuseAll(): void {
    this.#context!.shaper.engine.refuseAll(this.gate, this.retryAfter)
  }

  /** Whether only its servers differ: then it stays, with all that it has. */
  canBecome(settings: UpstreamSettings): boolean {
    return (
      isDeepStrictEqual(constant(settings), constant(this.settings)) &&
      this.#sharesServer(serversOf(settings, settings.url))
    )
  }

  sharesServer({ settings, url }: Upstream): boolean {
    return this.#sharesServer(serversOf(settings, url))
  }

  #sharesServer(others: readonly ServerSettings[]): boolean {
    return serversOf(this.settings, this.url).some(({ url }) => others.some(each => each.url === url))
  }

  /** Servers that are gone and still have requests. */
  get leaving(): readonly UpstreamServer[] {
    return [...this.#gone].filter(({ place }) => place.sent > 0)
  }

  /** Its servers change. One that is gone finishes what it has. */
  change(settings: UpstreamSettings): void {
    this.settings = settings
    this.url = settings.url
    const names = this.#names
    this.#configure()
    for (const name of this.#names) name.join(this.#addressesChanged)
    for (const name of names) if (!this.#names.includes(name)) name.leave(this.#addressesChanged)
    this.#joinServers()
    this.#follow()
  }

  #configure(): void {
    const { settings } = this
    const { pick } = settings
    this.#set.rule = typeof pick === 'object' ? 'hash' : (pick ?? 'least-in-flight')
    const { names } = this.#options
    this.#names = serversOf(settings, this.url).flatMap(each => (each.dns === undefined ? [] : names.of(each)))
    this.#serve()
    this.limit.apply(settings)
  }

  /** Has those servers that there are now. */
  #serve(): void {
    const { settings } = this
    const former = new Map(this.servers.map(server => [server.url, server]))
    this.servers = serversOf(settings, this.url)
      .flatMap(this.#sitesOf)
      .map(each => {
        const known = former.get(each.url)
        former.delete(each.url)
        if (known === undefined) return new UpstreamServer(each, { ...this.#parts, settings }, this.#options)
        known.configure(each)
        return known
      })
    this.#set.replace(this.servers.map(({ place }) => place))
    for (const server of this.#gone) if (server.place.sent === 0) this.#gone.delete(server)
    for (const server of former.values()) {
      server.retire()
      this.#gone.add(server)
    }
  }

  /** Each address of its name is a server. Without any there is one that is down. */
  readonly #sitesOf = (server: ServerSettings): readonly ServerSite[] => {
    if (server.dns === undefined) return [server]
    const name = this.#options.names.of(server)
    const { url: origin } = server
    if (name.found.length === 0) {
      const unknown = (): Error => name.failure?.cause ?? new Error('DNS has not answered yet')
      return [{ ...server, url: `${origin} (no address)`, origin, unknown }]
    }
    const { port: usual } = destinationOf(origin)
    return name.found.map(({ host, port, weight, isBackup }) => ({
      ...server,
      url: `${origin} (${port === undefined ? host : formatAuthority(host, port)})`,
      origin,
      at: { host, port: port ?? usual },
      weight: server.weight * weight,
      backup: server.backup || isBackup,
    }))
  }

  get #parts() {
    return { tlsFiles: this.tlsFiles, limit: this.limit, owner: this }
  }

  /** For new connections. Open ones stay. */
  renew(tlsFiles: TlsFiles): void {
    this.tlsFiles = tlsFiles
    for (const server of this.servers) server.renew(tlsFiles)
  }

  /** Goes on with the limit of an upstream that it replaces, which has no more need of idle connections. */
  replace(former: Upstream): void {
    for (const server of former.servers) server.keepNone()
    this.limit = former.limit
    this.limit.servers = this.#set
    for (const server of this.servers) {
      const before = former.servers.find(({ url }) => url === server.url)
      if (before === undefined) server.share(this.limit)
      else server.replace(before, this.limit)
    }
    this.#set.replace(
      this.servers.map(({ place }) => place),
      former.#set,
    )
    this.limit.apply(this.settings)
  }

  /** Another upstream has its gate. */
  retire(): void {
    this.#endHold()
    for (const { breaker, check, warmUp } of this.servers) {
      breaker?.retire()
      check?.close()
      warmUp?.close()
    }
    this.#isRetired = true
  }

  #endHold(): void {
    this.#cancelHold?.()
    this.#cancelHold = undefined
  }

  close(): void {
    this.#endHold()
    this.answer.close()
    this.progress.close()
    for (const name of this.#names) name.leave(this.#addressesChanged)
    for (const server of this.servers) server.close()
  }
}

/** What cannot change without new connections, or a health of before. */
function constant({ url: _url, servers: _servers, pick: _pick, ...rest }: UpstreamSettings): unknown {
  return rest
}

export function serversOf({ servers }: UpstreamSettings, url: string): readonly ServerSettings[] {
  return servers ?? [{ url, weight: 1, maxInFlight: Infinity, backup: false }]
}

/** Counts out a request. The last one of an upstream that is no longer in use closes it. */
export function requestEnded(upstream: Upstream): void {
  upstream.requests -= 1
  if (upstream.requests === 0) upstream.onUnused?.()
}

export function hostTowards({ settings }: Upstream, { authority }: UpstreamServer, asked: string | undefined): string {
  return settings.hostHeader === 'upstream' ? authority : (asked ?? authority)
}
