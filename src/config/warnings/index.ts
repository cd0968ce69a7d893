/** Warnings: valid configurations that hardly anybody wants. */
import { DEFAULT_PRIORITY } from '../../core/priority.js'
import { isNobody } from '../checks/as-written.js'
import { keyPartsOf, namesIn } from '../derived/header-needs.js'
import type { Problem } from '../load.js'
import { formatPath } from '../problems.js'
import { exactRate } from '../read-values.js'
import { allLimits } from '../report/longest-waits.js'
import { ratesOf } from '../schedule.js'
import { formatListen, isLocal, LISTEN_PORT } from '../schema/address.js'
import { formatKeyPart } from '../schema/key.js'
import type { BucketSettings, RouteSettings, Settings } from '../settings.js'
import { bucketWarnings } from './buckets.js'
import { isInside, isPerClient, passesOne, placesOf, usersOf, type Warning } from './key-scope.js'
import { patternWarnings } from './patterns.js'
import { profileWarnings } from './profiles.js'
import { routeWarnings, withoutQueue } from './routes.js'
import { tierKeyWarnings } from './tier-keys.js'

/** Each warning says where, what the effect is, and what to write instead. @param wallNow ms since 1970 */
export function warnings(settings: Settings, wallNow = Date.now()): Problem[] {
  const found = [
    ...(settings.notReplaced ?? []),
    ...clientWarnings(settings),
    ...withoutCertificates(settings),
    ...identityWarnings(settings),
    ...withoutBodies(settings),
    ...bucketWarnings(settings),
    ...tierKeyWarnings(settings),
    ...patternWarnings(settings),
    ...stackWarnings(settings),
    ...routeWarnings(settings),
    ...priorityWarnings(settings),
    ...(settings.store === 'memory' ? [] : [...fairAmongOwn(settings), ...ownInFlight(settings)]),
    ...profileWarnings(settings, wallNow),
  ]
  const place = settings.egress === undefined ? (path: Path) => path : inEgress
  return found.map(({ path, message }) => ({ path: formatPath(place(path)), message }))
}

type Path = readonly PropertyKey[]
const LOOPBACK = /^(?:localhost|127\.[\d.]+|\[::1\])$/

/** With egress all routes have the upstream of `egress`. */
function inEgress(path: Path): Path {
  const at = path.indexOf('upstream')
  return at < 0 ? path : ['egress', ...path.slice(at)]
}

function clientWarnings(settings: Settings): Warning[] {
  const { buckets, routes, listen, trustProxy } = settings
  const byAddress = buckets.find(
    bucket => bucket.key.parts.some(({ kind }) => kind === 'ip') && usersOf(bucket, settings).length > 0,
  )
  const path = ['trustProxy']
  const chosen = routes.find(({ match }) => match.ip !== undefined)
  if (trustProxy === true && (chosen ?? byAddress) !== undefined) {
    const subject = chosen === undefined ? `bucket "${byAddress!.name}"` : `"match" of route "${chosen.name}"`
    const message = `with true clients can choose their own address for ${subject}, with a header X-Forwarded-For; list your proxies instead, e.g. ["loopback", "10.0.0.0/8"], or give their number`
    return [{ path, message }]
  }
  const trusted = trustProxy === false ? [] : trustProxy
  if (byAddress === undefined || typeof trusted !== 'object') return []
  const sockets = listen.filter(each => 'path' in each)
  const isUnheard = !trusted.includes('loopback') && sockets.length > 0
  const isLocalOnly = listen.every(each => isLocal(each) && !each.proxyProtocol)
  if (isLocalOnly && (trustProxy === false || (isUnheard && sockets.length === listen.length)))
    return [{ path, message: onlyLocal(listen, byAddress) }]
  if (!isUnheard) return []
  const where = sockets.map(formatListen).join(' and ')
  const names = [...trusted, 'loopback'].map(each => JSON.stringify(each)).join(', ')
  const message = `a hint: clients of ${where} have no address, so all of them share bucket "${byAddress.name}" as one client; behind a proxy on this machine use [${names}]`
  return [{ path, message }]
}

