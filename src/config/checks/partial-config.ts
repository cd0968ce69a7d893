/** The parts of a file that are good, even where others are not: what the cross checks look at. */
import * as z from 'zod'
import { capacityOf } from '../default-capacity.js'
import { bucket, tier } from '../schema/buckets.js'
import { route } from '../schema/routes.js'
import type { CostSettings } from '../settings.js'

export interface BucketDraft {
  readonly name: string
  /** Undefined where what makes it is bad. */
  readonly capacity: number | undefined
  /** The key in the file that the capacity comes from. */
  readonly capacityKey: 'capacity' | 'maxDelay'
  readonly hasBoth: boolean
  /** By index; undefined where it is no object. */
  readonly tiers: readonly (TierDraft | undefined)[]
}

export interface TierDraft {
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

export interface RouteDraft {
  /** Undefined where there is none or a bad one. */
  readonly name: string | undefined
  readonly mode: 'shape' | 'meter' | 'off' | undefined
  /** As written, by index; undefined where there is no list. */
  readonly buckets: readonly unknown[] | undefined
  readonly namesBuckets: boolean
  readonly cost: CostSettings | undefined
  readonly hasUpstream: boolean
}

export interface Draft {
  readonly buckets: ReadonlyMap<string, BucketDraft>
  /** Undefined where there is no list: every request takes all buckets. */
  readonly routes: readonly RouteDraft[] | undefined
  readonly namesRoutes: boolean
  readonly hasUpstream: boolean
}

export function draftOf(raw: unknown): Draft {
  const file = isObject(raw) ? raw : {}
  const buckets = isObject(file.buckets) ? Object.entries(file.buckets) : []
  return {
    buckets: new Map(buckets.map(([name, value]) => [name, bucketDraft(name, value)])),
    routes: Array.isArray(file.routes) ? file.routes.map(routeDraft) : undefined,
    namesRoutes: 'routes' in file,
    hasUpstream: 'upstream' in file,
  }
}

function bucketDraft(name: string, value: unknown): BucketDraft {
  const written = isObject(value) ? value : {}
  const { rate, capacity, maxDelay } = good(bucket, written)
  const isFilledIn = !('capacity' in written) && (!('maxDelay' in written) || maxDelay !== undefined)
  const known = isFilledIn && rate !== undefined ? capacityOf({ rate, maxDelay }) : capacity
  return {
    name,
    capacity: known,
    capacityKey: 'maxDelay' in written ? 'maxDelay' : 'capacity',
    hasBoth: 'capacity' in written && 'maxDelay' in written,
    tiers: Array.isArray(written.tiers)
      ? written.tiers.map(each => (isObject(each) ? tierDraft(each, isFilledIn, maxDelay) : undefined))
      : [],
  }
}

/** @param isFilledIn whether the bucket leaves the capacity to rates: the tier's own makes it another */
function tierDraft(written: Record<string, unknown>, isFilledIn: boolean, maxDelay: number | undefined): TierDraft {
  const { name, rate, capacity } = good(tier, written)
  const hasCapacity = 'capacity' in written
  return {
    name,
    keys: Array.isArray(written.keys) ? written.keys : [],
    hasMembers: 'keys' in written || 'header' in written,
    hasLimits: hasCapacity || 'rate' in written || 'weight' in written,
    capacity: !hasCapacity && isFilledIn && rate !== undefined ? capacityOf({ rate, maxDelay }) : capacity,
    capacityKey: hasCapacity ? 'capacity' : 'rate',
  }
}

function routeDraft(value: unknown): RouteDraft {
  const written = isObject(value) ? value : {}
  const { name, mode, cost } = good(route, written)
  return {
    name,
    mode,
    cost,
    buckets: Array.isArray(written.buckets) ? written.buckets : undefined,
    namesBuckets: 'buckets' in written,
    hasUpstream: 'upstream' in written,
  }
}

/** Each key of an object judged for itself: those that are good, with their defaults. */
function good<S extends z.core.$ZodShape>(schema: z.ZodObject<S>, written: Record<string, unknown>) {
  const entries = Object.entries(schema.shape).flatMap(([key, field]) => {
    if (!(key in written) && field instanceof z.ZodExactOptional) return []
    const result = z.safeParse(field, written[key])
    return result.success ? [[key, result.data] as const] : []
  })
  return Object.fromEntries(entries) as Partial<z.output<z.ZodObject<S>>>
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
