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
