import { formatJsonPath } from '../../http/figures/json-path.js'
import { maskUrl } from '../messages.js'
import { isScheduled } from '../schedule.js'
import { formatListen, GATE } from '../schema/address.js'
import { formatKeyPart, hasHeader, mayHaveAddress } from '../schema/key.js'
import { formatTime } from '../schema/rates.js'
import type {
  AdaptSettings,
  BucketCostSettings,
  BucketSettings,
  CostSettings,
  EgressSettings,
  KeySettings,
  Listen,
  RateSchedule,
  RouteSettings,
  Settings,
  StoreSettings,
  TierSettings,
  UpstreamSettings,
} from '../settings.js'
import { exactDuration, exactRate } from './exact-units.js'

/**
 * The configuration as a file with every default filled in. Passwords, the token and other credentials are `***`; all
 * else parses to the same settings.
 *
 * @param secrets `clear` keeps keys of tiers and headers, for comparisons; never show that
 */
export function effective(settings: Settings, secrets: 'masked' | 'clear' = 'masked'): object {
  const { listen, store, trustProxy, buckets, routes, limits, admin, ticketKeys, egress } = settings
  const { accessLog, dryRun, headers, pacing } = settings
  const common = routes[0]?.upstream
  return {
    listen: formatAddresses(listen),
    ...(common && !egress && { upstream: upstreamOf(common) }),
    trustProxy,
    store: store === 'memory' ? store : formatStore(store),
    buckets: Object.fromEntries(buckets.map(bucket => [bucket.name, formatBucket(bucket, secrets)])),
    routes: routes.map(route => formatRoute(route, common, secrets)),
    limits: {
      maxKeys: limits.maxKeys,
      maxQueued: limits.maxQueued,
      maxConnections: limits.maxConnections,
      connectionsPerClient: limits.connectionsPerClient,
      headersTimeout: exactDuration(limits.headersTimeout),
      keepAliveTimeout: exactDuration(limits.keepAliveTimeout),
      tunnelIdleTimeout: exactDuration(limits.tunnelIdleTimeout),
      bodyTimeout: exactDuration(limits.bodyTimeout),
      minBodyRate: limits.minBodyRate,
      bufferMemory: limits.bufferMemory,
      maxHeaderSize: limits.maxHeaderSize,
      maxHeaders: limits.maxHeaders,
      drainDelay: exactDuration(limits.drainDelay),
      shutdownTimeout: exactDuration(limits.shutdownTimeout),
    },
    ...(admin && { admin: { listen: formatListen(admin.listen), ...(admin.token !== undefined && { token: '***' }) } }),
    ...(ticketKeys && { ticketKeys: ticketKeys.map(() => '***') }),
    ...(egress && { egress: formatEgress(egress, common) }),
    accessLog,
    dryRun,
    headers,
    pacing,
  }
}

function formatAddresses({ tls, grpc, ...listen }: Listen): object | string {
  const address = formatListen(listen)
  if (tls === undefined && grpc === undefined) return address
  return { address, ...(tls && { tls }), ...(grpc && { grpc: formatListen(grpc) }) }
}

type Secrets = 'masked' | 'clear'

/** Matches names of headers, cookies and parameters that hold credentials. */
const CREDENTIAL = /auth|key|token|secret|session|cookie|passw/i

function formatHeader(header: Readonly<Record<string, string>>, secrets: Secrets): object {
  const shown = ([name, value]: [string, string]): [string, string] =>
    secrets === 'masked' && CREDENTIAL.test(name) ? [name, '***'] : [name, value]
  return Object.fromEntries(Object.entries(header).map(shown))
}

