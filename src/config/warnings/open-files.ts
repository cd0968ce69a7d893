/** Warns where the limits of the configuration need more open files than the system allows. */
import { readFileSync } from 'node:fs'
import type { Problem } from '../load.js'
import type { RouteSettings, Settings } from '../settings.js'
import { workerShare } from '../worker-share.js'

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
  return limitOf(/^Max open files +(\S+)/m.exec(textOf(file) ?? '')?.[1] ?? reportedLimit())
}

function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return undefined
  }
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

function limitOf(told: unknown): number | undefined {
  if (told === 'unlimited') return Infinity
  const limit = Number(told ?? Number.NaN)
  return Number.isNaN(limit) ? undefined : limit
}

/**
 * @param allowed how many files each process may open
 * @param workers how many divide the limits
 */
export function openFileWarnings(settings: Settings, allowed = Infinity, workers = 1): Problem[] {
  // The first worker has the largest part.
  const { routes, limits } = workers === 1 ? settings : workerShare(settings, 1, workers)
  const { maxConnections } = limits
  const bound = upstreamBound(routes)
  const upstreams = Math.min(bound, maxConnections)
  const needed = maxConnections + upstreams + OTHERS
  if (needed <= allowed) return []
  const fitting = Math.max(allowed - OTHERS - bound, Math.floor((allowed - OTHERS) / 2))
  const lower = fitting > 0 ? `, or lower this to ${fitting * workers}` : ''
  const message = `up to ${needed} files can be open${workers === 1 ? '' : ' in each worker'} (${maxConnections} connections of clients, ${upstreams} to upstreams, ${OTHERS} others), and ${workers === 1 ? 'this process' : 'it'} may open ${allowed}: clients can leave none for the upstream; raise that limit, e.g. "ulimit -n ${needed}", or "LimitNOFILE=${needed}" in systemd${lower}`
  return [{ path: 'limits.maxConnections', message }]
}

/** How many connections there may be to all upstreams. A client's connection needs one at a time, at most. */
function upstreamBound(routes: readonly RouteSettings[]): number {
  const bounds = new Map<string, number>()
  for (const { mode, dryRun, upstream } of routes) {
    const gated = mode === 'off' || dryRun ? Infinity : upstream.maxInFlight
    const key = JSON.stringify(upstream)
    bounds.set(key, Math.max(bounds.get(key) ?? 0, upstream.connections ?? gated))
  }
  return [...bounds.values()].reduce((sum, bound) => sum + bound, 0)
}
