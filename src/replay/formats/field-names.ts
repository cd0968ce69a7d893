/** What `--field` can name the place of. */

export const FIELDS = ['time', 'ip', 'method', 'path', 'request', 'host', 'agent', 'duration', 'unit'] as const
export type FieldUse = (typeof FIELDS)[number]
/** `unit` names no place but the unit of durations. */
export type FieldNames = Readonly<Partial<Record<FieldUse, string>>>

const PREFIXES = new Map(
  Object.entries({ '': 1_000, milli: 1, m: 1, micro: 1e-3, u: 1e-3, µ: 1e-3, nano: 1e-6, n: 1e-6 }),
)

/** How many ms a unit of time has, such as `s`, `us` or `millis`; undefined: it is none. */
export function msOfUnit(unit: string): number | undefined {
  const [, prefix = '?'] = /^(milli|micro|nano|[muµn]?)s(?:ec(?:ond)?s?)?$/i.exec(unit) ?? []
  return PREFIXES.get(prefix.toLowerCase())
}
