/** The key that an operator means, as requests have it. */
import { isIP } from 'node:net'
import { formatKeyPart } from '../../config/schema/key.js'
import type { BucketSettings } from '../../config/settings.js'
import type { ProxyContext } from '../../proxy/context.js'
import { addressKey, readAddress } from '../../proxy/http/client-address.js'
import { boundedKey } from '../../proxy/routing/key.js'

/** An address, or an IPv6 network. */
interface Network {
  readonly address: string
  readonly bits: number
}

/**
 * The key that is meant: an address or a network may be written in any way, and stands for the network that the bucket counts. With
 * several parts they are separated by line feeds. A long key is hashed as those of requests are.
 */
export function meantKey(
  { bucketTable }: Pick<ProxyContext, 'bucketTable'>,
  { name, key: { parts, ipv6 } }: BucketSettings,
  text: string,
): string {
  if (bucketTable.look(name, text) !== undefined) return text
  const values = text.split('\n')
  if (values.length !== parts.length) return boundedKey(text)
  const read = values.map((value, place) => (parts[place]!.kind === 'ip' ? addressIn(value, ipv6) : value))
  return boundedKey(read.join('\n'))
}

/** A network of other bits stays as it is: no request has it. */
function addressIn(text: string, ipv6: number): string {
  const network = readNetwork(text)
  return network !== undefined && network.bits >= ipv6 ? addressKey(network.address, ipv6) : text
}

/** Undefined: it is neither. An address has 128 bits. */
export function readNetwork(text: string): Network | undefined {
  const [address = '', bits, ...rest] = text.trim().split('/')
  if (isIP(address) === 0 || rest.length > 0) return undefined
  if (bits === undefined) return { address: readAddress(address)!, bits: 128 }
  return isIP(address) === 6 && /^\d{1,3}$/.test(bits) && Number(bits) <= 128
    ? { address, bits: Number(bits) }
    : undefined
}

/** Why no request can have a key, and what to do. Undefined: one can. */
export function whyNoKey({ name, key: { parts, ipv6 } }: BucketSettings, key: string): string | undefined {
  // The longest key of addresses is shorter than one that is hashed.
  const canBeLong = parts.some(({ kind }) => kind !== 'all' && kind !== 'ip')
  if (canBeLong && /^#[\w-]{43}$/.test(key)) return undefined
  const values = key.split('\n')
  if (values.length !== parts.length) {
    const names = parts.map(formatKeyPart)
    const few = `a key of ${name} has one part (${names[0]}); quote it if it has spaces`
    const typed = `shaper key ${name} ${names.map(part => part.replace(/^.*:/, '').toUpperCase()).join(' ')}`
    return parts.length === 1
      ? few
      : `a key of ${name} has ${parts.length} parts (${names.join(', ')}); write them one after another, as in "${typed}", or in a URL with %0A between them`
  }
  const wrong = parts.findIndex(({ kind }, place) => {
    const value = values[place]!
    return value === '' || (kind === 'all' && value !== 'all') || (kind === 'ip' && !isAddressKey(value, ipv6))
  })
  if (wrong < 0) return undefined
  const given = `${JSON.stringify(values[wrong])} is no key of ${name}`
  if (parts[wrong]!.kind === 'all') return `${given}: it has one key, "all"`
  if (parts[wrong]!.kind === 'ip') return `${given}: use an address or an IPv6 network of ${ipv6} bits`
  return `${given}: no value is empty`
}

function isAddressKey(value: string, ipv6: number): boolean {
  const network = readNetwork(value)
  return network !== undefined && value === addressKey(network.address, ipv6)
}
