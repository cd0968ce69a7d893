/**
 * What a request of a key would meet on each route of its bucket, if one came now: which buckets and costs, how long it would wait, and
 * what would hold or reject it.
 */
import { formatKeyPart } from '../../config/schema/key.js'
import type { BucketSettings, KeyPart, KeySettings, MatchSettings } from '../../config/settings.js'
import { decide, placeless, shutOut } from '../../core/admission/decide.js'
import { causeOfWait } from '../../core/admission/predicted-wait.js'
import { QueuedBucket } from '../../core/bucket/queued-bucket.js'
import { allSources } from '../../core/bucket/waiting.js'
import { Lane, type SharedBucket, type ShareNode, type Source } from '../../core/queue/lane.js'
import type { Arrival } from '../../core/shaper.js'
import { defined } from '../../core/structures/defined.js'
import { orElse } from '../../core/structures/or-else.js'
import { ownValue } from '../../core/structures/own-value.js'
import type { ProxyContext } from '../../proxy/context.js'
import { turnOf } from '../../proxy/exchange/incoming-request.js'
import { addressKey } from '../../proxy/http/client-address.js'
import type { BucketOwner } from '../../proxy/limits/key-limits.js'
import { limitsOf, ownerOf } from '../../proxy/live-limits.js'
import { NO_BODY } from '../../proxy/routing/bucket-costs.js'
import {
  currentUpstream,
  type Route,
  type RouteBucket,
  type Rule,
  usualCost,
  usualPriorityOf,
} from '../../proxy/routing/route.js'
import { upstreamName, upstreamSnapshot, upstreamTrouble } from '../snapshot/troubles.js'
import { newInstance } from './instance.js'
import type { RouteOutlook } from './key-state.js'

export interface RouteNewcomer {
  readonly route: Route
  readonly arrival: Arrival
  readonly assumed: readonly string[]
}

interface Found {
  readonly bucket: SharedBucket
  readonly owner: BucketOwner
}

/**
 * The newcomers of a key, one for each route of its bucket. A bucket whose key does not follow is taken as idle. If it
 * comes after this one in the stack, and requests of this key wait, the bucket of most of these requests is taken instead.
 *
 * @param own its instance. Undefined: nothing is known of it
 */
export function newcomersOf(
  context: ProxyContext,
  { name, key: settings }: BucketSettings,
  key: string,
  own: SharedBucket | undefined,
): RouteNewcomer[] {
  const known = new KnownParts(settings, key)
  const routes = context.routes.filter(
    ({ buckets, settings: { mode } }) => mode !== 'off' && buckets.some(each => each.settings.name === name),
  )
  return routes.flatMap(route => newcomerOn(context, route, known, { name, key, bucket: own }) ?? [])
}

/** The newcomer of an unknown client: only its route is known. */
export function strangerOn(context: ProxyContext, route: Route): RouteNewcomer | undefined {
  return newcomerOn(context, route, new KnownParts({ parts: [], missing: 'ip', duplicates: 'first', ipv6: 64 }, ''))
}

interface KnownKey {
  readonly name: string
  readonly key: string
  readonly bucket: SharedBucket | undefined
}

/** Undefined: the route refuses such requests. */
function newcomerOn(
  context: ProxyContext,
  route: Route,
  parts: KnownParts,
  given?: KnownKey,
): RouteNewcomer | undefined {
  const used: RouteBucket[] = []
  const found: Found[] = []
  const assumed: string[] = []
  const onTheirWay = given?.bucket && bucketsAfter(given.bucket, route)
  for (const bucket of route.buckets) {
    const { settings } = bucket
    const { name } = settings
    const own = name === given?.name ? given : undefined
    const derived = own ?? parts.keyIn(settings.key, route)
    if (derived === 'none') {
      if (settings.key.missing === 'skip') continue
      return undefined
    }
    used.push(bucket)
    if (derived === undefined) assumed.push(name)
    found.push(find(context, settings, derived?.key, own?.bucket ?? (derived ? undefined : onTheirWay?.get(name))))
  }
  return { route, assumed, arrival: arrivalOf(route, used, found) }
}

function arrivalOf(route: Route, used: readonly RouteBucket[], found: readonly Found[]): Arrival {
  const { settings, bucketCosts, lane } = route
  const stack = found.map(({ bucket }) => bucket)
  const { method } = settings.match
  const costs = bucketCosts?.reserve(
    used.map(each => each.settings.name),
    NO_BODY,
  )
  const cost = costs?.at(-1) ?? usualCost(settings.cost, method?.length === 1 ? method[0] : undefined)
  const { weight, priority } = turnOf(
    used,
    found.map(({ owner }) => owner),
  )
  return {
    ...{ route: lane, stack, cost, weight, priority: usualPriorityOf(route, priority) },
    costs: costs?.some(each => each !== cost) ? costs : undefined,
  }
}

