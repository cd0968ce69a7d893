/** The valid parts of a file, for checks that run even when other parts are invalid. */
import * as z from 'zod'
import { ownValue } from '../../core/structures/own-value.js'
import { capacityOf } from '../derived/default-capacity.js'
import { DEFAULT_LISTEN } from '../schema/address.js'
import { bucket, tier } from '../schema/buckets.js'
import { slowest } from '../schema/rates.js'
import { route } from '../schema/routes.js'
import type { ConfigMode } from '../settings.js'

export interface PartialBucket {
  readonly name: string
  /** Undefined if a setting that determines it is invalid. */
  readonly capacity: number | undefined
  /** The key in the file that the capacity comes from. */
  readonly capacityKey: 'capacity' | 'maxDelay' | 'quota'
  readonly hasBoth: boolean
  /** What needs a rate, where there is none. Without a `maxInFlight` a bucket needs one anyway. */
  readonly needRate: readonly PropertyKey[][]
  /** By index; undefined for an entry that is not an object. */
  readonly tiers: readonly (PartialTier | undefined)[]
}

export interface PartialTier {
  /** Undefined when it is missing or invalid. */
  readonly name: string | undefined
  /** The entries of the file, by index. */
  readonly keys: readonly unknown[]
  readonly hasMembers: boolean
  readonly hasLimits: boolean
  readonly capacity: number | undefined
  readonly capacityKey: 'capacity' | 'rate' | 'burst' | 'quota'
}

export interface PartialRoute {
  readonly given: Record<string, unknown>
  /** Its valid fields, with defaults filled in. */
  readonly valid: Partial<z.output<typeof route>>
  /** The entries as written, by index. Undefined if the file has no list. */
  readonly buckets: readonly unknown[] | undefined
  /** Whether its own upstream has an adaptive rate. Undefined: it has no own upstream. */
  readonly adapts: boolean | undefined
}

export interface PartialConfig {
  readonly buckets: ReadonlyMap<string, PartialBucket>
  /** Undefined if the file has no list of routes. Every request then passes all buckets. */
  readonly routes: readonly PartialRoute[] | undefined
  readonly namesRoutes: boolean
  readonly hasUpstream: boolean
  readonly adapts: boolean
  readonly hasEgress: boolean
}

/** @param mode with `egress` requests go where they say, and routes need no upstream */
export function readPartialConfig(raw: unknown, mode: ConfigMode = 'proxy'): PartialConfig {
  const file = isObject(raw) ? raw : {}
  const isEgress = mode === 'egress'
  const buckets = isObject(file.buckets) ? Object.entries(file.buckets) : []
  return {
    buckets: new Map(buckets.map(([name, value]) => [name, readBucket(name, value)])),
    routes: Array.isArray(file.routes) ? file.routes.map(each => readRoute(each, mode)) : undefined,
    namesRoutes: 'routes' in file,
    hasUpstream: isEgress || 'upstream' in file,
    adapts: adapts(isEgress && isObject(file.egress) ? file.egress.upstream : file.upstream),
    hasEgress: 'egress' in file,
  }
}

function readBucket(name: string, value: unknown): PartialBucket {
  const given = isObject(value) ? value : {}
  const { rate, capacity, maxDelay, burst, quota } = validFields(bucket, given)
  const followsRate = !('capacity' in given) && (!('maxDelay' in given) || maxDelay !== undefined)
  const known = followsRate && rate !== undefined ? capacityOf({ rate: slowest(rate), maxDelay, burst }) : capacity
  return {
    name,
    capacity: quota?.limit ?? known,
    capacityKey: 'quota' in given ? 'quota' : 'maxDelay' in given ? 'maxDelay' : 'capacity',
    hasBoth: 'capacity' in given && 'maxDelay' in given,
    needRate: isObject(value) ? needRate(given) : [],
    tiers: Array.isArray(given.tiers)
      ? given.tiers.map(each => (isObject(each) ? readTier(each, { followsRate, rate, maxDelay, burst }) : undefined))
      : [],
  }
}

