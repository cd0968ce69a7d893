/**
 * What happens in a run: instances, buckets, clients and events, as data. A seed makes one (`scenarioOf`). A list of clients and a list of
 * events are most of it, so that a failure shrinks by leaving some of them out (shrink.ts).
 */
import { random } from '../core/run.js'
import type { FaultKind } from './history.js'

export interface BucketPlan {
  readonly name: string
  readonly perSecond: number
  readonly capacity: number
  readonly burst?: number
  /** Each client has one. Else all have one in common. */
  readonly isOwn: boolean
}

/**
 * - `greedy`: `depth` of its requests wait at any time; once rejected it asks again in 25 ms.
 * - `impatient`: comes by chance, and hangs up after its patience.
 * - `obedient`: comes by chance, and comes back when it was told to.
 * - `poller`: comes exactly every `every` ms.
 * - `slow`: comes by chance, and takes long for all that it does.
 * - `crowd`: `depth` requests at one moment, each to another instance.
 */
export type ClientKind = 'greedy' | 'impatient' | 'obedient' | 'poller' | 'slow' | 'crowd'

export interface ClientPlan {
  readonly name: string
  readonly kind: ClientKind
  /** -1: another one each time. */
  readonly instance: number
  readonly route: string
  readonly cost: number
  readonly priority: number
  readonly weight: number
  /** ms */
  readonly maxWait: number
  /** ms between its requests. */
  readonly every: number
  readonly depth: number
  /** ms */
  readonly patience: number
  readonly from: number
  readonly to: number
}

export interface EventPlan {
  readonly kind: FaultKind
  readonly at: number
  /** ms */
  readonly lasts: number
  /** -1: all. */
  readonly instance: number
  /** Of a rate: its factor. Of a clock: ms. */
  readonly by: number
  /** Of an override or a reset. */
  readonly client: string
}

export interface Scenario {
  readonly seed: number
  readonly instances: number
  readonly hasStore: boolean
  /** The stack of all requests. */
  readonly buckets: readonly BucketPlan[]
  readonly mode: 'shape' | 'meter'
  readonly books: boolean
  readonly maxInFlight: number
  /** ms that the upstream takes, on average. */
  readonly service: number
  /** ms that a message to the store takes, and up to how much longer. */
  readonly far: number
  readonly jitter: number
  readonly keepsOrder: boolean
  /** Time goes on while an instance works. */
  readonly isReal: boolean
  /** Turns of the event loop in which nothing happens, until all that follows a moment has happened. */
  readonly turns: number
  /** ms for which clients come. */
  readonly load: number
  readonly clients: readonly ClientPlan[]
  readonly events: readonly EventPlan[]
}

/** Chances to draw from, in an order that a seed decides. */
export interface Dice {
  chance(): number
  is(probability: number): boolean
  between(least: number, most: number): number
  /** A whole number of 0 to `count` - 1. */
  below(count: number): number
  oneOf<T>(values: readonly T[]): T
}

export function dice(seed: number): Dice {
  const chance = random(seed)
  // The first ones of near seeds are alike.
  for (let skipped = 0; skipped < 10; skipped += 1) chance()
  const below = (count: number): number => Math.floor(chance() * count)
  return {
    chance,
    is: probability => chance() < probability,
    between: (least, most) => least + (most - least) * chance(),
    below,
    oneOf: values => values[below(values.length)]!,
  }
}

/** ms for which clients come: long enough for many slots, and for outages to end. */
const LOAD = { slow: 6_000, fast: 3_500 }

const STORE_FAULTS = ['store-down', 'store-silent', 'store-cut', 'store-slow', 'store-clock'] as const
const FAULTS = ['stall', 'stall', 'reload', 'override', 'pause', 'reset'] as const
const FLEET_FAULTS = ['crash', 'leave', 'join'] as const

interface Frame {
  readonly load: number
  readonly instances: number
  readonly hasStore: boolean
  readonly perSecond: number
  readonly largest: number
  readonly hasClasses: boolean
}

