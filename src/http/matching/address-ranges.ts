import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'

/** An address, or all that begin with the same bits. An IPv4 range mapped into IPv6 is one of IPv4. */
export interface AddressRange {
  /** 4 or 16. */
  readonly bytes: readonly number[]
  /** How many bits of them count. */
  readonly bits: number
  /** Bits that do not count are set, as in `10.1.0.0/8`. */
  readonly hasHostBits: boolean
  /** The usual way to write it, without those bits. */
  readonly text: string
}

const MAPPED_BITS = 96

export function parseRange(text: string): AddressRange | undefined {
  const [, address = '', prefix] = /^([0-9A-Fa-f:.]+)(?:\/(\d{1,3}))?$/.exec(text) ?? []
  if (isIP(address) === 0) return undefined
  const written = ipaddr.parse(address)
  const parsed = ipaddr.process(address)
  const bytes = parsed.toByteArray()
  const mapped = written.kind() === parsed.kind() ? 0 : MAPPED_BITS
  const bits = prefix === undefined ? 8 * bytes.length : Number(prefix) - mapped
  if (bits < 0 || bits > 8 * bytes.length) return undefined
  const network = masked(bytes, bits)
  const first = ipaddr.fromByteArray(network).toString()
  const hasHostBits = network.some((byte, at) => byte !== bytes[at])
  return { bytes, bits, hasHostBits, text: bits === 8 * bytes.length ? first : `${first}/${bits}` }
}

/**
 * Reads a CIDR among the keys `ip` of clients. Undefined: it is none, or it divides what is one key.
 *
 * @param ipv6 bits of the IPv6 networks in keys
 */
export function parseKeyRange(text: string, ipv6: number): AddressRange | undefined {
  const range = text.includes('/') ? parseRange(text) : undefined
  if (range === undefined || range.hasHostBits) return undefined
  return range.bytes.length === 16 && range.bits > ipv6 ? undefined : range
}

/** A text that all ranges of one network have in common: those that begin with the same bits. */
export function networkKey({ bytes }: AddressRange, bits: number): string {
  return `${bytes.length}/${bits}/${keyOf(bytes, bits)}`
}

/** What belongs to ranges of addresses, found by address. The time does not depend on how many ranges there are. */
export class AddressRanges<T> {
  /** The longest prefixes first, by the number of bytes of an address. */
  readonly #byLength: ReadonlyMap<number, readonly Networks<T>[]>

  /** Of entries with the same range the first counts. */
  constructor(entries: Iterable<readonly [range: AddressRange, value: T]>) {
    const byLength = new Map<number, Networks<T>[]>([
      [4, []],
      [16, []],
    ])
    for (const [{ bytes, bits }, value] of entries) {
      const lists = byLength.get(bytes.length)!
      const networks = lists.find(list => list.bits === bits) ?? { bits, values: new Map<string, T>() }
      if (networks.values.size === 0) lists.push(networks)
      const key = keyOf(bytes, bits)
      if (!networks.values.has(key)) networks.values.set(key, value)
    }
    for (const lists of byLength.values()) lists.sort((a, b) => b.bits - a.bits)
    this.#byLength = byLength
  }

  /**
   * What belongs to the longest prefix that an address has. One of NAT64 is also the IPv4 address inside it, behind 96 more bits.
   *
   * @returns undefined: it is in no range, or no address
   */
  find(address: string): T | undefined {
    if (isIP(address) === 0) return undefined
    const parsed = ipaddr.parse(address)
    const ipv4 = 'parts' in parsed ? ipv4Inside(parsed.parts) : undefined
    const inside = ipv4 === undefined ? undefined : this.find(ipv4)
    const bytes = parsed.toByteArray()
    for (const { bits, values } of this.#byLength.get(bytes.length)!) {
      if (inside !== undefined && bits < NAT64_BITS) break
      const found = values.get(keyOf(bytes, bits))
      if (found !== undefined) return found
    }
    return inside
  }
}

/** The prefix of NAT64 (64:ff9b::/96). */
const NAT64_BITS = 96

interface Networks<T> {
  readonly bits: number
  readonly values: Map<string, T>
}

function keyOf(bytes: readonly number[], bits: number): string {
  return String.fromCharCode(...masked(bytes, bits).slice(0, Math.ceil(bits / 8)))
}

function masked(bytes: readonly number[], bits: number): number[] {
  return bytes.map((byte, at) => byte & (0xff00 >> Math.min(8, Math.max(0, bits - 8 * at))) & 0xff)
}

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
