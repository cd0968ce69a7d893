/** Names in Redis. A bucket is `prefix{group}name:key`. Names differ whatever bytes their parts have. */

import type { BucketRef } from '../../decider/record.js'
import type { ViewKind } from '../../sharing/board.js'

export const SLOTS = 16_384
/** A percent sign that no escape begins with. */
const EMPTY = '%'

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let crc = byte << 8
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1
  return crc
})

/** Most texts have nothing to escape. Without \p that is found quickly. */
const SUSPECT = /[%{}:\ud800-\udfff]/

/** Half of a surrogate pair has no UTF-8: all of them would become the same replacement character. */
function escaped(text: string, special: RegExp): string {
  if (!SUSPECT.test(text)) return text
  return text.replace(special, found => {
    const code = found.charCodeAt(0)
    return code < 0x80 ? `%${code.toString(16).padStart(2, '0')}` : `%u${code.toString(16)}`
  })
}

/** The text between the braces. Redis ignores an empty tag. */
export function hashTag(group: string): string {
  return group === '' ? EMPTY : escaped(group, /[%{}]|\p{Surrogate}/gu)
}

export function bucketKey(prefix: string, { group, limits, key }: BucketRef): string {
  const name = escaped(limits.name, /[%:]|\p{Surrogate}/gu)
  return `${start(prefix)}{${hashTag(group)}}${name}:${escaped(key, /%|\p{Surrogate}/gu)}`
}

/** What is leased of a bucket. No bucket has this key, as no escape begins so. The number is that of the format. */
export function leaseKey(key: string): string {
  return `${key}${EMPTY}2`
}

/** The appointments of the bucket of this key. It is none of a bucket either. */
export function appointmentsKey(key: string): string {
  return `${key}${EMPTY}${EMPTY}`
}

/** The tag of a registry of instances. No group has it, nor one that begins like it. */
export const REGISTRY = '%instances'

export function registryKey(prefix: string, tag: string): string {
  return `${start(prefix)}{${tag}}`
}

export function leftKey(prefix: string, tag: string): string {
  return `${registryKey(prefix, tag)}left`
}

/** The limits of upstreams. No group has this tag. */
export const UPSTREAMS = '%upstreams'

export function upstreamKey(prefix: string, upstream: string): string {
  return `${start(prefix)}{${UPSTREAMS}}${escaped(upstream, /%|\p{Surrogate}/gu)}`
}

/** The channel for news, with the tag of upstreams so that a script may name it. All databases of a server share channels. */
export function newsChannel(prefix: string, db: number): string {
  return `${start(prefix)}{${UPSTREAMS}}%news${db}`
}

/** The upstream of a key. Undefined: its text cannot be told from the key. */
export function upstreamOf(prefix: string, key: string): string | undefined {
  const name = key.slice(upstreamKey(prefix, '').length)
  return name.includes('%u') ? undefined : name.replaceAll('%25', '%')
}

/** What instances leave for each other. No group has this tag. */
export const BOARD = '%board'

type OnBoard = 'overrides' | 'secret' | `views:${ViewKind}` | `view:${ViewKind}:${string}`

export function boardKey(prefix: string, what: OnBoard): string {
  return `${start(prefix)}{${BOARD}}${what}`
}

/** A brace before the tag would make another tag. */
function start(prefix: string): string {
  return escaped(prefix, /[%{}]|\p{Surrogate}/gu)
}

/** CRC16 (XMODEM) of the tag, as in Redis Cluster. */
export function hashSlot(tag: string): number {
  let crc = 0
  for (const byte of Buffer.from(tag)) crc = ((crc << 8) ^ TABLE[((crc >> 8) ^ byte) & 0xff]!) & 0xffff
  return crc % SLOTS
}
