import { isIP } from 'node:net'
import ipaddr from 'ipaddr.js'

export interface Authority {
  /** A lower-case name without a trailing dot, or an address in its usual form (IPv6 without brackets). */
  readonly host: string
  /** 1 to 65535. Undefined: none was given. */
  readonly port: number | undefined
}

/** A name of 253 characters, a dot, a colon and a port. */
const LONGEST = 260
const AUTHORITY = /^(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)\.?)(?::(\d{0,5}))?$/
/** A last label that resolvers may take for part of an IPv4 address: `127.1`, `0x7f.1`, `2130706433`. */
const NUMERIC = /(?:^|\.)(?:\d+|0x[0-9a-f]*)$/

/**
 * Reads `host`, `host:port` or `[IPv6]:port`. There are no user names, no escapes and no other spellings of IPv4. A mapped
 * address becomes the IPv4 address that it means.
 *
 * @returns undefined if it is none
 */
export function readAuthority(text: string): Authority | undefined {
  if (text.length > LONGEST) return undefined
  const [, v6, name, digits = ''] = AUTHORITY.exec(text) ?? []
  const host = v6 === undefined ? nameOf(name) : addressOf(v6)
  const port = Number(digits)
  if (host === undefined || port > 65_535 || (digits !== '' && port === 0)) return undefined
  return { host, port: digits === '' ? undefined : port }
}

function nameOf(name: string | undefined): string | undefined {
  const lower = name?.toLowerCase()
  if (lower === undefined || lower.includes('..')) return undefined
  return NUMERIC.test(lower) && isIP(lower) !== 4 ? undefined : lower
}

function addressOf(v6: string): string | undefined {
  return isIP(v6) === 6 ? ipaddr.process(v6).toString() : undefined
}

export function formatAuthority(host: string, port: number): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}
