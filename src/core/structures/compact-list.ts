/** Arrays of few entries in very many objects. They are as long as needed (`push` makes room for 17), and replaced, not changed. */

/** The empty one, shared by all. */
export const NONE: readonly never[] = []

export function withEntry<E>(entries: readonly E[], entry: E): readonly E[] {
  return entries.length === 0 ? [entry] : [...entries, entry]
}

export function withoutEntry<E>(entries: readonly E[], entry: E): readonly E[] {
  return entries.length === 1 && entries[0] === entry ? NONE : entries.filter(other => other !== entry)
}
