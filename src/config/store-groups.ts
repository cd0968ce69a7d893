/** Which buckets live together in a store (core/store.ts). */
import type { BucketSettings, RouteSettings } from './settings.js'

/**
 * Groups by the names of buckets: those that are in one route, or in routes that have a bucket in common, are of one
 * component, and live together where one of them is everyone's.
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
