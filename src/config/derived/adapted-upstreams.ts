import type { AdaptSettings, UpstreamSettings } from '../settings.js'

/** The bucket of an upstream with `adapt`. With several such upstreams a colon and the host follow. */
export const ADAPTIVE = 'adaptive'

/** The adaptive upstreams among these, by URL, with the names of their buckets. */
export function adaptedUpstreams(
  upstreams: Iterable<UpstreamSettings>,
): Map<string, { name: string; targets: AdaptSettings }> {
  const targets = new Map<string, AdaptSettings>()
  for (const { url, adapt } of upstreams) if (adapt !== undefined) targets.set(url, adapt)
  // `echo:` has no host.
  const hostOf = (url: string): string => new URL(url).host || url.replace(/:$/, '')
  const nameOf = (url: string): string => (targets.size === 1 ? ADAPTIVE : `${ADAPTIVE}:${hostOf(url)}`)
  return new Map([...targets].map(([url, each]) => [url, { name: nameOf(url), targets: each }]))
}
