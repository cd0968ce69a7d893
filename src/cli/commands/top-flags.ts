import { ConfigError, type Problem } from '../../config/load.js'
import { parseDuration } from '../../core/units.js'
import { adminUrl } from './admin-client.js'
import type { TopOptions } from './top.js'

/** The flags as the user gave them. */
export interface TopFlags {
  admin: string
  dryRun?: boolean
  interval: string
  count?: string
}

/** The shortest interval between two requests to the admin server, in ms. */
const LEAST_INTERVAL = 100

/** @throws ConfigError with everything that is wrong */
export function readTopFlags({ admin, dryRun = false, interval, count }: TopFlags, env: NodeJS.ProcessEnv): TopOptions {
  const problems: Problem[] = []
  const refuse = (path: string, value: string, message: string): void => {
    problems.push({ path, message: `${JSON.stringify(value)} ${message}` })
  }
  const url = adminUrl(admin)
  if (url === undefined) refuse('--admin', admin, 'is not a URL; use e.g. http://127.0.0.1:9090')
  let ms = 0
  try {
    ms = parseDuration(interval)
  } catch {
    ms = Number.NaN
  }
  if (!(ms >= LEAST_INTERVAL))
    refuse('--interval', interval, `is not a time of at least ${LEAST_INTERVAL}ms; use e.g. 1s`)
  if (count !== undefined && !/^[1-9]\d{0,8}$/.test(count))
    refuse('--count', count, 'is not a number of tables; use e.g. 1')
  if (problems.length > 0) throw new ConfigError(problems)
  return {
    admin: url!,
    token: env.SHAPER_TOKEN,
    dryRun,
    interval: ms,
    count: count === undefined ? Infinity : Number(count),
  }
}
