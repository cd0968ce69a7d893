/** The names of formats and of their fields. The command line's help needs them, so this file imports nothing. */

export const FORMATS = {
  common: 'Apache',
  combined: 'nginx',
  vhost: 'both with virtual hosts',
  json: 'JSON',
  alb: 'AWS ALB',
  cloudfront: 'CloudFront',
  envoy: 'Envoy',
  haproxy: 'HAProxy',
  npm: 'Nginx Proxy Manager',
  w3c: 'IIS',
  shaper: 'shaper itself',
} as const

export type FormatName = keyof typeof FORMATS
const names = Object.keys(FORMATS)

/** `common, combined, ... or shaper` */
export const FORMAT_LIST = `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`

export function isFormat(text: string): text is FormatName {
  return Object.hasOwn(FORMATS, text)
}

export const FIELDS = ['time', 'ip', 'method', 'path', 'request', 'host', 'agent', 'duration', 'unit'] as const
export type FieldUse = (typeof FIELDS)[number]
/** What `--field` can name the place of. `unit` names no place but the unit of durations. */
export type FieldNames = Readonly<Partial<Record<FieldUse, string>>>

const PREFIXES = new Map(
  Object.entries({ '': 1_000, milli: 1, m: 1, micro: 1e-3, u: 1e-3, µ: 1e-3, nano: 1e-6, n: 1e-6 }),
)

/** How many ms a unit of time has, such as `s`, `us` or `millis`; undefined: it is none. */
export function msOfUnit(unit: string): number | undefined {
  const [, prefix = '?'] = /^(milli|micro|nano|[muµn]?)s(?:ec(?:ond)?s?)?$/i.exec(unit) ?? []
  return PREFIXES.get(prefix.toLowerCase())
}
