import { formatListen } from './address.js'
import { formatKeyPart } from './key-schema.js'
import type {
  BucketSettings,
  CostSettings,
  RouteSettings,
  Settings,
  StoreSettings,
  TierSettings,
  UpstreamSettings,
} from './settings.js'
import { maskUrl } from './words.js'
import { writtenDuration, writtenRate } from './written.js'

/**
 * The configuration in the file's own words with every default filled in; parsed again, it is the same but for the
 * passwords in URLs and the token, which are `***`.
 */
export function effective(settings: Settings): object {
  const { listen, store, trustProxy, buckets, routes, limits, admin, accessLog, dryRun, headers, pacing } = settings
  const common = routes[0]?.upstream
  return {
    listen: listen.tls ? { address: formatListen(listen), tls: listen.tls } : formatListen(listen),
    ...(common && { upstream: writtenUpstream(common) }),
    trustProxy,
    store: store === 'memory' ? store : writtenStore(store),
    buckets: Object.fromEntries(buckets.map(bucket => [bucket.name, writtenBucket(bucket)])),
    routes: routes.map(route => writtenRoute(route, common)),
    limits: {
      maxKeys: limits.maxKeys,
      maxQueued: limits.maxQueued,
      maxConnections: limits.maxConnections,
      headersTimeout: writtenDuration(limits.headersTimeout),
      keepAliveTimeout: writtenDuration(limits.keepAliveTimeout),
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

function writtenStore(store: StoreSettings): object {
  const { timeout, onOutage } = store
  const common = { timeout: writtenDuration(timeout), onOutage }
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
  const { pauseOn, retry, learn } = upstream
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
    learn,
  }
}

function writtenBucket({ key, limits, status, weight, tiers }: BucketSettings): object {
  const { rate, capacity, overflow, blockFor } = limits
  const parts = key.parts.map(formatKeyPart)
  return {
    key: { from: parts.length === 1 ? parts[0] : parts, missing: key.missing },
    rate: writtenRate(rate),
    capacity,
    status,
    overflow,
    ...(blockFor !== undefined && { blockFor: blockFor === 'drain' ? blockFor : writtenDuration(blockFor) }),
    ...(weight !== undefined && { weight }),
    ...(tiers.length > 0 && { tiers: tiers.map(writtenTier) }),
  }
}

function writtenTier({ name, keys, header, limits, weight }: TierSettings): object {
  return {
    name,
    ...(keys && { keys }),
    ...(header && { header }),
    rate: writtenRate(limits.rate),
    capacity: limits.capacity,
    ...(weight !== undefined && { weight }),
  }
}

function writtenRoute(route: RouteSettings, common: UpstreamSettings | undefined): object {
  const { name, match, mode, buckets, cost, maxWait, dryRun, explain, upstream } = route
  const own = writtenUpstream(upstream)
  const isCommon = common !== undefined && JSON.stringify(own) === JSON.stringify(writtenUpstream(common))
  return {
    name,
    match,
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
  return { header: cost.name, max: cost.max, default: cost.default }
}
