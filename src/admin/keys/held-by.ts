/** What holds newcomers besides their rates: for how long depends on answers of the upstream. */
import { upstreamSnapshot, upstreamTrouble } from '../snapshot/troubles.js'
import type { RouteNewcomer } from './newcomer.js'

/** Nothing, where nobody waits. */
export function heldByOn({ route, arrival }: Pick<RouteNewcomer, 'route' | 'arrival'>): string[] {
  const { settings, upstream, waits } = route
  if (settings.mode !== 'shape') return []
  const { isFull, blocked } = arrival.route.gate
  const held: string[] = []
  if (isFull || blocked) {
    // How long a pause holds them is known, and is in their waits.
    const state = { ...upstreamSnapshot(upstream, 0, waits.service.usual), pausedMs: 0, isFull }
    held.push(`${state.url} ${upstreamTrouble(state)?.what ?? 'fails'}`)
  }
  for (const { hasPlace, inFlight, limits } of arrival.stack)
    if (!hasPlace) held.push(`bucket ${limits.name} has ${inFlight} of ${limits.maxInFlight} in flight`)
  return held
}

export function heldByAny(newcomers: readonly RouteNewcomer[]): string[] {
  return [...new Set(newcomers.flatMap(heldByOn))]
}
