import { availableParallelism } from 'node:os'
import { ConfigError, type ConfigSources, type Flags } from '../../config/load.js'
import type { Settings } from '../../config/settings.js'
import type { Terminal } from '../terminal.js'

/** More workers than this are taken for a mistake. */
const MOST_WORKERS = 1_024

/** Options that `start` and `check` share, as the user gave them. */
export interface CommandOptions extends Flags {
  config?: string
  /** How many processes serve; `"auto"`: one for each core. */
  workers?: string
}

/** What `loadConfig` reads for these options. */
export function sourcesOf(options: CommandOptions, { env, cwd }: Terminal): ConfigSources {
  const { config: file, workers: _workers, ...flags } = options
  return { ...(file !== undefined && { file }), flags, env, cwd: cwd() }
}

/**
 * How many workers to start; undefined: none, this process serves.
 *
 * @throws ConfigError for anything but a number, and for workers without a shared store
 */
export function workersOf({ workers }: CommandOptions, { store }: Settings): number | undefined {
  if (workers === undefined) return undefined
  const count = workers === 'auto' ? availableParallelism() : /^\d+$/.test(workers) ? Number(workers) : 0
  if (count < 1 || count > MOST_WORKERS) {
    const message = `${JSON.stringify(workers)} is not a number of workers; use a whole number from 1 to ${MOST_WORKERS}, or "auto"`
    throw new ConfigError([{ path: '--workers', message }])
  }
  if (store === 'memory') {
    const message = `with the store "memory" each worker has its own buckets, so N workers let N times the rates pass; share them, e.g. "store": { "type": "redis", "url": "redis://127.0.0.1:6379" }, or leave --workers out`
    throw new ConfigError([{ path: '--workers', message }])
  }
  return count
}
