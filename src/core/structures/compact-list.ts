/**
 * Arrays of few entries, mostly one, in very many objects: exactly as long as needed (one that is pushed to has room for
 * 17), replaced and not changed.
 */

/** The empty one, which all share. */
export const NONE: readonly never[] = []

export function withEntry<E>(entries: readonly E[], entry: E): readonly E[] {
  return entries.length === 0 ? [entry] : [...entries, entry]
}

export function withoutEntry<E>(entries: readonly E[], entry: E): readonly E[] {
  return entries.length === 1 && entries[0] === entry ? NONE : entries.filter(other => other !== entry)
}
