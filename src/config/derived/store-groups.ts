/** What sharing needs to know of the buckets of all routes: which ones a store keeps together, and in which several lanes may wait. */
import type { BucketSettings, RouteSettings } from '../settings.js'

/**
 * The group of each bucket, by name.
 *
 * Buckets of one route, or of routes that share a bucket, form a component. A component with a bucket of the key `all` is
 * one group. Other buckets have no group.
 */
export function groupsOf(routes: readonly RouteSettings[]): Map<string, string> {
  let components: BucketSettings[][] = []
  for (const { buckets } of routes) {
    const touched = components.filter(component => component.some(({ name }) => buckets.some(it => it.name === name)))
    components = [...components.filter(it => !touched.includes(it)), [...new Set([...touched.flat(), ...buckets])]]
  }
  const groups = new Map<string, string>()
  for (const component of components) {
    const everyones = component.filter(({ key }) => key.parts.every(part => part.kind === 'all'))
    const [first] = everyones.map(({ name }) => name).sort()
    if (first !== undefined) for (const { name } of component) groups.set(name, first)
  }
  return groups
}

/** The names of the buckets in which requests of several routes, or of several classes, may wait. */
export function bucketsOfSeveralLanes(routes: readonly RouteSettings[]): Set<string> {
  const names = new Set<string>()
  const seen = new Set<string>()
  for (const { buckets, priority } of routes) {
    const hasClasses =
      priority === 'header' ||
      buckets.some(({ tiers, outside }) => outside !== undefined || tiers.some(tier => tier.priority !== undefined))
    for (const { name } of buckets) {
      if (hasClasses || seen.has(name)) names.add(name)
      seen.add(name)
    }
  }
  return names
}
