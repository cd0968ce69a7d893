import { isDeepStrictEqual } from 'node:util'
import * as z from 'zod'
import { defined } from '../../core/structures/defined.js'
import { ownValue } from '../../core/structures/own-value.js'
import { maskUrl } from '../messages.js'
import { PACE } from '../periods.js'
import { isScheduled } from '../schedule.js'
import { hasHeader, mayHaveAddress } from '../schema/key.js'
import { type File, file } from '../schema/schema.js'
import type { BucketSettings, KeySettings, RouteSettings, Settings, TierSettings } from '../settings.js'

type Bucket = File['buckets'][string]
type Printed = z.input<typeof file>
type PrintedLimits = NonNullable<NonNullable<Printed['buckets']>[string]['limits']>
type Secrets = 'masked' | 'clear'
/** Matches names of headers, cookies and parameters that hold credentials. */
const CREDENTIAL = /auth|key|token|secret|session|cookie|passw/i

/**
 * The configuration as a file with every default filled in. Passwords, the token and other credentials are `***`; all
 * else parses to the same settings.
 *
 * @param secrets `clear` keeps keys of tiers and headers, for comparisons; never show that
 */
export function effective(settings: Settings, secrets: Secrets = 'masked'): object {
  const { waitingPage: _waitingPage, ...printed } = z.encode(file, asFile(settings)) as Printed
  const { store, upstream, admin, ticketKeys, identity, egress, buckets, routes } = printed
  return {
    ...printed,
    ...(upstream && { upstream: withoutEmpty(upstream) }),
    store: withoutPasswords(store),
    buckets: Object.fromEntries(
      settings.buckets
        .filter(({ paces }) => !paces)
        .map(bucket => [bucket.name, shownBucket(bucket, buckets, secrets)]),
    ),
    routes: routes!.map(({ name, match, refuse, deliver, upstream: own, ...route }) => ({
      name,
      match: { ...match, ...(match?.header && { header: shownHeader(match.header, secrets) }) },
      ...(refuse && { refuse }),
      ...route,
      ...(deliver && { deliver: { ...deliver, url: maskUrl(deliver.url) } }),
      ...(own && { upstream: withoutEmpty(own) }),
    })),
    ...(admin && { admin: withoutToken(admin) }),
    ...(ticketKeys && { ticketKeys: ticketKeys.map(() => '***') }),
    ...(identity && { identity: { jwt: { ...identity.jwt, ...(identity.jwt.secret && { secret: '***' }) } } }),
    ...(egress && { egress: { ...withoutToken(egress), upstream: withoutEmpty(egress.upstream!) } }),
  }
}

/** Settings as the file says them: names in place of what they stand for. */
function asFile({ buckets, routes, egress, levelsFile, notReplaced: _notReplaced, ...rest }: Settings): File {
  const common = routes[0]?.upstream
  return {
    ...rest,
    ...(levelsFile !== undefined && { store: { type: 'memory', file: levelsFile } }),
    ...(common && (egress ? { egress: { ...egress, upstream: common } } : { upstream: common })),
    buckets: Object.fromEntries(
      buckets
        .filter(({ paces }) => !paces)
        .map(bucket => [
          bucket.name,
          bucketInFile(
            bucket,
            buckets.find(({ name }) => name === bucket.name + PACE),
          ),
        ]),
    ),
    routes: routes.map(route => routeInFile(route, common)),
    waitingPage: true,
  }
}

function bucketInFile(bucket: BucketSettings, pacer: BucketSettings | undefined): Bucket {
  const { key, status, weight, timeZone, limits, tiers, outside } = bucket
  const kind = bucket.quota === undefined ? 'rate' : 'quota'
  const { overflow = 'reject', minShare = 0, blockFor, lateness: grace } = limits
  return defined({
    ...limitsInFile(bucket, kind),
    ...(pacer && { capacity: pacer.capacity }),
    // Rates of single keys have capacities that follow from these.
    ...(outside && bucket.quota === undefined && { capacity: outside.capacity, maxDelay: outside.maxDelay }),
    key,
    timeZone: isScheduled(bucket) ? (timeZone ?? 'UTC') : timeZone,
    grace,
    quota: bucket.quota && { limit: limits.capacity, ...bucket.quota },
    status,
    overflow,
    blockFor,
    weight,
    minShare,
    tiers: tiers.length > 0 ? tiers.map(tier => tierInFile(tier, kind)) : undefined,
    limits: outside?.source,
  })
}

