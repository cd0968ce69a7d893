/** The parts of a file that are good, even where others are not: what the cross checks look at. */
import * as z from 'zod'
import { capacityOf } from '../default-capacity.js'
import { bucket, tier } from '../schema/buckets.js'
import { route } from '../schema/routes.js'
import type { CostSettings } from '../settings.js'

export interface PartialBucket {
  readonly name: string
  /** Undefined where what makes it is bad. */
  readonly capacity: number | undefined
  /** The key in the file that the capacity comes from. */
  readonly capacityKey: 'capacity' | 'maxDelay'
  readonly hasBoth: boolean
  /** By index; undefined where it is no object. */
  readonly tiers: readonly (PartialTier | undefined)[]
}

export interface PartialTier {
  /** Undefined where there is none or a bad one. */
  readonly name: string | undefined
  /** As written, by index. */
  readonly keys: readonly unknown[]
  /** Whether it says who is in it. */
  readonly hasMembers: boolean
  /** Whether it says what is different for them. */
  readonly hasLimits: boolean
  /** Undefined where what makes it is bad, or where it is the bucket's own. */
  readonly capacity: number | undefined
  /** The key of the tier that the capacity comes from. */
  readonly capacityKey: 'capacity' | 'rate'
}

export interface PartialRoute {
  /** Undefined where there is none or a bad one. */
  readonly name: string | undefined
  readonly mode: 'shape' | 'meter' | 'off' | undefined
  /** As written, by index; undefined where there is no list. */
  readonly buckets: readonly unknown[] | undefined
  readonly namesBuckets: boolean
  readonly cost: CostSettings | undefined
  readonly hasUpstream: boolean
}

export interface PartialConfig {
  readonly buckets: ReadonlyMap<string, PartialBucket>
  /** Undefined where there is no list: every request takes all buckets. */
  readonly routes: readonly PartialRoute[] | undefined
  readonly namesRoutes: boolean
  readonly hasUpstream: boolean
}

export function readPartialConfig(raw: unknown): PartialConfig {
  const file = isObject(raw) ? raw : {}
  const buckets = isObject(file.buckets) ? Object.entries(file.buckets) : []
  return {
    buckets: new Map(buckets.map(([name, value]) => [name, readBucket(name, value)])),
    routes: Array.isArray(file.routes) ? file.routes.map(readRoute) : undefined,
    namesRoutes: 'routes' in file,
    hasUpstream: 'upstream' in file,
  }
}

function readBucket(name: string, value: unknown): PartialBucket {
  const given = isObject(value) ? value : {}
  const { rate, capacity, maxDelay } = validFields(bucket, given)
  const followsRate = !('capacity' in given) && (!('maxDelay' in given) || maxDelay !== undefined)
  const known = followsRate && rate !== undefined ? capacityOf({ rate, maxDelay }) : capacity
  return {
    name,
    capacity: known,
    capacityKey: 'maxDelay' in given ? 'maxDelay' : 'capacity',
    hasBoth: 'capacity' in given && 'maxDelay' in given,
    tiers: Array.isArray(given.tiers)
      ? given.tiers.map(each => (isObject(each) ? readTier(each, { followsRate, maxDelay }) : undefined))
      : [],
  }
}

/** How the capacity of a bucket comes about. */
interface CapacityRule {
  /** Whether the file leaves the capacity to the rate, so that a tier with its own rate has its own capacity. */
  readonly followsRate: boolean
  /** ms */
  readonly maxDelay: number | undefined
}

function readTier(given: Record<string, unknown>, { followsRate, maxDelay }: CapacityRule): PartialTier {
  const { name, rate, capacity } = validFields(tier, given)
  const hasCapacity = 'capacity' in given
  return {
    name,
    keys: Array.isArray(given.keys) ? given.keys : [],
    hasMembers: 'keys' in given || 'header' in given,
    hasLimits: hasCapacity || 'rate' in given || 'weight' in given,
    capacity: !hasCapacity && followsRate && rate !== undefined ? capacityOf({ rate, maxDelay }) : capacity,
    capacityKey: hasCapacity ? 'capacity' : 'rate',
  }
}

function readRoute(value: unknown): PartialRoute {
  const given = isObject(value) ? value : {}
  const { name, mode, cost } = validFields(route, given)
  return {
    name,
    mode,
    cost,
    buckets: Array.isArray(given.buckets) ? given.buckets : undefined,
    namesBuckets: 'buckets' in given,
    hasUpstream: 'upstream' in given,
  }
}

/** Each key of an object judged for itself: those that are good, with their defaults. */
function validFields<S extends z.core.$ZodShape>(schema: z.ZodObject<S>, given: Record<string, unknown>) {
  const entries = Object.entries(schema.shape).flatMap(([key, field]) => {
    if (!(key in given) && field instanceof z.ZodExactOptional) return []
    const result = z.safeParse(field, given[key])
    return result.success ? [[key, result.data] as const] : []
  })
  return Object.fromEntries(entries) as Partial<z.output<z.ZodObject<S>>>
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
