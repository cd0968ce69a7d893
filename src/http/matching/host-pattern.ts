import { createWildcard } from './wildcard.js'

/**
 * Matches the authority that a request names, with or without its port.
 *
 * @param pattern lower-cased, as in `match.host`. Undefined: any
 */
export function createHostMatcher(pattern: string | undefined): (host: string) => boolean {
  if (pattern === undefined) return () => true
  const isWanted = createWildcard(pattern)
  return host => isWanted(hostName(host)) || isWanted(host.toLowerCase())
}

/** The host name without port and trailing dot, in lower case. */
export function hostName(host: string): string {
  return host.replace(/:\d*$/, '').replace(/\.$/, '').toLowerCase()
}
