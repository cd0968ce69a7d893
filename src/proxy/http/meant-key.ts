/** Keys as people, files and databases write them, and as requests have them. */
import { createHash } from 'node:crypto'
import { isIP } from 'node:net'
import type { KeySettings } from '../../config/settings.js'
import { addressKey, readAddress } from './client-address.js'

/** Longer keys are kept as a digest, so that a client cannot choose how much memory its key takes. */
const LONGEST_KEY = 128

export function boundedKey(key: string): string {
  return key.length <= LONGEST_KEY ? key : `#${createHash('sha256').update(key).digest('base64url')}`
}

interface Network {
  readonly address: string
  readonly bits: number
}

/**
 * The key that is meant: an address or a network may be written in any way, and stands for the network that the bucket counts. With
 * several parts they are separated by line feeds. A long key is hashed as those of requests are.
 */
export function meantKey({ parts, ipv6 }: KeySettings, text: string): string {
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

/** The first part of a key that no request has, or that there are not as many as there have to be. Undefined: a request can have it. */
export function faultOfKey({ parts, ipv6 }: KeySettings, key: string): number | 'count' | undefined {
  // The longest key of addresses is shorter than one that is hashed.
  const canBeLong = parts.some(({ kind }) => kind !== 'all' && kind !== 'ip')
  if (canBeLong && /^#[\w-]{43}$/.test(key)) return undefined
  const values = key.split('\n')
  if (values.length !== parts.length) return 'count'
  const wrong = parts.findIndex(({ kind }, place) => {
    const value = values[place]!
    return value === '' || (kind === 'all' && value !== 'all') || (kind === 'ip' && !isAddressKey(value, ipv6))
  })
  return wrong < 0 ? undefined : wrong
}

function isAddressKey(value: string, ipv6: number): boolean {
  const network = readNetwork(value)
  return network !== undefined && value === addressKey(network.address, ipv6)
}