type Kind = 'rate' | 'quota'

function tierInFile({ name, keys, header, weight, priority, ...tier }: TierSettings, kind: Kind) {
  const quota = kind === 'quota' ? tier.limits.capacity : undefined
  return defined({ name, keys: keys && [...keys], header, ...limitsInFile(tier, kind), quota, weight, priority })
}

function limitsInFile({ limits, schedule }: Pick<TierSettings, 'limits' | 'schedule'>, kind: Kind) {
  const { rate, capacity, burst, maxInFlight } = limits
  const hasRate = kind === 'rate' && capacity < Infinity
  return {
    rate: hasRate ? (schedule ? [...schedule.entries] : rate) : undefined,
    capacity: hasRate ? capacity : undefined,
    burst,
    maxInFlight,
  }
}

function routeInFile(
  route: RouteSettings,
  common: RouteSettings['upstream'] | undefined,
): NonNullable<File['routes']>[number] {
  const { buckets, maxWait, waitingPage, gate, upstream, headers: _headers, origin: _origin, ...rest } = route
  return {
    ...rest,
    buckets: buckets.filter(({ paces }) => !paces).map(({ name }) => name),
    ...(Number.isFinite(maxWait) && { maxWait }),
    waitingPage: waitingPage?.template === undefined ? waitingPage !== undefined : { template: waitingPage.template },
    ...(gate && Object.keys(gate).length > 0 && { gate }),
    ...(!isDeepStrictEqual(upstream, common) && { upstream }),
  }
}

export function isCredential({ parts }: KeySettings): boolean {
  return parts.some(part => 'name' in part && CREDENTIAL.test(part.name))
}

/** Choices of a key that could never apply are left out. */
function shownBucket({ name, key }: BucketSettings, buckets: Printed['buckets'], secrets: Secrets): object {
  const { tiers, key: printedKey, limits, ...bucket } = ownValue(buckets, name)!
  const { duplicates, ipv6, ...from } = printedKey as { duplicates?: unknown; ipv6?: unknown }
  const isSecret = secrets === 'masked' && isCredential(key)
  return {
    key: { ...from, ...(hasHeader(key) && { duplicates }), ...(mayHaveAddress(key) && { ipv6 }) },
    ...bucket,
    ...(tiers && {
      tiers: tiers.map(({ name, keys, header, ...tier }) => ({
        name,
        ...(keys && { keys: isSecret ? keys.map(() => '***') : keys }),
        ...(header && { header: shownHeader(header, secrets) }),
        ...tier,
      })),
    }),
    ...(limits && { limits: shownLimits(limits, secrets) }),
  }
}

function shownLimits({ postgres, ...limits }: PrintedLimits, secrets: Secrets): object {
  if (postgres === undefined || secrets === 'clear') return { ...limits, ...(postgres && { postgres }) }
  return { postgres: { ...postgres, url: maskUrl(postgres.url) }, ...limits }
}

function shownHeader(header: Readonly<Record<string, string>>, secrets: Secrets): object {
  const shown = ([name, value]: [string, string]) =>
    secrets === 'masked' && CREDENTIAL.test(name) ? [name, '***'] : [name, value]
  return Object.fromEntries(Object.entries(header).map(shown))
}

function withoutPasswords(store: Printed['store']): unknown {
  if (typeof store !== 'object' || store.type === 'memory') return store
  const { cluster } = store as { cluster?: string[] }
  return { ...store, ...(store.url && { url: maskUrl(store.url) }), ...(cluster && { cluster: cluster.map(maskUrl) }) }
}

function withoutToken<T extends { token?: string }>(value: T): T {
  return { ...value, ...(value.token !== undefined && { token: '***' }) }
}

function withoutEmpty(upstream: string | { tls?: object | undefined }): unknown {
  if (typeof upstream === 'string') return upstream
  const { tls, ...options } = upstream
  return Object.keys(tls ?? {}).length > 0 ? upstream : options
}
