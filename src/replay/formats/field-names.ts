/** What `--field` can name the place of. */

export const FIELDS = ['time', 'ip', 'method', 'path', 'request', 'host', 'agent', 'duration'] as const
export type FieldUse = (typeof FIELDS)[number]
export type FieldNames = Readonly<Partial<Record<FieldUse, string>>>
