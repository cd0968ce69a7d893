import { hostname } from 'node:os'

/** The environment variable that holds the number of a worker. */
export const WORKER = 'SHAPER_WORKER'

/** The host and the process. A worker has the process of its primary, and its number. */
export function instanceName(): string {
  const worker = process.env[WORKER]
  return worker === undefined ? `${hostname()}:${process.pid}` : `${hostname()}:${process.ppid}/${worker}`
}
