/** Warnings about figures of profiles that may no longer hold. */
import { parseRate } from '../../core/units.js'
import { figuresOf } from '../profiles.js'
import { bucketName } from '../read/expand-profiles.js'
import type { Settings, UpstreamSettings } from '../settings.js'
import type { Warning } from './key-scope.js'

const YEAR_MS = 365 * 86_400_000

/** @param wallNow ms since 1970 */
export function profileWarnings(settings: Settings, wallNow: number): Warning[] {
  const { routes } = settings
  const common = routes[0]?.upstream
  const upstreams = new Map<UpstreamSettings, number>()
  for (const [index, { upstream }] of routes.entries()) if (!upstreams.has(upstream)) upstreams.set(upstream, index)
  return [...upstreams].flatMap(([upstream, index]) => {
    const path = [...(upstream === common ? [] : ['routes', index]), 'upstream', 'profile']
    return outdated(upstream, settings, wallNow).map(message => ({ path, message }))
  })
}

function outdated({ profile }: UpstreamSettings, { buckets }: Settings, wallNow: number): string[] {
  if (profile === undefined) return []
  return figuresOf(profile).flatMap(({ bucket, figure: { value, of, source, date } }) => {
    const name = bucketName(profile, bucket)
    const limits = buckets.find(each => each.name === name)?.limits
    const inUse = typeof value === 'number' ? limits?.maxInFlight === value : limits?.rate === parseRate(value)
    if (!inUse || wallNow - Date.parse(date) <= YEAR_MS) return []
    return [
      `the figure ${value} (${of}) is of ${date}, more than a year ago; look at ${source}, and write what it says now as the bucket "${name}"`,
    ]
  })
}