function find(
  context: ProxyContext,
  settings: BucketSettings,
  key: string | undefined,
  known: SharedBucket | undefined,
): Found {
  const bucket =
    known ??
    (key === undefined
      ? new QueuedBucket(limitsOf(context, settings.limits, ''))
      : (context.bucketTable.look(settings.name, key) ?? newInstance(context, settings, key)))
  return { bucket, owner: ownerOf(context, settings, { key, tier: bucket.limits.tier }) }
}

/** The buckets that most requests waiting for this one go through after it, by name. */
function bucketsAfter(bucket: SharedBucket, { lane: { gate } }: Route): Map<string, SharedBucket> {
  let most: Source | undefined
  for (const source of allSources(bucket)) {
    if (source.gate === gate && (most === undefined || source.queued > most.queued)) most = source
  }
  if (most instanceof Lane) return byName(most.stack.slice(most.stack.indexOf(bucket) + 1))
  const after: SharedBucket[] = []
  for (let at: ShareNode | undefined = most?.parent; at?.bucket !== undefined; at = at.parent) after.push(at.bucket)
  return byName(after)
}

function byName(buckets: readonly SharedBucket[]): Map<string, SharedBucket> {
  return new Map(buckets.map(bucket => [bucket.limits.name, bucket]))
}

/** How long each would wait, in ms. In `meter` nobody does. */
export async function waitsOf(context: ProxyContext, newcomers: readonly RouteNewcomer[]): Promise<number[]> {
  const now = context.clock.now()
  const shaped = newcomers.filter(({ route }) => route.settings.mode === 'shape')
  const waits = await inBreaks(
    context.shaper.exactWaits(shaped.map(({ arrival }) => ({ arrival, pause: arrival.route.gate.shutFor(now) }))),
  )
  const byNewcomer = new Map(shaped.map((newcomer, place) => [newcomer, waits[place]!]))
  return newcomers.map(newcomer => byNewcomer.get(newcomer) ?? 0)
}

export function outlookOf(context: ProxyContext, newcomer: RouteNewcomer, predictedWaitMs: number): RouteOutlook {
  const rejected = rejectionOf(context, newcomer)
  const heldBy = heldByOn(newcomer)
  const waitsFor = predictedWaitMs > 0 ? causeText(context, newcomer) : undefined
  return {
    predictedWaitMs: rounded(predictedWaitMs),
    ...(heldBy.length > 0 && { heldBy }),
    assumed: newcomer.assumed,
    ...defined({ waitsFor, rejected }),
  }
}

function causeText({ clock }: ProxyContext, { route, arrival }: RouteNewcomer): string | undefined {
  const now = clock.now()
  const cause = causeOfWait(arrival, now, arrival.route.gate.shutFor(now))
  if (cause !== 'pause') return cause && `bucket ${cause.limits.name}`
  const upstream = upstreamSnapshot(route.upstream, now)
  return `${upstreamName(upstream)} ${upstreamTrouble(upstream)?.what ?? 'fails'}`
}

function rejectionOf(context: ProxyContext, { route, arrival }: RouteNewcomer): RouteOutlook['rejected'] {
  const { settings, lane, waits } = route
  const now = context.clock.now()
  const isShaped = settings.mode === 'shape'
  const upstream = currentUpstream(route, context.routes)
  if (upstream.refuses(isShaped))
    return {
      reason: `${upstreamName(upstreamSnapshot(upstream, now))} fails`,
      bucket: '',
      retryAfterMs: rounded(upstream.retryAfter),
    }
  const patience = typeof settings.patience === 'number' ? settings.patience : waits.patience.longest('', now)
  const longest = Math.min(settings.maxWait, settings.patience === 'none' ? Infinity : patience - waits.service.of(''))
  const rejection = isShaped
    ? decide(arrival, longest, now, lane.gate.shutFor(now))
    : (shutOut(lane.gate, now) ?? decide(arrival, Infinity, now) ?? placeless(arrival))
  if (rejection === undefined) return undefined
  const { reason, buckets, retryAfterMs } = rejection
  const bucket = buckets[0]?.limits.name ?? ''
  return { reason, bucket, ...(retryAfterMs !== undefined && { retryAfterMs: rounded(retryAfterMs) }) }
}