function onlyLocal(listen: Settings['listen'], { name }: BucketSettings): string {
  const where = listen.map(each => ('host' in each ? each.host : formatListen(each))).join(' and ')
  const port = listen.find(each => 'port' in each)
  const everywhere = `"${formatListen({ host: '0.0.0.0', port: port?.port ?? LISTEN_PORT })}"`
  const isOne = listen.length === 1
  const change =
    isOne || port === undefined ? `"listen": ${everywhere}` : `${everywhere} in place of "${formatListen(port)}"`
  return `a hint: only this machine reaches ${where}, so all clients ${isOne ? '' : 'of each '}have the same address and share bucket "${name}"; behind a proxy on this machine use ["loopback"], for clients on others ${change}`
}

/** Clients are not asked for what a key is made of. */
function withoutCertificates({ buckets, listen }: Settings): Warning[] {
  if (listen.some(({ tls }) => tls?.clientCa !== undefined)) return []
  const message =
    'no client is asked for a certificate, so the key "cert" is always missing; name the authority of your clients in "listen": { "tls": { "clientCa": "FILE" } }'
  return buckets
    .filter(({ key }) => key.parts.some(({ kind }) => kind === 'cert'))
    .map(({ name }) => ({ path: ['buckets', name, 'key'], message }))
}

function identityWarnings({ identity, routes }: Settings): Warning[] {
  if (identity === undefined) return []
  const path = ['identity', 'jwt']
  if (namesIn(keyPartsOf(routes), 'jwt').length === 0) {
    const message = 'has no effect, as no key is made of a token; use e.g. "key": "jwt:sub" in a bucket, or remove this'
    return [{ path, message }]
  }
  const { protocol = 'https:', hostname = '' } = identity.jwt.jwksUrl === undefined ? {} : new URL(identity.jwt.jwksUrl)
  if (protocol === 'https:' || LOOPBACK.test(hostname)) return []
  const message = 'the keys are read without TLS, so who is on the way can make tokens of their own valid; use https'
  return [{ path: [...path, 'jwksUrl'], message }]
}

/** Reported once for each bucket. */
function withoutBodies({ buckets, routes }: Settings): Warning[] {
  const isUnread = ({ mode, upstream }: RouteSettings) => mode !== 'off' && upstream.requestBuffer === 0
  return buckets.flatMap(bucket => {
    const part = bucket.key.parts.find(({ kind }) => kind === 'body')
    const route = routes.find(each => isUnread(each) && each.buckets.includes(bucket))
    if (part === undefined || route === undefined || bucket.paces) return []
    const message = `no body is read on route "${route.name}" with "requestBuffer": 0, so the key "${formatKeyPart(part)}" is always missing there; raise that`
    return [{ path: ['buckets', bucket.name, 'key'], message }]
  })
}

/** Each pair of buckets is reported once, for the first route that has both. */
function stackWarnings({ routes }: Settings): Warning[] {
  const reported = new Set<string>()
  return routes.flatMap(route => {
    if (route.mode === 'off') return []
    return pairsOf(route).flatMap(([narrow, wide]) =>
      [...unreachableRate(narrow, wide, route), ...oneClientFills(narrow, wide, route)].filter(({ path }) => {
        const subject = [...path, narrow.name, wide.name].join('\n')
        return !reported.has(subject) && reported.add(subject)
      }),
    )
  })
}

function pairsOf({ buckets }: RouteSettings): [narrow: BucketSettings, wide: BucketSettings][] {
  return buckets.flatMap(narrow =>
    buckets.filter(wide => isInside(narrow, wide)).map((wide): [BucketSettings, BucketSettings] => [narrow, wide]),
  )
}

/** Warns of a rate that a wider bucket never lets through. A bucket without a rate only bounds what is in flight. */
function unreachableRate(narrow: BucketSettings, wide: BucketSettings, { name }: RouteSettings): Warning[] {
  const fastest = Math.max(...[wide, ...wide.tiers].flatMap(ratesOf))
  const place = placesOf(narrow).find(({ limits }) => limits.capacity < Infinity && limits.rate > fastest)
  if (place === undefined) return []
  const message = `${exactRate(place.limits.rate)} can never be reached: bucket "${wide.name}", which comes with it on route "${name}", lets ${exactRate(fastest)} pass for all its keys together; raise that one or lower this`
  return [{ path: [...place.path, 'rate'], message }]
}

