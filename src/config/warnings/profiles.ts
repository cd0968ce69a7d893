/** Warnings about figures of profiles that may no longer hold. */
import { parseRate } from '../../core/units.js'
import { figuresOf, type ProfileName } from '../profiles.js'
import { bucketName } from '../read/expand-profiles.js'
import type { BucketSettings, Settings, UpstreamSettings } from '../settings.js'
import type { Warning } from './key-scope.js'

const YEAR_MS = 365 * 86_400_000

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

/** The figures of a profile that are limits of its buckets, with the names of these. */
export function figuresInUse(profile: ProfileName, buckets: readonly BucketSettings[]) {
  return figuresOf(profile).flatMap(({ bucket, kind, figure }) => {
    const name = bucketName(profile, bucket)
    const limits = buckets.find(each => each.name === name)?.limits
    const { value } = figure
    return limits?.[kind] === (typeof value === 'number' ? value : parseRate(value)) ? [{ name, figure }] : []
  })
}

function outdated({ profile }: UpstreamSettings, { buckets }: Settings, wallNow: number): string[] {
  if (profile === undefined) return []
  return figuresInUse(profile, buckets).flatMap(({ name, figure: { value, of, source, date } }) => {
    if (wallNow - Date.parse(date) <= YEAR_MS) return []
    return [
      `the figure ${value} (${of}) is of ${date}, more than a year ago; look at ${source}, and write what it says now as the bucket "${name}"`,
    ]
  })
}