/** To µs. */
export function rounded(ms: number): number {
  return Math.round(ms * 1_000) / 1_000
}

/** Runs a generator to its end. Other work is done in its breaks. */
async function inBreaks<T>(steps: Generator<void, T>): Promise<T> {
  for (let step = steps.next(); ; step = steps.next()) {
    if (step.done) return step.value
    await new Promise(setImmediate)
  }
}

/** What holds a newcomer besides its rates, for as long as the upstream takes to answer. Nothing, where nobody waits. */
export function heldByOn({ route, arrival }: RouteNewcomer): string[] {
  const { settings, upstream, waits } = route
  if (settings.mode !== 'shape') return []
  const { isFull, blocked } = arrival.route.gate
  const held: string[] = []
  if (isFull || blocked) {
    // How long a pause holds them is known, and is in their waits.
    const state = { ...upstreamSnapshot(upstream, 0, waits.service.usual), pausedMs: 0, isFull }
    held.push(`${upstreamName(state)} ${upstreamTrouble(state)?.what ?? 'fails'}`)
  }
  for (const { hasPlace, inFlight, limits } of arrival.stack)
    if (!hasPlace) held.push(`bucket ${limits.name} has ${inFlight} of ${limits.maxInFlight} in flight`)
  return held
}

export function heldByAny(newcomers: readonly RouteNewcomer[]): string[] {
  return [...new Set(newcomers.flatMap(heldByOn))]
}

/** A long key is kept as this (proxy/routing/key.ts), and says nothing. */
const DIGEST = /^#[\w-]{43}$/
type DerivedKey = { readonly key: string } | 'none' | undefined

/** What is known of a client from its key in one bucket, so that its keys in others follow. */
class KnownParts {
  /** By the part as it is written in the configuration. A part that requests do not have is ''. */
  readonly #values = new Map<string, string>()
  /** The address, or the network with these bits. */
  #ip: { readonly address: string; readonly bits: number } | undefined

  constructor({ parts, ipv6 }: KeySettings, key: string) {
    const values = parts.length === 1 ? [key] : key.split('\n').map(decoded)
    if (DIGEST.test(key) || values.length !== parts.length) return
    for (const [place, part] of parts.entries()) this.#learn(part, values[place]!, ipv6)
  }

  #learn(part: KeyPart, value: string, bits: number): void {
    // A value that stands in for a missing part starts with a space. What follows is the address.
    const isMissing = value.startsWith(' ')
    const address = isMissing ? value.slice(1) : part.kind === 'ip' ? value : ''
    if (address !== '') this.#ip = { address: address.split('/')[0]!, bits }
    this.#values.set(formatKeyPart(part), isMissing ? '' : value)
  }

  keyIn(settings: KeySettings, { name, settings: { match } }: Rule): DerivedKey {
    const values: string[] = []
    for (const part of settings.parts) {
      const known = this.#valueOf(part, settings, name) ?? valueByMatch(part, match)
      const value = known === '' ? this.#standIn(settings) : known
      if (value === undefined || value === 'none') return value
      values.push(value)
    }
    const [only] = values
    if (values.length === 1) return { key: only! }
    return { key: values.map(value => (value.includes('\n') ? encodeURIComponent(value) : value)).join('\n') }
  }

  /** Undefined: not known. Empty: it is missing. */
  #valueOf(part: KeyPart, { ipv6 }: KeySettings, route: string): string | undefined {
    if (part.kind === 'all') return 'all'
    if (part.kind === 'route') return route
    return part.kind === 'ip' ? this.#network(ipv6) : this.#values.get(formatKeyPart(part))
  }

  #network(bits: number): string | undefined {
    if (this.#ip === undefined || (this.#ip.bits < bits && this.#ip.address.includes(':'))) return undefined
    return addressKey(this.#ip.address, bits)
  }

  #standIn({ missing, ipv6 }: KeySettings): string | 'none' | undefined {
    if (missing === 'all') return ' '
    if (missing !== 'ip') return 'none'
    const network = this.#network(ipv6)
    return network && ` ${network}`
  }
}

/** Values of requests that a route takes only with these. */
function valueByMatch(part: KeyPart, { method, host, header }: MatchSettings): string | undefined {
  if (part.kind === 'method') return method?.length === 1 ? method[0] : undefined
  const wanted = part.kind === 'host' ? host : part.kind === 'header' ? ownValue(header, part.name) : undefined
  return wanted?.includes('*') ? undefined : wanted
}

function decoded(value: string): string {
  return orElse(() => (value.includes('%0A') ? decodeURIComponent(value) : value), value)
}
