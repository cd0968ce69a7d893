/** The flag `--workers`. */
import { availableParallelism } from 'node:os'
import { DIVIDED } from '../derived/worker-share.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { LEAST_BUFFER_MEMORY } from '../schema/schema.js'
import { isObject } from './partial-config.js'

/** More workers than this are taken for a mistake. */
const MOST_WORKERS = 1_024

/** How many workers a value of the flag means, `"auto"`: one for each core; undefined: it is not a number of workers. */
export function workerCount(workers: string): number | undefined {
  const count = workers === 'auto' ? availableParallelism() : /^\d+$/.test(workers) ? Number(workers) : 0
  return count < 1 || count > MOST_WORKERS ? undefined : count
}

/** @param workers the value of the flag, if it is given */
export function workerCountFaults(workers: string | undefined): Finding[] {
  if (workers === undefined || workerCount(workers) !== undefined) return []
  const message = `${quote(workers)} is not a number of workers; use a whole number from 1 to ${MOST_WORKERS}, or "auto"`
  return [{ path: ['--workers'], message }]
}

/** The least part of a worker, where that is more than 1. */
const LEAST: Readonly<Record<string, number>> = { bufferMemory: LEAST_BUFFER_MEMORY }

/** Finds bounds of which some worker would have no part (config/derived/worker-share.ts). The schema checks the rest. */
export function workerFaults(workers: string | undefined, file: Record<string, unknown>): Finding[] {
  const count = workers === undefined ? undefined : workerCount(workers)
  if (count === undefined) return []
  const { limits, upstream, routes, buckets } = file
  const bounds = (path: PropertyKey[], value: unknown, names: readonly string[]): Finding[] =>
    names.flatMap(name => {
      const { [name]: bound } = fields(value)
      const { [name]: least = 1 } = LEAST
      if (typeof bound !== 'number' || !(bound >= least) || bound >= count * least) return []
      const each = least === 1 ? 'one' : String(least)
      const fitting = Math.floor(bound / least)
      const message = `the workers divide it, and ${bound} is less than ${each} for each of ${count}; use at least ${count * least}, or at most --workers ${fitting}`
      return [{ path: [...path, name], message }]
    })
  return [
    ...bounds(['limits'], limits, DIVIDED.limits),
    ...bounds(['upstream'], upstream, DIVIDED.upstream),
    ...list(routes).flatMap((route, index) =>
      bounds(['routes', index, 'upstream'], fields(route).upstream, DIVIDED.upstream),
    ),
    ...Object.entries(fields(buckets)).flatMap(([name, bucket]) => [
      ...bounds(['buckets', name], bucket, DIVIDED.bucket),
      ...list(fields(bucket).tiers).flatMap((tier, index) =>
        bounds(['buckets', name, 'tiers', index], tier, DIVIDED.bucket),
      ),
    ]),
  ]
}

function fields(value: unknown): Record<string, unknown> {
  return isObject(value) ? value : {}
}

function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : []
}
