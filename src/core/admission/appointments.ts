/** What rejected clients are told: one moment each, a slot apart (bucket/promises.ts). One that asks again is told the same. */
import { slackOf, windowOf } from '../../decider/costs.js'
import { PromisedMoment } from '../bucket/promises.js'
import { type Arrival, costIn, type Demand, type Rejection, type SharedBucket } from '../queue/lane.js'
import { SAME_TIME } from '../queue/ready-lanes.js'

/** Where a request is rejected. Times are in ms. */
interface Occasion {
  readonly now: number
  readonly maxWait: number
  /** How many instances reject and promise like this one. */
  readonly instances: number
  number(): number
}

/** A rejected request whose client is to be told a moment of its own. */
export interface Promisable {
  readonly arrival: Arrival & { readonly client: string }
  readonly rejection: Rejection & { readonly retryAfterMs: number }
}

/** Undefined: its client is told when it would fit, as all are. */
export function promisable(arrival: Arrival, rejection: Rejection, now: number): Promisable | undefined {
  const { client } = arrival
  const { retryAfterMs } = rejection
  if (client === undefined || retryAfterMs === undefined || !isPromising(arrival, rejection, now)) return undefined
  return { arrival: { ...arrival, client }, rejection: { ...rejection, retryAfterMs } }
}

/** What a client was promised before, once more. Undefined: nothing, or it does not hold any more. */
export function repeated({ arrival, rejection }: Promisable, now: number): Rejection | undefined {
  const { buckets, retryAfterMs } = rejection
  const { client } = arrival
  const fit = now + retryAfterMs
  const known = lastPromise(client, buckets, now)
  if (known === undefined || (known.booked !== undefined && known.at <= now && known.booked.until < fit)) {
    forget(client, buckets, now)
    return undefined
  }
  // What it has booked does not delay it.
  const at = known.booked !== undefined && known.at > now ? known.at : Math.max(fit, known.at)
  return told(rejection, known.cost === costIn(arrival, buckets[0]!) ? known.booked : undefined, at - now)
}

export function withPromise(arrival: Arrival, rejection: Rejection, occasion: Occasion): Rejection {
  const { now } = occasion
  const asks = promisable(arrival, rejection, now)
  if (asks === undefined) return rejection
  return repeated(asks, now) ?? withNewPromise(asks.arrival, rejection, now + asks.rejection.retryAfterMs, occasion)
}

/** @param fit when it would be admitted if nobody else came, in ms */
function withNewPromise(
  arrival: Arrival & { readonly client: string },
  rejection: Rejection,
  fit: number,
  occasion: Occasion,
): Rejection {
  const { buckets } = rejection
  const { now, maxWait } = occasion
  const all = buckets.map(bucket => bucket.openPromises())
  if (!all.every((promises, place) => promises.hasPlace(costIn(arrival, buckets[place]!), buckets[place]!.limits))) {
    return { ...rejection, retryAfterMs: Math.max(fit, ...all.map(({ last }) => last)) - now }
  }
  const window = shortestWindow(arrival, buckets, maxWait)
  const moments = buckets.map(bucket => nextMoment(arrival, bucket, window > 0 ? 'booked' : 'told', occasion))
  const at = Math.max(fit, ...moments)
  const booked = window > 0 ? { id: occasion.number(), until: at + window } : undefined
  for (const [place, bucket] of buckets.entries()) {
    const cost = costIn(arrival, bucket)
    // A client that a bucket of its own delays takes the next slot of a shared one all the same: it must not delay others.
    const isDelayed = buckets.length > 1 && at - moments[place]! > cost / bucket.limits.rate
    const { client } = arrival
    all[place]!.add(new PromisedMoment(client, cost, isDelayed ? moments[place]! : at, isDelayed ? undefined : booked))
  }
  return told(rejection, booked, at - now)
}

function isPromising({ shadow, route }: Arrival, { reason, buckets }: Rejection, now: number): boolean {
  if (shadow || buckets.length === 0) return false
  // All may come back when a quota starts anew.
  if (buckets.some(({ limits }) => limits.quota !== undefined)) return false
  // During a pause nothing drains as usual. All are told when it is over.
  return (reason === 'overflow' || reason === 'max-wait') && route.gate.pausedFor(now) === 0
}