export function scenarioOf(seed: number): Scenario {
  const d = dice(seed)
  const instances = 1 + d.below(4)
  const hasStore = instances > 1 || d.is(0.5)
  const perSecond = d.oneOf([1, 2, 5, 10, 20, 50, 100])
  const isStacked = d.is(0.4)
  const largest = d.is(0.3) ? 2 + d.below(4) : 1
  const hasBurst = d.is(0.3)
  const shared: BucketPlan = {
    ...{ name: 'everyone', perSecond, isOwn: false },
    capacity: Math.max(largest, d.oneOf([1, 3, 8, 12, 30, perSecond])),
    ...(hasBurst && { burst: 1 + d.below(4) }),
  }
  const own: BucketPlan = {
    ...{ name: 'client', perSecond: perSecond * d.between(0.2, 1.2), isOwn: true },
    capacity: Math.max(largest, d.oneOf([2, 5, 8])),
  }
  const load = perSecond < 20 ? LOAD.slow : LOAD.fast
  const frame: Frame = { load, instances, hasStore, perSecond, largest, hasClasses: d.is(0.25) }
  const calm = d.is(0.35)
  const count = d.oneOf([1, 1, 2, 3, 4])
  return {
    ...{ seed, instances, hasStore },
    buckets: isStacked ? [own, shared] : [shared],
    mode: d.is(0.2) ? 'meter' : 'shape',
    books: d.is(0.4),
    maxInFlight: d.is(0.15) ? 1 + d.below(6) : Infinity,
    service: d.oneOf([0, 0, 5, 50]),
    far: hasStore ? d.oneOf([0.25, 0.25, 2, 15]) : 0,
    jitter: hasStore ? d.oneOf([0, 0, 1, 4]) : 0,
    keepsOrder: d.is(0.3),
    isReal: d.is(0.5),
    turns: 1,
    load,
    clients: Array.from({ length: count }, (_, at) => clientOf(d, `client-${at}`, frame)),
    events: calm ? [] : Array.from({ length: 1 + d.below(4) }, () => eventOf(d, frame, count)),
  }
}

const KINDS: readonly ClientKind[] = ['greedy', 'greedy', 'impatient', 'obedient', 'poller', 'slow', 'crowd']

function clientOf(d: Dice, name: string, { load, instances, perSecond, largest, hasClasses }: Frame): ClientPlan {
  const kind = d.oneOf(KINDS)
  const period = 1_000 / perSecond
  const from = d.is(0.3) ? 0 : d.between(0, 2_000)
  return {
    ...{ name, kind },
    instance: d.is(0.5) ? -1 : d.below(instances),
    route: d.is(0.2) ? 'other' : 'route',
    cost: 1 + d.below(largest),
    priority: hasClasses ? d.below(8) : 3,
    weight: d.is(0.2) ? 3 : 1,
    maxWait: d.is(0.15) ? d.between(0, 8 * period) : Infinity,
    // Many of those who leave are still in the queue.
    every: Math.max(8, period * d.between(0.3, 2.5) * (kind === 'impatient' ? 0.3 : 1)),
    depth: kind === 'crowd' ? 2 + d.below(20) : 1 + d.below(6),
    patience: period * d.between(0, 5),
    ...{ from, to: load },
  }
}

function eventOf(d: Dice, { load, instances, hasStore }: Frame, clients: number): EventPlan {
  const kinds: readonly FaultKind[] = [
    ...FAULTS,
    ...(hasStore ? STORE_FAULTS : []),
    ...(instances > 1 ? FLEET_FAULTS : []),
  ]
  const kind = d.oneOf(kinds)
  const isWhole = d.is(0.4)
  return {
    kind,
    at: Math.floor(d.between(200, load)),
    lasts: kind === 'stall' ? 5 + 200 * d.chance() ** 3 : Math.floor(1_500 * d.chance() ** 2),
    instance: isWhole ? -1 : d.below(instances),
    by: byOf(d, kind),
    client: `client-${d.below(clients)}`,
  }
}

function byOf(d: Dice, kind: FaultKind): number {
  if (kind === 'store-clock') return d.oneOf([-3_600_000, -2_000, -50, 50, 2_000, 3_600_000])
  if (kind === 'store-slow') return d.between(5, 400)
  return d.oneOf([0.3, 0.5, 2, 3])
}
