/** Those with each key, in order. */
export function groupedBy<T, Key>(all: Iterable<T>, keyOf: (each: T) => Key): Map<Key, T[]> {
  const found = new Map<Key, T[]>()
  for (const each of all) keptIn(found, keyOf(each), () => []).push(each)
  return found
}

/** What a map has for a key. What it does not have is made and kept. */
export function keptIn<Key, T>(
  map: { get(key: Key): T | undefined; set(key: Key, value: T): unknown },
  key: Key,
  make: () => T,
): T {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
