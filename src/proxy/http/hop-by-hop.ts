/** Headers that are not passed on. */
import { NameSet } from '../http1/name-set.js'

/** RFC 9110 7.6.1, and headers of older peers. `te` describes a framing that we make anew. */
export const HOP_BY_HOP = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
]

/**
 * Connection options never remove these. A message makes no sense without the first two; the others tell who the client
 * is. X-Forwarded-* headers and those that the route reads are kept too.
 */
const LASTING = new Set([
  'content-length',
  'host',
  'authorization',
  'cookie',
  'forwarded',
  'via',
  'x-real-ip',
  'x-client-ip',
  'x-cluster-client-ip',
  'true-client-ip',
  'cf-connecting-ip',
  'fastly-client-ip',
])

/** Names of which no look-alike is passed on: an upstream could take it for ours, or for that of the proxy before us. */
export const UNMISTAKABLE = [
  ...HOP_BY_HOP,
  ...LASTING,
  ...['for', 'proto', 'host', 'port', 'prefix', 'server', 'scheme', 'ssl', 'by'].map(end => `x-forwarded-${end}`),
]

const NAMES = new NameSet(HOP_BY_HOP)

/** @param name in any case */
export function isHopByHop(name: string): boolean {
  return NAMES.has(name)
}

/** Adds the headers that Connection options remove, except hop-by-hop ones and those that are never removed. */
export function withNamed(names: Set<string> | undefined, options: readonly string[]): Set<string> | undefined {
  let found = names
  for (const option of options) {
    const name = option.trim().toLowerCase()
    if (name === 'close' || isHopByHop(name) || LASTING.has(name) || name.startsWith('x-forwarded-')) continue
    found ??= new Set()
    found.add(name)
  }
  return found
}