function formatStore(store: StoreSettings): object {
  const { timeout, onOutage, instances } = store
  const common = { timeout: exactDuration(timeout), onOutage, ...(instances !== undefined && { instances }) }
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

/** A gate has no options. */
function upstreamOf(upstream: UpstreamSettings): object | string {
  return upstream.url === GATE ? GATE : formatUpstream(upstream)
}

function formatUpstream(upstream: UpstreamSettings): object {
  const { url, hostHeader, maxInFlight, connections, keepAlive, requestBuffer, responseBuffer, tls } = upstream
  const { maxConnectionAge, connectTimeout, responseTimeout, idleTimeout } = upstream
  const { profile, breaker, adapt, warmUp, pauseOn, retry, via, http2, learn, resource } = upstream
  return {
    url,
    ...(profile !== undefined && { profile }),
    hostHeader,
    ...(Number.isFinite(maxInFlight) && { maxInFlight }),
    ...(connections !== undefined && { connections }),
    keepAlive: keepAlive > 0 && exactDuration(keepAlive),
    maxConnectionAge: exactDuration(maxConnectionAge),
    requestBuffer,
    responseBuffer,
    connectTimeout: exactDuration(connectTimeout),
    responseTimeout: exactDuration(responseTimeout),
    idleTimeout: exactDuration(idleTimeout),
    ...(Object.keys(tls).length > 0 && { tls }),
    breaker: breaker
      ? {
          ...breaker,
          probe: exactDuration(breaker.probe),
          maxProbe: exactDuration(breaker.maxProbe),
          hold: exactDuration(breaker.hold),
        }
      : false,
    ...(adapt && { adapt: formatAdapt(adapt) }),
    ...(warmUp !== undefined && { warmUp: exactDuration(warmUp) }),
    ...(pauseOn && {
      pauseOn: { ...pauseOn, default: exactDuration(pauseOn.default), max: exactDuration(pauseOn.max) },
    }),
    ...(retry && { retry }),
    via,
    http2,
    learn,
    ...(resource !== undefined && { resource }),
  }
}

function formatEgress({ allow, token }: EgressSettings, upstream: UpstreamSettings | undefined): object {
  const {
    url: _url,
    hostHeader: _hostHeader,
    http2: _http2,
    ...options
  } = { ...(upstream && formatUpstream(upstream)) } as Shown
  return { allow, ...(token !== undefined && { token: '***' }), upstream: options }
}

type Shown = Readonly<Record<string, unknown>>

function formatAdapt({ min, max, start, latency, errors }: AdaptSettings): object {
  return {
    min: exactRate(min),
    max: exactRate(max),
    start: exactRate(start),
    ...(latency && { latency: { [`p${Math.round(latency.part * 100)}`]: exactDuration(latency.ms) } }),
    errors,
  }
}

function formatBucket(bucket: BucketSettings, secrets: Secrets): object {
  const { key, limits, schedule, timeZone, status, weight, tiers } = bucket
  const { capacity, burst, overflow, blockFor, maxInFlight, minShare, lateness } = limits
  const isSecret = key.parts.some(part => 'name' in part && CREDENTIAL.test(part.name))
  return {
    key: formatKey(key),
    ...(capacity < Infinity && { rate: formatRates(limits.rate, schedule) }),
    ...((timeZone !== undefined || isScheduled(bucket)) && { timeZone: timeZone ?? 'UTC' }),
    ...(capacity < Infinity && { capacity }),
    ...(burst !== undefined && { burst }),
    ...(lateness !== undefined && { grace: exactDuration(lateness) }),
    ...(maxInFlight !== undefined && { maxInFlight }),
    status,
    overflow,
    ...(blockFor !== undefined && { blockFor: blockFor === 'drain' ? blockFor : exactDuration(blockFor) }),
    ...(weight !== undefined && { weight }),
    minShare,
    ...(tiers.length > 0 && { tiers: tiers.map(tier => formatTier(tier, isSecret ? secrets : 'clear', secrets)) }),
  }
}

/** Settings that could never apply are left out. */
function formatKey(key: KeySettings): object {
  const { parts, missing, duplicates, ipv6 } = key
  const from = parts.map(formatKeyPart)
  return {
    from: from.length === 1 ? from[0] : from,
    missing,
    ...(hasHeader(key) && { duplicates }),
    ...(mayHaveAddress(key) && { ipv6 }),
  }
}

function formatRates(rate: number, schedule: RateSchedule | undefined): unknown {
  if (schedule === undefined) return exactRate(rate)
  return schedule.entries.map(({ from, to, rate: own }) => ({
    ...(from !== undefined && { from: formatTime(from) }),
    ...(to !== undefined && { to: formatTime(to) }),
    rate: exactRate(own),
  }))
}

function formatTier(tier: TierSettings, ofKeys: Secrets, secrets: Secrets): object {
  const { name, keys, header, limits, schedule, weight, priority } = tier
  return {
    name,
    ...(keys && { keys: ofKeys === 'masked' ? keys.map(() => '***') : keys }),
    ...(header && { header: formatHeader(header, secrets) }),
    ...(limits.capacity < Infinity && { rate: formatRates(limits.rate, schedule), capacity: limits.capacity }),
    ...(limits.burst !== undefined && { burst: limits.burst }),
    ...(limits.maxInFlight !== undefined && { maxInFlight: limits.maxInFlight }),
    ...(weight !== undefined && { weight }),
    ...(priority !== undefined && { priority }),
  }
}

function formatRoute(route: RouteSettings, common: UpstreamSettings | undefined, secrets: Secrets): object {
  const {
    name,
    match,
    mode,
    buckets,
    cost,
    maxWait,
    patience,
    priority,
    dryRun,
    refuse,
    explain,
    coalesce,
    appointments,
    waitingPage,
    gate,
    upstream,
  } = route
  const own = formatUpstream(upstream)
  const isCommon = common !== undefined && JSON.stringify(own) === JSON.stringify(formatUpstream(common))
  return {
    name,
    match: { ...match, ...(match.header && { header: formatHeader(match.header, secrets) }) },
    mode,
    buckets: buckets.map(bucket => bucket.name),
    cost: formatCost(cost),
    ...(Number.isFinite(maxWait) && { maxWait: exactDuration(maxWait) }),
    patience: typeof patience === 'number' ? exactDuration(patience) : patience,
    priority: priority === 'header' ? { header: true } : priority,
    dryRun,
    ...(refuse && { refuse }),
    explain,
    coalesce,
    appointments,
    waitingPage: waitingPage?.template === undefined ? waitingPage !== undefined : waitingPage,
    ...(gate?.rejectStatus !== undefined && { gate }),
    ...(!isCommon && { upstream: upstreamOf(upstream) }),
  }
}

function formatCost(cost: CostSettings): unknown {
  if (cost.kind === 'fixed') return cost.cost
  if (cost.kind === 'method') return { ...cost.costs, default: cost.default }
  if (cost.kind === 'header') return { header: cost.name, min: cost.min, max: cost.max, default: cost.default }
  return {
    buckets: Object.fromEntries(Object.entries(cost.costs).map(([name, each]) => [name, formatBucketCost(each)])),
  }
}

function formatBucketCost({ estimate, max, after }: BucketCostSettings): unknown {
  if (typeof estimate === 'number' && max === undefined && after === undefined) return estimate
  return {
    estimate: formatEstimate(estimate),
    ...(max && { max: formatJsonPath(max) }),
    ...(after && { after: after.length === 1 ? formatJsonPath(after[0]!) : after.map(formatJsonPath) }),
  }
}

function formatEstimate(estimate: BucketCostSettings['estimate']): string | number {
  if (typeof estimate === 'number') return estimate
  return 'path' in estimate ? formatJsonPath(estimate.path) : `body/${estimate.bytesPerUnit}`
}
