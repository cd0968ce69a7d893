/** Directives that hold for a place: those of the innermost block that has any. */
import { groupedBy, keptIn } from '../../core/structures/maps.js'
import type { Directive } from './directives.js'

/** The blocks around a place, from the innermost. */
export type Scopes = readonly (readonly Directive[])[]

/** All servers look into the block "http", which may be long. */
const known = new WeakMap<readonly Directive[], ReadonlyMap<string, readonly Directive[]>>()

/** The directives of a name in the innermost block that has any, as `limit_req` is inherited. */
export function inherited(scopes: Scopes, name: string): readonly Directive[] {
  for (const block of scopes) {
    const byName = keptIn(known, block, () => groupedBy(block, each => each.name))
    const found = byName.get(name)
    if (found !== undefined) return found
  }
  return []
}

/** The first argument of such a directive; undefined: there is none. */
export function settingOf(scopes: Scopes, name: string): string | undefined {
  return inherited(scopes, name)[0]?.args[0]
}
