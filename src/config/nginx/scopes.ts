/** Directives that hold for a place: those of the innermost block that has any. */
import type { Directive } from './directives.js'

/** The blocks around a place, from the innermost. */
export type Scopes = readonly (readonly Directive[])[]

/** The directives of a name in the innermost block that has any, as `limit_req` is inherited. */
export function inherited(scopes: Scopes, name: string): readonly Directive[] {
  for (const block of scopes) {
    const found = byName(block).get(name)
    if (found !== undefined) return found
  }
  return []
}

/** All servers look into the block "http", which may be long. */
const known = new WeakMap<readonly Directive[], ReadonlyMap<string, readonly Directive[]>>()

function byName(block: readonly Directive[]): ReadonlyMap<string, readonly Directive[]> {
  const ready = known.get(block)
  if (ready !== undefined) return ready
  const found = new Map<string, Directive[]>()
  for (const each of block) {
    const list = found.get(each.name)
    if (list === undefined) found.set(each.name, [each])
    else list.push(each)
  }
  known.set(block, found)
  return found
}

/** The first argument of such a directive; undefined: there is none. */
export function settingOf(scopes: Scopes, name: string): string | undefined {
  return inherited(scopes, name)[0]?.args[0]
}
