/** The formats of logs. The command line's help needs them, so this file imports nothing. */

/** Each format, and what writes it. */
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
