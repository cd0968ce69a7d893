/** Which buckets a store keeps together (core/store.ts). */
import type { BucketSettings, RouteSettings } from './settings.js'

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
