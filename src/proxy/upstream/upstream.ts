import { isIP, type LookupFunction } from 'node:net'
import { checkServerIdentity } from 'node:tls'
import { readAuthorities } from '../../config/checks/readable-files.js'
import type { UpstreamSettings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import type { Gate } from '../../core/queue/lane.js'
import { Deadlines } from '../deadlines.js'
import type { ConnectionBudget } from '../http1/connection-budget.js'
import { ConnectionPool } from '../http1/connection-pool.js'
import { type ConnectOptions, Opener } from '../http1/open-connection.js'
import { Http2Pool } from '../http2/http2-pool.js'
import type { AdaptiveLimit } from './adaptive-limit.js'
import { Breaker } from './breaker.js'
import { ConnectionLimit } from './connection-limit.js'
import { UngatedSender } from './ungated-sender.js'
import type { UpstreamQuota } from './upstream-quota.js'
import { WarmUp } from './warm-up.js'

/** What upstreams share. */
export interface UpstreamsOptions {
  readonly clock: Clock
  /** The time of releases, in ms. */
  readonly now: () => number
  /** Lets the core look at a gate that has more places. */
  readonly wake: (gate: Gate) => void
  /** The rate of an upstream has adapted. */
  readonly adapted: (limit: AdaptiveLimit) => void
  /** This instance has found another state of it. */
  readonly adaptiveFound: (limit: AdaptiveLimit) => void
  /** Whether other instances send to them at the same rates. */
  readonly isShared: boolean
  /** Resolves names for connections to a port. Undefined: as the system does. */
  readonly lookupFor: ((port: number) => LookupFunction) | undefined
}

/** An upstream: its connections, its gate and its deadlines. */
export interface Upstream {
  readonly settings: UpstreamSettings
  /** The URL to connect to. */
  readonly url: string
  /** Its Host header with `hostHeader: "upstream"`. */
  readonly authority: string
  readonly identity: Identity
  /** Resolves its name. Undefined: as the system does. */
  readonly lookup: LookupFunction | undefined
  /** For requests with a place in the gate. */
  readonly pool: ConnectionPool | Http2Pool
  /** For requests without a place in the gate. With `connections` they share its pool, else they have their own. */
  readonly ungated: UngatedSender
  /** It may have been another upstream's before a reload, and may serve requests of both. */
  readonly limit: ConnectionLimit
  readonly gate: Gate
  /** Requests that wait for their release to it, and will then need a connection of its pool. */
  queued: number
  /** All its requests, from their arrival to the end of their answers. */
  requests: number
  /** Called when the last of its requests has ended. Set while the upstream is no longer in use. */
  onUnused: (() => void) | undefined
  /** From the end of the upload to the answer's headers. */
  readonly answer: Deadlines
  /** When the head of an answer last came, in ms. */
  answeredAt: number
  /** Between two pieces of a body, in either direction. */
  readonly progress: Deadlines
  /** The clock of its deadlines. */
  readonly clock: Clock
  /** Its announced limits; undefined: they are not used. */
  quota: UpstreamQuota | undefined
  /** The rate that it can take, as far as that is known. Undefined: it does not adapt. */
  adaptive: AdaptiveLimit | undefined
  /** Undefined: requests are never kept away from it. */
  readonly breaker: Breaker | undefined
  /** Undefined: it gets its full rate at once. */
  readonly warmUp: WarmUp | undefined
  /** The content of the file `tls.ca`. */
  readonly ca: Buffer | undefined
  /** Replaces `ca` for new connections. Open ones stay. */
  trust(ca: Buffer): void
  /** Goes on with the limit of an upstream that it replaces, which has no more need of idle connections. */
  replace(former: Upstream): void
  /** Closes the connections that are not in use, and each other one after its request. */
  keepNone(): void
  close(): void
}

/**
 * The TLS identity that an upstream must prove. It comes from the configuration alone: a client must not choose which
 * server is trusted.
 */
export interface Identity {
  /** The server name to ask for. Undefined: the host of the URL, unless that is an address. */
  readonly servername?: string
  /** Compares the certificate with `tls.servername` or the host of the URL. Both may be addresses. */
  readonly checkServerIdentity: typeof checkServerIdentity
}

/**
 * @param url the URL to connect to: that of the settings, or of the built-in echo upstream
 * @throws if the file of `tls.ca` cannot be read or is bad
 */
export function createUpstream(settings: UpstreamSettings, url: string, options: UpstreamsOptions): Upstream {
  const { clock, wake } = options
  const { tls } = settings
  let ca = tls.ca === undefined ? undefined : readAuthorities(tls.ca)
  const identity = identityOf(settings, url)
  const lookup = options.lookupFor?.(portOf(url))
  const { maxInFlight, connections, keepAlive, maxConnectionAge: maxAge, connectTimeout } = settings
  const opener = (): Opener => new Opener({ ...connectOptions(url, identity, ca), ...(lookup && { lookup }) })
  const pooling = { opener: opener(), clock, connectTimeout, keepAlive, maxAge }
  let limit = new ConnectionLimit(wake)
  limit.apply(settings)
  const createPool = (budget: ConnectionBudget): ConnectionPool | Http2Pool =>
    settings.http2 ? new Http2Pool(url, { ...pooling, budget }) : new ConnectionPool({ ...pooling, budget })
  const pool = createPool(limit.budget)
  const apart = connections === undefined && maxInFlight < Infinity
  const ungatedPool = apart ? createPool(limit.unbounded) : pool
  const pools = new Set([pool, ungatedPool])
  const ungated = new UngatedSender(ungatedPool, limit)
  const answer = new Deadlines(clock, settings.responseTimeout)
  const progress = new Deadlines(clock, settings.idleTimeout)
  const upstream: Upstream = {
    settings,
    url,
    authority: new URL(url).host,
    identity,
    lookup,
    pool,
    ungated,
    get limit() {
      return limit
    },
    get gate() {
      return limit.gate
    },
    queued: 0,
    requests: 0,
    onUnused: undefined,
    answer,
    answeredAt: -Infinity,
    progress,
    clock,
    quota: undefined,
    adaptive: undefined,
    get breaker() {
      return breaker
    },
    warmUp: settings.warmUp === undefined ? undefined : new WarmUp(settings.warmUp),
    get ca() {
      return ca
    },
    trust(renewed) {
      ca = renewed
      for (const each of pools) each.change(opener())
    },
    replace(former) {
      former.keepNone()
      limit = former.limit
      ungated.limit = limit
      pool.share(limit.budget)
      if (apart) ungatedPool.share(limit.unbounded)
      limit.apply(settings)
    },
    keepNone() {
      for (const each of pools) each.keepNone()
    },
    close() {
      upstream.warmUp?.close()
      upstream.breaker?.close()
      answer.close()
      progress.close()
      for (const each of pools) each.close()
    },
  }
  const breaker = settings.breaker && new Breaker(settings.breaker, upstream)
  return upstream
}

function connectOptions(url: string, identity: Identity, ca: Buffer | undefined): ConnectOptions {
  const secure = url.startsWith('https:')
  const host = hostOf(url)
  const name = isIP(host) === 0 ? { servername: host } : undefined
  return {
    host,
    port: portOf(url),
    tls: secure ? { ...name, ...identity, ...(ca !== undefined && { ca }) } : undefined,
  }
}

function identityOf({ tls: { servername } }: UpstreamSettings, url: string): Identity {
  const name = servername ?? hostOf(url)
  return {
    // RFC 6066 3: an address is not a server name.
    ...(servername !== undefined && isIP(servername) === 0 && { servername }),
    checkServerIdentity: (_asked, certificate) => checkServerIdentity(name, certificate),
  }
}

/** Counts out a request. The last one of an upstream that is no longer in use closes it. */
export function requestEnded(upstream: Upstream): void {
  upstream.requests -= 1
  if (upstream.requests === 0) upstream.onUnused?.()
}

/** The host of a URL: a name or an address (IPv6 without brackets). */
export function hostOf(url: string): string {
  return new URL(url).hostname.replace(/^\[|\]$/g, '')
}

/** The port of a URL, or that of its scheme. */
export function portOf(url: string): number {
  const { protocol, port } = new URL(url)
  return Number(port) || (protocol === 'https:' ? 443 : 80)
}

/** The Host header towards an upstream. */
export function hostTowards({ settings, authority }: Upstream, asked: string | undefined): string {
  return settings.hostHeader === 'upstream' ? authority : (asked ?? authority)
}
