/** How things are called in Redis: a bucket `prefix{group}name:key`. Different things have different names, whatever bytes they have. */
import type { BucketRef } from '../../core/store.js'

/** How many hash slots a Redis Cluster has. */
export const SLOTS = 16_384

/** A percent sign that no escape begins with. */
const EMPTY = '%'

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

/** Most texts have nothing of what may have to be escaped; finding that out is quick without \p. */
const SUSPECT = /[%{}:\ud800-\udfff]/

/** Half of a surrogate pair has no UTF-8: all of them would become the same replacement character. */
function escaped(text: string, special: RegExp): string {
  if (!SUSPECT.test(text)) return text
  return text.replace(special, found => {
    const code = found.charCodeAt(0)
    return code < 0x80 ? `%${code.toString(16).padStart(2, '0')}` : `%u${code.toString(16)}`
  })
}

/** What is between the braces. Redis takes an empty tag for none. */
export function hashTag(group: string): string {
  return group === '' ? EMPTY : escaped(group, /[%{}]|\p{Surrogate}/gu)
}

export function bucketKey(prefix: string, { group, limits, key }: BucketRef): string {
  const name = escaped(limits.name, /[%:]|\p{Surrogate}/gu)
  return `${start(prefix)}{${hashTag(group)}}${name}:${escaped(key, /%|\p{Surrogate}/gu)}`
}

/** Where instances tell that they are there. No group has this tag. */
export const REGISTRY = '%instances'

export function registryKey(prefix: string): string {
  return `${start(prefix)}{${REGISTRY}}`
}

/** How many of them have left so far. */
export function leftKey(prefix: string): string {
  return `${registryKey(prefix)}left`
}

/** What is known of upstreams' limits. No group has this tag. */
export const UPSTREAMS = '%upstreams'

export function upstreamKey(prefix: string, upstream: string): string {
  return `${start(prefix)}{${UPSTREAMS}}${escaped(upstream, /%|\p{Surrogate}/gu)}`
}

/** A brace before the tag's would make another tag of it. */
function start(prefix: string): string {
  return escaped(prefix, /[%{}]|\p{Surrogate}/gu)
}

/** CRC16 (XMODEM) of the tag, as Redis Cluster takes it. */
export function hashSlot(tag: string): number {
  let crc = 0
  for (const byte of Buffer.from(tag)) crc = ((crc << 8) ^ TABLE[((crc >> 8) ^ byte) & 0xff]!) & 0xffff
  return crc % SLOTS
}
