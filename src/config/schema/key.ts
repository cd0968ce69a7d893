/** Bucket keys, which tell clients apart. */
import * as z from 'zod'
import { formatJsonPath } from '../../http/figures/json-path.js'
import { nearest, quote, wants } from '../messages.js'
import { cookieName, headerName } from '../read-values.js'
import { alone, NOT_THIS_FORM, object, oneOf, read, readJsonPath, report, whole } from './values.js'

/** Header names are lower-cased. */
type KeyPart = { kind: (typeof PLAIN)[number] } | { kind: keyof typeof NAMED; name: string }
const PLAIN = ['all', 'ip', 'route', 'method', 'host', 'cert'] as const
const FORMS =
  '"ip", "all", "route", "method", "host", "cert", "header:NAME", "cookie:NAME", "query:NAME", "path:N", the N-th segment, "jwt:CLAIM" or "body:JSON.PATH"'
const asIs = (name: string): string => name
const jsonPath = (name: string): string => formatJsonPath(readJsonPath(name))
const NAMED = { header: headerName, cookie: cookieName, query: asIs, path: segment, jwt: asIs, body: jsonPath }

/** 1 is the first. */
function segment(name: string): string {
  if (/^[1-9]\d?$/.test(name)) return name
  throw new RangeError(
    `${quote(`path:${name}`)} is not a segment of the path; use "path:1" for the first, up to "path:99"`,
  )
}

/** Reads one part of a key: `"ip"`, `"header:x-api-key"`, ... @throws RangeError */
function parseKeyPart(value: string): KeyPart {
  const plain = PLAIN.find(kind => kind === value)
  if (plain) return { kind: plain }
  const [, kind = '', name = ''] = /^(\w+):(.*)$/s.exec(value) ?? []
  if (isNamed(kind)) {
    if (name === '') throw new RangeError(`${quote(value)} names no ${kind}; write e.g. "${kind}:NAME"`)
    return { kind, name: NAMED[kind](name) }
  }
  const near = nearest(value.replace(/:.*/s, ''), [...PLAIN, ...Object.keys(NAMED)])
  const meant = near !== undefined && isNamed(near) ? `${near}:${value.replace(/^[^:]*:?/s, '') || 'NAME'}` : near
  throw new RangeError(`${quote(value)} is not a key; ${meant ? `did you mean ${quote(meant)}?` : `use ${FORMS}`}`)
}

function isNamed(kind: string): kind is keyof typeof NAMED {
  return Object.hasOwn(NAMED, kind)
}

export function formatKeyPart(part: KeyPart): string {
  return 'name' in part ? `${part.kind}:${part.name}` : part.kind
}

const keyError = wants('a key', `use ${FORMS}, or a list of these`)
const part = read(z.string({ error: keyError }), parseKeyPart, formatKeyPart)

const parts = [
  alone(part),
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
  'use { "from": "header:NAME", "missing": "reject" }',
)

type KeySettings = Omit<z.output<typeof keyObject>, 'from'> & { parts: readonly KeyPart[] }

const keyWithChoices = read(
  keyObject,
  ({ from, ...choices }, issues): KeySettings => {
    const settings = { parts: from, ...choices }
    for (const { at, message } of withoutEffect(settings)) report(issues, at, message)
    return settings
  },
  ({ parts: from, ...choices }) => ({ from: [...from], ...choices }),
)

const NO_HEADER = 'the key has no header, so "reject" has no effect; remove it, or use a key such as "header:NAME"'
const NO_ADDRESS = 'the key has no address, so this has no effect; remove it, or use a key such as "ip"'

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
  return parts.some(part => part.kind === 'ip' || (missing === 'ip' && mayBeMissing(part)))
}

export function mayBeMissing(part: KeyPart): boolean {
  return 'name' in part || part.kind === 'host' || part.kind === 'cert'
}

const plainKey = (list: KeyPart[]): KeySettings => ({ parts: list, missing: 'ip', duplicates: 'first', ipv6: IPV6 })

const notPlain = (): never => {
  throw NOT_THIS_FORM
}

export const key = z.union([read(parts[0], plainKey, notPlain), read(parts[1], plainKey, notPlain), keyWithChoices], {
  error: keyError,
})
