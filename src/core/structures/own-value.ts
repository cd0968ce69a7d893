/**
 * What a table has for a name. The name may come from a client, and every object has a `constructor`.
 *
 * @returns undefined: it has none
 */
export function ownValue<T>(table: Readonly<Record<string, T>> | undefined, name: string): T | undefined {
  return table !== undefined && Object.hasOwn(table, name) ? table[name] : undefined
}
