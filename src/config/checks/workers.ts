/** The flag `--workers`. */
import { availableParallelism } from 'node:os'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'

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

/** Finds workers without a shared store. An invalid store is not judged: the schema reports it. */
export function workerStoreFaults(
  workers: string | undefined,
  { store = 'memory' }: Record<string, unknown>,
): Finding[] {
  if (workers === undefined || workerCount(workers) === undefined || store !== 'memory') return []
  const message = `with the store "memory" each worker has its own buckets, so N workers let N times the rates pass; share them, e.g. "store": { "type": "redis", "url": "redis://127.0.0.1:6379" }, or leave --workers out`
  return [{ path: ['--workers'], message }]
}