function oneClientFills(narrow: BucketSettings, wide: BucketSettings, route: RouteSettings): Warning[] {
  const { name, mode, buckets } = route
  const { overflow } = wide.limits
  if (isPerClient(wide) || !isPerClient(narrow) || (mode === 'shape' && overflow === 'fair')) return []
  const least = Math.min(...allLimits(wide).map(({ capacity }) => capacity))
  const most = mostHeld(narrow)
  // Another bucket of the same client may hold less.
  if (buckets.some(other => isPerClient(other) && passesOne(narrow, other) && mostHeld(other) < least)) return []
  const path = ['buckets', wide.name, mode === 'shape' ? 'overflow' : 'capacity']
  const fair = mode === 'shape' ? 'set "overflow": "fair", or ' : ''
  const message = `one client can fill this bucket (${least}) on route "${name}", as its own bucket "${narrow.name}" ${most === Infinity ? 'has no capacity' : `holds ${most}`}, and then everyone else is rejected; ${fair}make this capacity larger or that one smaller`
  return [{ path, message }]
}

function mostHeld(bucket: BucketSettings): number {
  return Math.max(...allLimits(bucket).map(({ capacity }) => capacity))
}

const UNBELIEVED = 'has no effect, as only trusted hops are believed; set "trustProxy", or write a number'

function priorityWarnings({ routes, trustProxy }: Settings): Warning[] {
  return routes.flatMap((route, index) => {
    if (route.priority === DEFAULT_PRIORITY) return []
    const isUnbelieved = route.priority === 'header' && isNobody(trustProxy)
    const message = idle(route, routes) ?? (isUnbelieved ? UNBELIEVED : undefined)
    return message === undefined ? [] : [{ path: ['routes', index, 'priority'], message }]
  })
}

function idle(route: RouteSettings, routes: readonly RouteSettings[]): string | undefined {
  const { mode, buckets, upstream } = route
  if (mode !== 'shape') return withoutQueue(mode)
  // They wait for a place at their upstream, too.
  const isBounded = upstream.maxInFlight < Infinity || upstream.connections !== undefined
  const shaped = routes.filter(other => other.mode === 'shape')
  const rivals = shaped.filter(
    other =>
      other.buckets.some(bucket => buckets.includes(bucket)) || (isBounded && other.upstream.url === upstream.url),
  )
  if (new Set(rivals.flatMap(prioritiesOf)).size > 1) return undefined
  return 'has no effect, as all requests that wait for the same buckets have this priority; give another route or a tier another one, or remove it'
}

function prioritiesOf({ priority, buckets }: RouteSettings): (number | string)[] {
  const ofTiers = buckets.flatMap(({ tiers }: BucketSettings) => tiers.flatMap(tier => tier.priority ?? []))
  return priority === 'header' ? ['header', DEFAULT_PRIORITY, ...ofTiers] : [priority, ...ofTiers]
}

function fairAmongOwn(settings: Settings): Warning[] {
  return settings.buckets.flatMap(bucket => {
    if (bucket.limits.overflow !== 'fair' || !usersOf(bucket, settings).some(({ mode }) => mode === 'shape')) return []
    const message =
      'a hint: with a shared store "fair" makes room only among requests of the same instance, and rejects when requests of others fill the bucket; send each client to one instance, or use "reject"'
    return [{ path: ['buckets', bucket.name, 'overflow'], message }]
  })
}

/** Reported once for each URL. */
function ownInFlight({ routes }: Settings): Warning[] {
  const [common] = routes
  const reported = new Set<string>()
  return routes.flatMap(({ upstream }, index) => {
    const { url, maxInFlight, connections = Infinity } = upstream
    if (Math.min(maxInFlight, connections) === Infinity || reported.has(url)) return []
    reported.add(url)
    const path = [...(upstream === common?.upstream ? [] : ['routes', index]), 'upstream']
    const hint = (key: string, many: string) => ({
      path: [...path, key],
      message: `a hint: each program counts its own, so N programs have up to N x ${many}; divide it by how many programs there are; workers of one program divide it themselves`,
    })
    return [
      ...(maxInFlight < Infinity ? [hint('maxInFlight', `${maxInFlight} requests in flight`)] : []),
      ...(connections < Infinity ? [hint('connections', `${connections} connections`)] : []),
    ]
  })
}
