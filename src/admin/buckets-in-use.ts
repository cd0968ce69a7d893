import type { BucketSettings } from '../config/settings.js'
import type { ProxyContext } from '../proxy/context.js'

/** The buckets that routes use, in the order of the routes. */
export function bucketsOf({ routes }: Pick<ProxyContext, 'routes'>): BucketSettings[] {
  const asked = routes.filter(({ settings }) => settings.mode !== 'off')
  const adaptive = routes.flatMap(({ upstream }) => upstream.adaptive?.bucket ?? [])
  return [...new Set([...asked.flatMap(({ settings }) => settings.buckets), ...adaptive])]
}
