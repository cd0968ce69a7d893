/** What holds newcomers besides their rates: for how long depends on answers of the upstream. */
import type { RouteNewcomer } from './newcomer.js'

/** Nothing, where nobody waits. */
export function heldByOn({ route, arrival }: Pick<RouteNewcomer, 'route' | 'arrival'>): string[] {
  if (route.settings.mode !== 'shape') return []
  const { gate } = arrival.route
  const held: string[] = []
  if (gate.isFull) held.push(`upstream full (${gate.inFlight} of ${gate.maxInFlight} in flight)`)
  if (gate.pool?.isFull) held.push(`all upstreams full (${gate.pool.inFlight} of ${gate.pool.maxInFlight} in flight)`)
  for (const { hasPlace, inFlight, limits } of arrival.stack)
    if (!hasPlace) held.push(`maxInFlight of bucket ${limits.name} (${inFlight} of ${limits.maxInFlight} in flight)`)
  if (gate.blocked) held.push('breaker')
  return held
}

export function heldByAny(newcomers: readonly RouteNewcomer[]): string[] {
  return [...new Set(newcomers.flatMap(heldByOn))]
}
