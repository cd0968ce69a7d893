/** Warns of header values that no request has. */
import type { Finding } from '../problems.js'

/** @param path the place of the headers in the file */
export function headerValueFaults(
  headers: Readonly<Record<string, string>> | undefined,
  path: readonly PropertyKey[],
): Finding[] {
  return Object.entries(headers ?? {}).flatMap(([name, value]) =>
    headerValueFault(value).map(why => ({ path: [...path, name], message: `never matches: ${why}` })),
  )
}

/** Why no header can have a value. */
export function headerValueFault(value: string): string[] {
  if (value === '') return ['an empty header counts as none; write a value, or "*" in a route']
  if (value.trim() !== value) return ['header values have no space at their ends; remove it']
  // Their bytes are read as Latin-1.
  if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) return ['header values have no such character; write visible ASCII']
  return []
}
