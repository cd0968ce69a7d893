/**
 * The network of an IPv6 address as keys and tiers write it: the groups of its prefix, e.g. `2001:db8:0:0::/64`.
 *
 * @param groups the eight groups of 16 bits
 * @param prefix bits, 1 to 128
 */
export function ipv6Network(groups: readonly number[], prefix: number): string {
  const kept = groups.slice(0, Math.ceil(prefix / 16))
  const cut = kept.length * 16 - prefix
  kept.push((kept.pop()! >> cut) << cut)
  const text = kept.map(group => group.toString(16)).join(':')
  return `${text}${kept.length < 8 ? '::' : ''}/${prefix}`
}

/**
 * The IPv4 address inside one of NAT64 (64:ff9b::/96, RFC 6052), which is how a server with IPv6 alone sees clients of IPv4.
 *
 * @param groups the eight groups of 16 bits
 * @returns undefined: it is another address
 */
export function ipv4Inside(groups: readonly number[]): string | undefined {
  if (groups[0] !== 0x64 || groups[1] !== 0xff9b || groups.slice(2, 6).some(group => group !== 0)) return undefined
  return groups
    .slice(6)
    .flatMap(group => [group >> 8, group & 0xff])
    .join('.')
}
