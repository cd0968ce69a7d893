/** Bucket keys, which tell clients apart. */
import * as z from 'zod'
import { nearest, quote, wants } from '../messages.js'
import { cookieName, headerName } from '../read-values.js'
import type { KeyPart, KeySettings } from '../settings.js'
import { object, oneOf, read, whole } from './values.js'

const PLAIN = ['all', 'ip', 'route', 'method', 'host'] as const
const FORMS = '"ip", "all", "route", "method", "host", "header:NAME", "cookie:NAME" or "query:NAME"'
const NAMED = {
  header: headerName,
  cookie: cookieName,
  query: (name: string) => name,
}

/**
 * Reads one part of a key: `"ip"`, `"header:x-api-key"`, ...
 *
 * @throws RangeError
 */
function parseKeyPart(value: string): KeyPart {
  const plain = PLAIN.find(kind => kind === value)
  if (plain) return { kind: plain }
  const [, kind, name = ''] = /^(header|cookie|query):(.*)$/s.exec(value) ?? []
  if (kind && !name) throw new RangeError(`${quote(value)} names no ${kind}; write e.g. "${kind}:NAME"`)
  if (kind === 'header' || kind === 'cookie' || kind === 'query') return { kind, name: NAMED[kind](name) }
  const near = nearest(value.replace(/:.*/s, ''), [...PLAIN, ...Object.keys(NAMED)])
  const meant =
    near !== undefined && Object.hasOwn(NAMED, near) ? `${near}:${value.replace(/^[^:]*:?/s, '') || 'NAME'}` : near
  throw new RangeError(`${quote(value)} is not a key; ${meant ? `did you mean ${quote(meant)}?` : `use ${FORMS}`}`)
}

/** The inverse of `parseKeyPart`. */
export function formatKeyPart(part: KeyPart): string {
  return 'name' in part ? `${part.kind}:${part.name}` : part.kind
}

const keyError = wants('a key', `use ${FORMS}, or a list of these`)
const part = read(z.string({ error: keyError }), parseKeyPart)

const parts = [
  part.transform((one): KeyPart[] => [one]),
  read(z.array(part).min(1, { error: `the list is empty; use ${FORMS}` }), list => {
    const names = list.map(formatKeyPart)
    const twice = names.find((name, index) => names.indexOf(name) < index)
    if (twice !== undefined) throw new RangeError(`${quote(twice)} is listed twice; remove one`)
    return list
  }),
] as const

const missing = oneOf(['ip', 'reject', 'all', 'skip'], 'a choice for a missing key')

const duplicates = oneOf(['first', 'reject'], 'a choice for a header with several lines')

/** Bits. An IPv6 host usually has such a network to itself. */
const IPV6 = 64

const ipv6 = whole('a prefix length of IPv6', 'use 1 to 128, e.g. 56', 1, 128)

const keyObject = object(
  {
    from: z.union(parts, { error: keyError }).describe('The key, e.g. "header:x-api-key" or ["ip", "route"].'),
    missing: missing
      .prefault('ip')
      .describe('What to do when the key is missing, e.g. "reject" answers 400, "skip" leaves the bucket out.'),
    duplicates: duplicates
      .prefault('first')
      .describe('What to do when a header of the key has several lines, e.g. "reject" answers 400.'),
    ipv6: ipv6.prefault(IPV6).describe('The prefix length of the IPv6 networks in an "ip" key, e.g. 56.'),
  },
  'an object',
  'use { "from": "header:NAME", "missing": "reject" }',
).transform(({ from, ...choices }, ctx): KeySettings => {
  const settings = { parts: from, ...choices }
  for (const { at, message } of withoutEffect(settings)) {
    ctx.issues.push({ code: 'custom', path: [at], message, input: choices[at] })
  }
  return settings
})

const NO_HEADER = 'the key has no header, so "reject" has no effect; remove it, or use a key such as "header:NAME"'
const NO_ADDRESS = 'the key has no address, so this has no effect; remove it, or use a key such as "ip"'

/** The settings of a key that could never apply. */
function withoutEffect(key: KeySettings): { at: 'duplicates' | 'ipv6'; message: string }[] {
  return [
    ...(key.duplicates === 'first' || hasHeader(key) ? [] : [{ at: 'duplicates' as const, message: NO_HEADER }]),
    ...(key.ipv6 === IPV6 || mayHaveAddress(key) ? [] : [{ at: 'ipv6' as const, message: NO_ADDRESS }]),
  ]
}

export function hasHeader({ parts }: KeySettings): boolean {
  return parts.some(({ kind }) => kind === 'header')
}

/** Whether the address of a client is part of a key, or takes the place of a part that is missing. */
export function mayHaveAddress({ parts, missing }: KeySettings): boolean {
  return parts.some(part => part.kind === 'ip' || (missing === 'ip' && ('name' in part || part.kind === 'host')))
}

function plainKey(list: KeyPart[]): KeySettings {
  return { parts: list, missing: 'ip', duplicates: 'first', ipv6: IPV6 }
}

export const key = z.union([parts[0].transform(plainKey), parts[1].transform(plainKey), keyObject], { error: keyError })
