import { isIP, type LookupFunction } from 'node:net'
import { checkServerIdentity } from 'node:tls'
import type { TlsFiles } from '../../config/checks/readable-files.js'
import type { ServerSettings, UpstreamSettings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { ServerPlace } from '../../core/release/server-set.js'
import { socketPathOf } from '../../http/unix-socket.js'
import { ConnectionBudget, type ConnectionLimit } from './connection-limit.js'
import { Breaker, type ServerOwner, WarmUp } from './health.js'
import { HealthCheck } from './health-check.js'
import type { ResponseHandler, UpstreamRequest } from './http1-connection.js'
import { ConnectionPool, type RequestSender } from './http1-pool.js'
import { Http2Pool } from './http2-pool.js'
import { Opener, type OpenerOf, type Opens, type ServerAddress } from './opener.js'

export interface ServerOptions {
  readonly clock: Clock
  readonly lookupFor: ((port: number) => LookupFunction) | undefined
  /** Opens connections. Absent: over the network. */
  readonly openerOf?: OpenerOf | undefined
}

/** A request that is on its way to a server. */
export interface ServerUser {
  /** The server is down. An answer that has not begun will hardly come. */
  serverDown(): void
}

/** A server as the file has it, or one of the addresses of its name. */
export interface ServerSite extends ServerSettings {
  /** The URL of the file, if `url` says the address, too. */
  readonly origin?: string
  /** Where to connect, whatever the URL says. */
  readonly at?: Pick<ServerAddress, 'host' | 'port'>
  /** No address is known: why there is no connection. */
  readonly unknown?: () => Error
}

/** One server of an upstream: its connections, and what is known of its health. */
export class UpstreamServer {
  /** Names it, in logs and metrics, too. With `dns` it has the address behind the URL. */
  readonly url: string
  /** Where requests are for, by its name. */
  readonly origin: string
  readonly to: ServerAddress
  /** Its Host header with `hostHeader: "upstream"`. */
  readonly authority: string
  readonly identity: Identity
  /** Resolves its name. Undefined: as the system does. */
  readonly lookup: LookupFunction | undefined
  readonly clock: Clock
  readonly owner: ServerOwner
  place: ServerPlace
  /** For requests with a place in the gate. */
  readonly pool: ConnectionPool | Http2Pool
  /** For requests without a place in the gate. With `connections` they share its pool, else they have their own. */
  readonly ungated: UngatedSender
  /** Undefined: requests are never kept away from it. */
  readonly breaker: Breaker | undefined
  /** Undefined: it gets its full rate at once. */
  readonly warmUp: WarmUp | undefined
  readonly check: HealthCheck | undefined
  /** Bounds its connections. They count in the upstream's, too. */
  readonly budget: ConnectionBudget
  #tlsFiles: TlsFiles
  readonly #openerOf: OpenerOf
  /** For requests without a place in the gate, if they do not share the other one. */
  readonly #ownPool: ConnectionPool | Http2Pool | undefined
  /** How often each has entered: one that is sent again may come back before its first answer is over. */
  readonly #users = new Map<ServerUser, number>()
  #onUnused: (() => void) | undefined

  constructor(
    { url, origin = url, at, unknown, ...rules }: ServerSite,
    { settings, tlsFiles, limit, owner }: ServerParts,
    { clock, lookupFor, openerOf = options => new Opener(options) }: ServerOptions,
  ) {
    const { maxInFlight, connections, keepAlive, maxConnectionAge: maxAge, connectTimeout, warmUp, breaker } = settings
    this.url = url
    this.origin = origin
    this.to = { ...destinationOf(origin), ...at }
    this.clock = clock
    this.owner = owner
    this.place = new ServerPlace({ url, ...rules })
    this.place.isDown = unknown !== undefined
    this.authority = this.to.path === undefined ? new URL(origin).host : HOST_OF_SOCKET
    this.identity = identityOf(settings, origin)
    this.lookup = unknown ? (_name, _options, done) => done(unknown(), '') : lookupFor?.(this.to.port)
    this.#tlsFiles = tlsFiles
    this.#openerOf = openerOf
    this.budget = new ConnectionBudget(limit.budget)
    this.budget.limit(rules.connections ?? Infinity)
    const pooling = { opener: this.#opener(), clock, connectTimeout, maxAge }
    const createPool = (budget: ConnectionBudget, keep = keepAlive): ConnectionPool | Http2Pool =>
      settings.http2
        ? new Http2Pool(`${protocolOf(origin)}//${this.authority}`, { ...pooling, keepAlive: keep, budget })
        : new ConnectionPool({ ...pooling, keepAlive: keep, budget })
    this.pool = createPool(this.budget)
    const sharesPool = connections !== undefined || rules.connections !== undefined || maxInFlight === Infinity
    this.#ownPool = sharesPool ? undefined : createPool(limit.unbounded)
    this.ungated = new UngatedSender(this.#ownPool ?? this.pool, limit)
    this.warmUp = warmUp === undefined ? undefined : new WarmUp(warmUp, this)
    this.breaker = breaker && new Breaker(breaker, this)
    // A connection of its own each time: that the server takes one is a part of the check.
    this.check =
      unknown === undefined && settings.health !== undefined
        ? new HealthCheck(settings.health, this, createPool(new ConnectionBudget(), 0))
        : undefined
  }

  get tlsFiles(): TlsFiles {
    return this.#tlsFiles
  }

  /** Takes a place that was chosen for it. A server that is blocked takes its probe. */
  enter(user: ServerUser, how: 'inFlight' | 'ungated'): void {
    const { place } = this
    place[how] += 1
    this.#users.set(user, (this.#users.get(user) ?? 0) + 1)
    if (!place.probe) return
    place.probe = false
    place.probing = true
  }

  /** Once for each `enter`. @param as `tunnel`: its connection stays */
  leave(user: ServerUser, how: 'inFlight' | 'ungated', as: 'request' | 'tunnel' = 'request'): void {
    const { place } = this
    place[how] -= 1
    const more = this.#users.get(user)! - 1
    if (more > 0) this.#users.set(user, more)
    else this.#users.delete(user)
    if (as === 'tunnel') place.tunnels += 1
    else this.#look()
    this.owner.left(how)
  }

  tunnelClosed(): void {
    this.place.tunnels -= 1
    this.#look()
  }

  #look(): void {
    if (this.#users.size + this.place.tunnels === 0) this.#onUnused?.()
  }

  /** It is down. Requests that it has not answered may go to others. */
  forsake(): void {
    for (const user of [...this.#users.keys()]) user.serverDown()
  }

  /** Its bounds or its weight have changed. */
  configure({ url, ...rules }: ServerSettings): void {
    this.place.rules = { url, ...rules }
    this.budget.limit(rules.connections ?? Infinity)
  }

  /** It gets no more requests, and is closed after the last one that it has. */
  retire(): void {
    this.check?.close()
    this.breaker?.close()
    this.keepNone()
    this.#onUnused = () => this.close()
    this.#look()
  }

  #opener(): Opens {
    const { origin, to, identity, tlsFiles, lookup } = this
    const tls = protocolOf(origin) === 'https:' ? { ...identity, ...tlsFiles } : undefined
    return this.#openerOf({ ...to, tls, ...(lookup && { lookup }) })
  }

  /** For new connections. Open ones stay. */
  renew(tlsFiles: TlsFiles): void {
    this.#tlsFiles = tlsFiles
    for (const pool of this.#pools) pool.change(this.#opener())
    this.check?.sender.change(this.#opener())
  }

  /** Goes on with what another one has, of which it takes the place. Without a check it is up, as at the start. */
  replace({ place: former }: UpstreamServer, limit: ConnectionLimit): void {
    former.rules = this.place.rules
    former.isDown = this.place.isDown || (former.isDown && this.check !== undefined)
    former.part = 1
    this.place = former
    this.share(limit)
  }

  share(limit: ConnectionLimit): void {
    this.ungated.limit = limit
    this.budget.moveTo(limit.budget)
    this.#ownPool?.share(limit.unbounded)
  }

  get #pools(): readonly (ConnectionPool | Http2Pool)[] {
    return this.#ownPool === undefined ? [this.pool] : [this.pool, this.#ownPool]
  }

  /** Closes the connections that are not in use, and each other one after its request. */
  keepNone(): void {
    for (const pool of this.#pools) pool.keepNone()
  }

  close(): void {
    this.#onUnused = undefined
    this.warmUp?.close()
    this.breaker?.close()
    this.check?.close()
    for (const pool of this.#pools) pool.close()
    this.budget.close()
  }
}

interface ServerParts {
  readonly settings: UpstreamSettings
  readonly tlsFiles: TlsFiles
  readonly limit: ConnectionLimit
  readonly owner: ServerOwner
}

/** The TLS identity that an upstream must prove. It is never from a client, who must not choose which server is trusted. */
interface Identity {
  /** The server name to ask for. Undefined: the host of the URL is an address. */
  readonly servername?: string
  /** Compares the certificate with `tls.servername` or the host of the URL. Both may be addresses. */
  readonly checkServerIdentity: typeof checkServerIdentity
}

function identityOf({ tls: { servername } }: UpstreamSettings, url: string): Identity {
  const { host } = destinationOf(url)
  const name = servername ?? host
  // RFC 6066 3: an address is not a server name.
  const asked = [name, host].find(each => isIP(each) === 0)
  return {
    ...(asked !== undefined && { servername: asked }),
    checkServerIdentity: (_asked, certificate) => checkServerIdentity(name, certificate),
  }
}

/** What stands for the host of an upstream on a Unix socket, as with nginx. */
const HOST_OF_SOCKET = 'localhost'

/** Without a port that of the scheme. */
export function destinationOf(url: string): ServerAddress {
  const path = socketPathOf(url)
  if (path !== undefined) return { host: HOST_OF_SOCKET, port: 80, path }
  const { hostname, port } = new URL(url)
  return {
    host: hostname.replace(/^\[|\]$/g, ''),
    port: Number(port) || (protocolOf(url) === 'https:' ? 443 : 80),
  }
}

/** The scheme of requests to it. */
export function protocolOf(url: string): 'http:' | 'https:' {
  return url.startsWith('https:') ? 'https:' : 'http:'
}

/** Sends requests that have no place in the gate: those of `off` routes, and dry runs. */
export class UngatedSender implements RequestSender {
  limit: ConnectionLimit
  readonly #pool: RequestSender

  constructor(pool: RequestSender, limit: ConnectionLimit) {
    this.#pool = pool
    this.limit = limit
  }

  send(request: UpstreamRequest, handler: ResponseHandler): (() => void) | undefined {
    const { limit } = this
    let waited = false
    let leavePool: (() => void) | undefined
    const leaveLimit = limit.enter(() => {
      leavePool = this.#pool.send(request, handler, limit.leave)
      if (waited && leavePool === undefined) handler.sentLate()
    })
    if (leaveLimit === undefined) return leavePool
    waited = true
    return () => {
      leaveLimit()
      leavePool?.()
    }
  }
}
