/**
 * Reads a pattern in which `*` stands for any text, also for none. All else stands for itself. The time is linear in the
 * text.
 */
export function createWildcard(pattern: string): (text: string) => boolean {
  const pieces = pattern.split('*')
  const [first = '', ...others] = pieces
  const last = others.pop()
  if (last === undefined) return text => text === pattern
  const between = others.filter(piece => piece !== '')
  const least = first.length + last.length
  return text => {
    if (text.length < least || !text.startsWith(first) || !text.endsWith(last)) return false
    const end = text.length - last.length
    let at = first.length
    // The first place for each piece leaves most room to those after it.
    for (const piece of between) {
      const found = text.indexOf(piece, at)
      if (found < 0) return false
      at = found + piece.length
    }
    return at <= end
  }
}

/** Whether the pattern `wide` matches every text that the pattern `narrow` matches. */
export function coversWildcard(wide: string, narrow: string): boolean {
  // A `*` of `narrow` may be any text, and only a `*` of `wide` takes that in.
  return createWildcard(wide)(narrow)
}

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
