import { filesOf } from '../derived/open-files.js'
import type { Problem } from '../load.js'
import type { Settings } from '../settings.js'

/** Warns where the limits need more open files than each process may open. */
export function openFileWarnings(settings: Settings, allowed = Infinity, workers = 1): Problem[] {
  const { needed, fitting } = filesOf(settings, allowed, workers)
  if (needed <= allowed) return []
  const lower = fitting > 0 ? `, or lower this to ${fitting * workers}` : ''
  const process = workers === 1 ? 'this process' : 'each worker'
  const message = `${settings.limits.maxConnections} needs up to ${needed} open files${workers === 1 ? '' : ' in each worker'}, and ${process} may open ${allowed}: raise that with "ulimit -n ${needed}"${lower}`
  return [{ path: 'limits.maxConnections', message }]
}
