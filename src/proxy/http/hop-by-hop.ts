/** Which headers end here. */

/** RFC 9110 7.6.1 and what older peers still send; `te` and `trailer` speak of a framing that we make anew. */
export const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'transfer-encoding',
  'upgrade',
])

/**
 * Connection options never remove these: a message is not understood without the first two, the others tell who the
 * client is. Besides: all X-Forwarded-* headers, and those that the route reads.
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

/** Adds the headers that Connection options remove, but for those that are removed anyway, or never. */
export function withNamed(names: Set<string> | undefined, options: readonly string[]): Set<string> | undefined {
  let found = names
  for (const option of options) {
    const name = option.trim().toLowerCase()
    if (name === 'close' || HOP_BY_HOP.has(name) || LASTING.has(name) || name.startsWith('x-forwarded-')) continue
    found ??= new Set()
    found.add(name)
  }
  return found
}
