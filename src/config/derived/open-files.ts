/** Open files: what the limits of a configuration need, and what the system allows. */
import { readFileSync } from 'node:fs'
import { orElse } from '../../core/structures/or-else.js'
import type { RouteSettings, Settings } from '../settings.js'
import { workerShare } from './worker-share.js'

/** Connections that are refused because there are too many (256), files, threads, the store, the admin server. */
const OTHERS = 320
const LIMITS = '/proc/self/limits'

/**
 * How many files this process may open; undefined: that cannot be read. Node raises the soft limit to the hard one when it
 * starts, so a shell would tell another number.
 *
 * @param file where Linux tells it. Elsewhere a diagnostic report does, which takes about 10 ms
 */
export function openFileLimit(file = LIMITS): number | undefined {
  const told = /^Max open files +(\S+)/m.exec(orElse(() => readFileSync(file, 'utf8'), ''))?.[1] ?? reportedLimit()
  if (told === 'unlimited') return Infinity
  const limit = Number(told ?? Number.NaN)
  return Number.isNaN(limit) ? undefined : limit
}

function reportedLimit(): unknown {
  // Not declared for Node 20, which has it since 20.13.
  const report: NodeJS.ProcessReport & { excludeNetwork?: boolean } = process.report
  const { excludeNetwork = false } = report
  // It would look up the names of all peers.
  report.excludeNetwork = true
  try {
    const { userLimits } = report.getReport() as { userLimits?: { open_files?: { soft?: unknown } } }
    return userLimits?.open_files?.soft
  } finally {
    report.excludeNetwork = excludeNetwork
  }
}

/** As many connections of clients as the open files of each process allow, at least one for each worker. */
export function fitOpenFiles(settings: Settings, allowed = Infinity, workers = 1): Settings {
  const { needed, fitting } = filesOf(settings, allowed, workers)
  if (needed <= allowed) return settings
  return { ...settings, limits: { ...settings.limits, maxConnections: Math.max(1, fitting) * workers } }
}

/** How many files a process needs, and for how many connections of clients those that it may open are enough. */
export function filesOf(settings: Settings, allowed: number, workers: number): { needed: number; fitting: number } {
  // The first worker has the largest part.
  const { routes, limits } = workers === 1 ? settings : workerShare(settings, 1, workers)
  const { maxConnections } = limits
  const bound = upstreamBound(routes)
  const needed = maxConnections + Math.min(bound, maxConnections) + OTHERS
  return { needed, fitting: Math.max(allowed - OTHERS - bound, Math.floor((allowed - OTHERS) / 2)) }
}

function upstreamBound(routes: readonly RouteSettings[]): number {
  const bounds = new Map<string, number>()
  for (const { mode, dryRun, gate, upstream } of routes) {
    if (gate !== undefined) continue
    const gated = mode === 'off' || dryRun ? Infinity : upstream.maxInFlight
    const key = JSON.stringify(upstream)
    bounds.set(key, Math.max(bounds.get(key) ?? 0, upstream.connections ?? gated))
  }
  return [...bounds.values()].reduce((sum, bound) => sum + bound, 0)
}
