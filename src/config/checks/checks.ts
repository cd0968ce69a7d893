/** Checks that need several keys of the file: names that must exist, costs that must fit, keys that exclude each other. */
import { ownValue } from '../../core/structures/own-value.js'
import { isAnsweredAtOnce } from '../../http/method.js'
import { hint, quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { NAME, NAME_REMEDY } from '../read-values.js'
import { GATE } from '../schema/address.js'
import type { CostSettings } from '../settings.js'
import {
  isObject,
  type PartialBucket,
  type PartialConfig,
  type PartialRoute,
  type PartialTier,
} from './partial-config.js'

const TOLERANCE = 1e-9
const ADD_BUCKET = 'add e.g. "buckets": { "client": { "key": "ip", "rate": "5/s" } }'
const EGRESS_OR = 'give --egress, with which alone "egress" counts, or '
const MISSING_RATE = 'missing; use e.g. "5/s", "6/30s", a "quota", or a maxInFlight alone'
const WITHOUT_RATE = 'has no effect without a rate; add e.g. "rate": "5/s", or remove it'
const UPSTREAM = 'use e.g. "http://127.0.0.1:9000" or "echo:"'

/** Finds every contradiction among the valid parts of a file, in file order. */
export function crossCheck(config: PartialConfig): Finding[] {
  const routes = config.routes ?? []
  return [
    ...upstreams(config),
    ...[...config.buckets.values()].flatMap(bucketFaults),
    ...(config.namesRoutes ? [] : defaultRoute(config)),
    ...duplicateNames(routes),
    ...routes.flatMap((route, index) =>
      [
        ...stackFaults(route, config),
        ...references(route, config),
        ...costedBuckets(route, config),
        ...costs(route, config),
        ...idleWhereOff(route),
        ...refusalFaults(route),
        ...deliveryFaults(route),
      ].map(({ path, message }) => ({ path: ['routes', index, ...path], message })),
    ),
  ]
}

function idleWhereOff({ given, valid: { mode, appointments } }: PartialRoute): Finding[] {
  if (mode !== 'off') return []
  const idle = [...(appointments ? ['appointments'] : []), ...(isObject(given.waitingPage) ? ['waitingPage'] : [])]
  const message = 'mode "off" rejects nothing; remove it, or use "shape" or "meter"'
  return idle.map(key => ({ path: [key], message }))
}

function refusalFaults({ valid: { refuse, mode } }: PartialRoute): Finding[] {
  if (!refuse || mode === undefined || mode === 'off') return []
  const message = `mode "${mode}" forwards requests, and "refuse" forwards none; write "mode": "off" beside it`
  return [{ path: ['refuse'], message }]
}

function deliveryFaults({ given, valid: { match, dryRun, refuse } }: PartialRoute): Finding[] {
  if (!isObject(given.deliver)) return []
  const fault = (message: string): Finding[] => [{ path: ['deliver'], message }]
  const atOnce = match?.method?.filter(isAnsweredAtOnce) ?? []
  if (atOnce.length > 0)
    return fault(
      `${atOnce.join(', ')}: answered at once, so never stored; match e.g. "method": "POST" here, and the rest in a route of its own`,
    )
  if (given.upstream === GATE)
    return fault('the upstream "gate:" forwards nothing, so nothing is delivered; name an upstream')
  if (refuse) return fault('the route has "refuse" and forwards nothing; remove one')
  return dryRun ? fault('a dry run holds nothing back; remove "dryRun" or "deliver"') : []
}

function upstreams({ hasUpstream, hasEgress, routes }: PartialConfig): Finding[] {
  if (hasUpstream) return []
  const without = (routes ?? []).flatMap(({ given }, index) => ('upstream' in given ? [] : [index]))
  if (without.length === (routes ?? []).length) {
    return routes && without.length === 0
      ? []
      : [{ path: ['upstream'], message: `missing; ${hasEgress ? EGRESS_OR : ''}${UPSTREAM}` }]
  }
  return without.map(index => ({
    path: ['routes', index, 'upstream'],
    message: `missing, and there is none at the top of the file; ${UPSTREAM}`,
  }))
}

function bucketFaults(bucket: PartialBucket): Finding[] {
  const { name, hasBoth, needRate } = bucket
  const path = ['buckets', name]
  return [
    ...(NAME.test(name) ? [] : [{ path, message: `${quote(name)} is not a name; ${NAME_REMEDY}` }]),
    ...(hasBoth ? [{ path: [...path, 'maxDelay'], message: 'give either capacity or maxDelay; remove one' }] : []),
    ...needRate.map(key => ({ path: [...path, ...key], message: key.at(-1) === 'rate' ? MISSING_RATE : WITHOUT_RATE })),
    ...tierFaults(bucket),
  ]
}

function defaultRoute({ buckets, adapts }: PartialConfig): Finding[] {
  if (buckets.size === 0 && adapts) return []
  if (buckets.size === 0) return [{ path: ['buckets'], message: `there is no bucket; ${ADD_BUCKET}` }]
  return [...buckets.values()].flatMap(capacitiesOf).flatMap(({ path, capacity }) => {
    if (fits(1, capacity)) return []
    return [{ path, message: `a capacity of ${capacity} can never fit a request of cost 1; raise it` }]
  })
}

function duplicateNames(routes: readonly PartialRoute[]): Finding[] {
  return routes.flatMap(({ valid: { name } }, index) => {
    const first = routes.findIndex(({ valid }) => valid.name === name)
    if (name === undefined || first === index) return []
    const message = `${quote(name)} is already routes[${first}]; use another name`
    return [{ path: ['routes', index, 'name'], message }]
  })
}

function stackFaults({ given, valid: { mode }, buckets, adapts }: PartialRoute, config: PartialConfig): Finding[] {
  // The adaptive bucket of its upstream is enough.
  if (mode === undefined || mode === 'off' || (adapts ?? config.adapts)) return []
  const path = ['buckets']
  if (buckets?.length === 0) return [{ path, message: `the list is empty; name a bucket, or use "mode": "off"` }]
  if ('buckets' in given || config.buckets.size > 0) return []
  return [{ path, message: `mode "${mode}" needs a bucket and the file has none; ${ADD_BUCKET}` }]
}

function references({ buckets = [] }: PartialRoute, config: PartialConfig): Finding[] {
  return buckets.flatMap((name, position) => {
    if (typeof name !== 'string' || name === '') return []
    const path = ['buckets', position]
    if (buckets.indexOf(name) < position) return [{ path, message: `${quote(name)} is listed twice; remove one` }]
    if (config.buckets.has(name)) return []
    const known = [...config.buckets.keys()]
    const remedy = known.length ? hint(name, known, 'known buckets') : ADD_BUCKET
    return [{ path, message: `unknown bucket ${quote(name)}; ${remedy}` }]
  })
}

function costedBuckets({ given, valid, buckets = [] }: PartialRoute, config: PartialConfig): Finding[] {
  const { mode, cost } = valid
  if (mode === 'off' || cost?.kind !== 'buckets') return []
  const known = 'buckets' in given ? buckets.map(String) : [...config.buckets.keys()]
  return Object.keys(cost.costs).flatMap(name => {
    if (known.includes(name)) return []
    const remedy = config.buckets.has(name)
      ? 'add it to "buckets" of the route, or remove it'
      : hint(name, known, 'buckets of the route')
    const message = `the route does not have the bucket ${quote(name)}; ${remedy}`
    return [{ path: ['cost', 'buckets', name], message }]
  })
}

function costs({ given, valid: { mode, cost }, buckets }: PartialRoute, config: PartialConfig): Finding[] {
  if (mode === 'off' || !cost) return []
  const names = new Set('buckets' in given ? buckets : config.buckets.keys())
  return [...names].flatMap(name => {
    const bucket = config.buckets.get(String(name))
    return bucket ? staticCosts(cost, bucket.name).flatMap(each => misfit(each, bucket)) : []
  })
}

function misfit({ at, amount }: StaticCost, bucket: PartialBucket): Finding[] {
  return capacitiesOf(bucket).flatMap(({ title, capacity }) => {
    if (fits(amount, capacity)) return []
    const message = `${amount} can never fit ${title} (capacity ${capacity}); raise the capacity or lower the cost`
    return [{ path: ['cost', ...at], message }]
  })
}

function capacitiesOf({ name, capacity, capacityKey, tiers }: PartialBucket) {
  const path = ['buckets', name]
  const title = `bucket ${quote(name)}`
  return [
    ...(capacity === undefined ? [] : [{ path: [...path, capacityKey], title, capacity }]),
    ...tiers.flatMap((tier, index) => {
      if (tier?.capacity === undefined) return []
      const own = tier.name === undefined ? `tiers[${index}]` : `tier ${quote(tier.name)}`
      return [
        { path: [...path, 'tiers', index, tier.capacityKey], title: `${own} of ${title}`, capacity: tier.capacity },
      ]
    }),
  ]
}

interface StaticCost {
  readonly at: readonly string[]
  readonly amount: number
}

/** The costs in a bucket that a configuration fixes before any request arrives. */
export function staticCosts(cost: CostSettings, bucket: string): StaticCost[] {
  switch (cost.kind) {
    case 'fixed':
      return [{ at: [], amount: cost.cost }]
    case 'header':
      return [
        ...(cost.min === cost.default ? [] : [{ at: ['min'], amount: cost.min }]),
        { at: ['default'], amount: cost.default },
      ]
    case 'method':
      return [
        ...Object.entries(cost.costs).map(([method, amount]) => ({ at: [method], amount })),
        { at: ['default'], amount: cost.default },
      ]
    case 'buckets': {
      const own = ownValue(cost.costs, bucket)
      if (own === undefined) return [{ at: ['buckets'], amount: 1 }]
      return typeof own.estimate === 'number' ? [{ at: ['buckets', bucket], amount: own.estimate }] : []
    }
  }
}

function fits(cost: number, capacity: number): boolean {
  return cost <= capacity + TOLERANCE
}

const MEMBERS = 'add e.g. "keys": ["customer-1"] or "header": { "x-plan": "gold" }'
const LIMITS = 'add a rate, a capacity, a burst, a maxInFlight, a weight or a priority, or remove the tier'

function tierFaults({ name, tiers }: PartialBucket): Finding[] {
  const firstPlaceOf = new Map<string, string>()
  return tiers.flatMap((tier, index) => {
    if (tier === undefined) return []
    const path = ['buckets', name, 'tiers', index]
    return [
      ...(tier.hasMembers ? [] : [{ path, message: `this tier has no members; ${MEMBERS}` }]),
      ...(tier.hasLimits ? [] : [{ path, message: `changes nothing; ${LIMITS}` }]),
      ...sameName(tier, index, tiers).map(message => ({ path: [...path, 'name'], message })),
      ...tier.keys.flatMap((key, position) =>
        sameKey(key, `tiers[${index}].keys[${position}]`, firstPlaceOf).map(message => {
          return { path: [...path, 'keys', position], message }
        }),
      ),
    ]
  })
}

function sameName({ name }: PartialTier, index: number, tiers: PartialBucket['tiers']): string[] {
  const first = tiers.findIndex(tier => tier?.name === name)
  return name === undefined || first === index ? [] : [`${quote(name)} is already tiers[${first}]; use another name`]
}

/** Names the place of the same key, not the key, which may be a credential. Adds to `firstPlaceOf`. */
function sameKey(key: unknown, place: string, firstPlaceOf: Map<string, string>): string[] {
  if (typeof key !== 'string' || key === '') return []
  const first = firstPlaceOf.get(key)
  if (first !== undefined) return [`the same key as ${first}; remove one`]
  firstPlaceOf.set(key, place)
  return []
}