const OF_RATE = ['capacity', 'maxDelay', 'burst'] as const

function needRate(given: Record<string, unknown>): PropertyKey[][] {
  if ('rate' in given || 'quota' in given) return []
  if (!('maxInFlight' in given)) return [['rate']]
  const ofTier = (tier: unknown, index: number): PropertyKey[][] =>
    isObject(tier) && !('rate' in tier) ? OF_RATE.filter(key => key in tier).map(key => ['tiers', index, key]) : []
  const tiers = Array.isArray(given.tiers) ? given.tiers.flatMap(ofTier) : []
  return [...OF_RATE.filter(key => key in given).map(key => [key]), ...tiers]
}

interface CapacityRule {
  /** True if the capacity follows from the rate. A tier with its own rate then has its own capacity. */
  readonly followsRate: boolean
  readonly rate: Rates | undefined
  /** ms */
  readonly maxDelay: number | undefined
  readonly burst: number | undefined
}

type Rates = Parameters<typeof slowest>[0]

function readTier(given: Record<string, unknown>, { followsRate, maxDelay, ...of }: CapacityRule): PartialTier {
  const { name, rate, capacity, burst, quota } = validFields(tier, given)
  const hasCapacity = 'capacity' in given
  const ownKey = rate !== undefined ? 'rate' : 'burst'
  const rates = rate ?? of.rate
  const follows = !hasCapacity && followsRate && rates !== undefined && (rate !== undefined || burst !== undefined)
  return {
    name,
    keys: Array.isArray(given.keys) ? given.keys : [],
    hasMembers: 'keys' in given || 'header' in given,
    hasLimits: ['rate', 'capacity', 'burst', 'quota', 'maxInFlight', 'weight', 'priority'].some(limit =>
      Object.hasOwn(given, limit),
    ),
    capacity: quota ?? (follows ? capacityOf({ rate: slowest(rates), maxDelay, burst: burst ?? of.burst }) : capacity),
    capacityKey: quota !== undefined ? 'quota' : hasCapacity ? 'capacity' : ownKey,
  }
}

function readRoute(value: unknown, use: ConfigMode): PartialRoute {
  const given = isObject(value) ? value : {}
  return {
    given,
    valid: validFields(route, given),
    buckets: Array.isArray(given.buckets) ? given.buckets : undefined,
    adapts: 'upstream' in given && use === 'proxy' ? adapts(given.upstream) : undefined,
  }
}

function adapts(upstream: unknown): boolean {
  return isObject(upstream) && upstream.adapt !== undefined
}

/** Checks each field alone. Returns the valid ones, with defaults filled in. */
function validFields<S extends z.core.$ZodShape>(schema: z.ZodObject<S>, given: Record<string, unknown>) {
  const entries = Object.entries(schema.shape).flatMap(([key, field]) => {
    if (!Object.hasOwn(given, key) && field instanceof z.ZodExactOptional) return []
    const result = z.safeParse(field, ownValue(given, key))
    return result.success ? [[key, result.data] as const] : []
  })
  return Object.fromEntries(entries) as Partial<z.output<z.ZodObject<S>>>
}

export function routesOf({ routes }: Record<string, unknown>) {
  const list: unknown[] = Array.isArray(routes) ? routes : []
  return list.flatMap((route, index): { route: Record<string, unknown>; path: PropertyKey[] }[] =>
    isObject(route) ? [{ route, path: ['routes', index] }] : [],
  )
}

export function listensOf({
  listen = DEFAULT_LISTEN,
}: Record<string, unknown>): { listen: unknown; path: PropertyKey[] }[] {
  if (!Array.isArray(listen)) return [{ listen, path: ['listen'] }]
  return listen.map((each: unknown, index) => ({ listen: each, path: ['listen', index] }))
}

export function upstreamsOf(file: Record<string, unknown>): { upstream: unknown; path: PropertyKey[] }[] {
  return [
    { upstream: file.upstream, path: ['upstream'] },
    ...routesOf(file).map(({ route, path }) => ({ upstream: route.upstream, path: [...path, 'upstream'] })),
  ]
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