/** A request as it asks for what it has booked, if the moment of that has come. */
export function redeeming(arrival: Arrival, now: number): Arrival {
  const { client, appointment, stack } = arrival
  const id = appointment?.redeems
  if (id === undefined || client === undefined) return arrival
  for (const { extras } of stack) {
    const promise = extras?.promises?.of(client, now)
    if (promise?.booked?.id !== id || promise.at > now + SAME_TIME) continue
    return { ...arrival, redeems: { client, id, at: Math.min(now, promise.at) } }
  }
  return arrival
}

export function bookingOf(demand: Demand, client: string, now: number): number | undefined {
  for (const bucket of demand.stack) {
    const promise = bucket.extras?.promises?.of(client, now)
    if (promise?.booked === undefined || promise.at > now + SAME_TIME) continue
    if (promise.cost === costIn(demand, bucket)) return promise.booked.id
  }
  return undefined
}

interface OpenPromise {
  readonly at: number
  readonly bucket: SharedBucket
}

/** The latest moment that the client of a request was promised and that has not come. */
export function promiseAhead({ client, stack }: Arrival, now: number): OpenPromise | undefined {
  if (client === undefined) return undefined
  let latest: OpenPromise | undefined
  for (const bucket of stack) {
    const at = bucket.extras?.promises?.of(client, now)?.at ?? -Infinity
    if (at > Math.max(now + SAME_TIME, latest?.at ?? -Infinity)) latest = { at, bucket }
  }
  return latest
}

/** A request is admitted. What it has booked is over, also if it comes early, and buckets may forget what is over. */
export function promiseKept({ client, appointment, stack }: Arrival, now: number): void {
  for (const bucket of stack) {
    const promises = bucket.extras?.promises
    if (promises === undefined) continue
    const promise = client === undefined ? undefined : promises.of(client, now)
    if (promise?.booked !== undefined && promise.booked.id === appointment?.redeems) promises.drop(promise)
    bucket.endPromises(now)
  }
}

function told(rejection: Rejection, booked: PromisedMoment['booked'], retryAfterMs: number): Rejection {
  return { ...rejection, retryAfterMs, ...(booked && { booking: booked.id }) }
}

function lastPromise(client: string, buckets: readonly SharedBucket[], now: number): PromisedMoment | undefined {
  let latest: PromisedMoment | undefined
  for (const { extras } of buckets) {
    const promise = extras?.promises?.of(client, now)
    if (promise !== undefined && promise.at > (latest?.at ?? -Infinity)) latest = promise
  }
  return latest
}

function forget(client: string, buckets: readonly SharedBucket[], now: number): void {
  for (const { extras } of buckets) {
    const promise = extras?.promises?.of(client, now)
    if (promise !== undefined) extras!.promises!.drop(promise)
  }
}

function nextMoment(
  arrival: Arrival,
  bucket: SharedBucket,
  kind: 'told' | 'booked',
  { now, maxWait, instances }: Occasion,
): number {
  const { limits } = bucket
  const cost = costIn(arrival, bucket)
  const promises = bucket.openPromises()
  // All that has been booked fits before what is booked.
  const kept = kind === 'booked' ? promises.bookedCost : bucket.reserved(now)
  const ahead = bucket.level(now) + kept + cost - roomFor(arrival, bucket, maxWait)
  return Math.max(promises.last + (instances * cost) / limits.rate, now + ahead / limits.rate)
}

/** How long room is kept for a request, in ms. 0: it cannot be booked. */
function shortestWindow(arrival: Arrival, buckets: readonly SharedBucket[], maxWait: number): number {
  if (arrival.appointment === undefined) return 0
  const windows = buckets.map(bucket => {
    const { limits } = bucket
    // An overflow is a fault there, and has to be waited out.
    if (limits.blockFor !== undefined || limits.overflow === 'fill') return 0
    return windowOf(costIn(arrival, bucket), roomFor(arrival, bucket, maxWait), limits)
  })
  return Math.min(...windows)
}

function roomFor(arrival: Arrival, bucket: SharedBucket, maxWait: number): number {
  const { limits } = bucket
  const cost = costIn(arrival, bucket)
  return Math.min(limits.capacity, limits.rate * maxWait + slackOf(limits, cost) + cost)
}
