import { maskUrl } from '../messages.js'
import { formatListen } from '../schema/address.js'
import { formatKeyPart } from '../schema/key.js'
import type {
  BucketSettings,
  CostSettings,
  RouteSettings,
  Settings,
  StoreSettings,
  TierSettings,
  UpstreamSettings,
} from '../settings.js'
import { writtenDuration, writtenRate } from './exact-units.js'

/**
 * The configuration in the file's own words with every default filled in; parsed again, it is the same but for the
 * passwords in URLs, the token and what else may be a credential, which are `***`.
 *
 * @param secrets `clear`: of customers' keys and headers, for comparing; never to be shown
 */
export function effective(settings: Settings, secrets: 'masked' | 'clear' = 'masked'): object {
  const { listen, store, trustProxy, buckets, routes, limits, admin, accessLog, dryRun, headers, pacing } = settings
  const common = routes[0]?.upstream
  return {
    listen: listen.tls ? { address: formatListen(listen), tls: listen.tls } : formatListen(listen),
    ...(common && { upstream: writtenUpstream(common) }),
    trustProxy,
    store: store === 'memory' ? store : writtenStore(store),
    buckets: Object.fromEntries(buckets.map(bucket => [bucket.name, writtenBucket(bucket, secrets)])),
    routes: routes.map(route => writtenRoute(route, common, secrets)),
    limits: {
      maxKeys: limits.maxKeys,
      maxQueued: limits.maxQueued,
      maxConnections: limits.maxConnections,
      headersTimeout: writtenDuration(limits.headersTimeout),
      keepAliveTimeout: writtenDuration(limits.keepAliveTimeout),
      tunnelIdleTimeout: writtenDuration(limits.tunnelIdleTimeout),
      maxHeaderSize: limits.maxHeaderSize,
      shutdownTimeout: writtenDuration(limits.shutdownTimeout),
    },
    ...(admin && { admin: { listen: formatListen(admin.listen), ...(admin.token !== undefined && { token: '***' }) } }),
    accessLog,
    dryRun,
    headers,
    pacing,
  }
}

type Secrets = 'masked' | 'clear'

/** Names of headers, cookies and parameters whose values are credentials. */
const CREDENTIAL = /auth|key|token|secret|session|cookie|passw/i

function writtenHeader(header: Readonly<Record<string, string>>, secrets: Secrets): object {
  const shown = ([name, value]: [string, string]): [string, string] =>
    secrets === 'masked' && CREDENTIAL.test(name) ? [name, '***'] : [name, value]
  return Object.fromEntries(Object.entries(header).map(shown))
}

function writtenStore(store: StoreSettings): object {
  const { timeout, onOutage, instances } = store
  const common = { timeout: writtenDuration(timeout), onOutage, ...(instances !== undefined && { instances }) }
  if (store.type === 'postgres') return { type: store.type, url: maskUrl(store.url), table: store.table, ...common }
  const { type, url, cluster, prefix } = store
  return {
    type,
    ...(url !== undefined && { url: maskUrl(url) }),
    ...(cluster && { cluster: cluster.map(maskUrl) }),
    prefix,
    ...common,
  }
}

function writtenUpstream(upstream: UpstreamSettings): object {
  const { url, hostHeader, maxInFlight, connectTimeout, responseTimeout, idleTimeout, tls } = upstream
  const { pauseOn, retry, via, learn } = upstream
  return {
    url,
    hostHeader,
    ...(Number.isFinite(maxInFlight) && { maxInFlight }),
    connectTimeout: writtenDuration(connectTimeout),
    responseTimeout: writtenDuration(responseTimeout),
    idleTimeout: writtenDuration(idleTimeout),
    ...(Object.keys(tls).length > 0 && { tls }),
    ...(pauseOn && {
      pauseOn: { ...pauseOn, default: writtenDuration(pauseOn.default), max: writtenDuration(pauseOn.max) },
    }),
    ...(retry && { retry }),
    via,
    learn,
  }
}

function writtenBucket({ key, limits, status, weight, tiers }: BucketSettings, secrets: Secrets): object {
  const { rate, capacity, overflow, blockFor } = limits
  const parts = key.parts.map(formatKeyPart)
  const isSecret = key.parts.some(part => 'name' in part && CREDENTIAL.test(part.name))
  return {
    key: { from: parts.length === 1 ? parts[0] : parts, missing: key.missing },
    rate: writtenRate(rate),
    capacity,
    status,
    overflow,
    ...(blockFor !== undefined && { blockFor: blockFor === 'drain' ? blockFor : writtenDuration(blockFor) }),
    ...(weight !== undefined && { weight }),
    ...(tiers.length > 0 && { tiers: tiers.map(tier => writtenTier(tier, isSecret ? secrets : 'clear', secrets)) }),
  }
}

function writtenTier({ name, keys, header, limits, weight }: TierSettings, ofKeys: Secrets, secrets: Secrets): object {
  return {
    name,
    ...(keys && { keys: ofKeys === 'masked' ? keys.map(() => '***') : keys }),
    ...(header && { header: writtenHeader(header, secrets) }),
    rate: writtenRate(limits.rate),
    capacity: limits.capacity,
    ...(weight !== undefined && { weight }),
  }
}

function writtenRoute(route: RouteSettings, common: UpstreamSettings | undefined, secrets: Secrets): object {
  const { name, match, mode, buckets, cost, maxWait, dryRun, explain, upstream } = route
  const own = writtenUpstream(upstream)
  const isCommon = common !== undefined && JSON.stringify(own) === JSON.stringify(writtenUpstream(common))
  return {
    name,
    match: { ...match, ...(match.header && { header: writtenHeader(match.header, secrets) }) },
    mode,
    buckets: buckets.map(bucket => bucket.name),
    cost: writtenCost(cost),
    ...(Number.isFinite(maxWait) && { maxWait: writtenDuration(maxWait) }),
    dryRun,
    explain,
    ...(!isCommon && { upstream: own }),
  }
}

function writtenCost(cost: CostSettings): unknown {
  if (cost.kind === 'fixed') return cost.cost
  if (cost.kind === 'method') return { ...cost.costs, default: cost.default }
  return { header: cost.name, min: cost.min, max: cost.max, default: cost.default }
}
