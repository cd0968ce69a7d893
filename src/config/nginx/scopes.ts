/** Directives that hold for a place: those of the innermost block that has any. */
import type { Directive } from './directives.js'

/** The blocks around a place, from the innermost. */
export type Scopes = readonly (readonly Directive[])[]

/** The directives of a name in the innermost block that has any, as `limit_req` is inherited. */
export function inherited(scopes: Scopes, name: string): readonly Directive[] {
  const [found] = scopes.map(block => block.filter(each => each.name === name)).filter(list => list.length > 0)
  return found ?? []
}

/** The first argument of such a directive; undefined: there is none. */
export function settingOf(scopes: Scopes, name: string): string | undefined {
  return inherited(scopes, name)[0]?.args[0]
}
