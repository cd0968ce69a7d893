/** What is known of a client from its key in one bucket, so that its keys in others follow. */

import { formatKeyPart } from '../../config/schema/key.js'
import type { KeyPart, KeySettings, MatchSettings } from '../../config/settings.js'
import { ownValue } from '../../core/structures/own-value.js'
import { addressKey } from '../../proxy/http/client-address.js'
import type { Rule } from '../../proxy/routing/route.js'

/** A long key is kept as this (proxy/routing/key.ts), and says nothing. */
const DIGEST = /^#[\w-]{43}$/

/** The key of a bucket. Undefined: it does not follow. `none`: the bucket does not apply. */
export type DerivedKey = { readonly key: string } | 'none' | undefined

export class KnownParts {
  /** By the part as it is written in the configuration. A part that requests do not have is ''. */
  readonly #values = new Map<string, string>()
  /** The address, or the network with these bits. */
  #ip: { readonly address: string; readonly bits: number } | undefined

  constructor({ parts, ipv6 }: KeySettings, key: string) {
    const values = parts.length === 1 ? [key] : key.split('\n').map(decoded)
    if (DIGEST.test(key) || values.length !== parts.length) return
    for (const [place, part] of parts.entries()) this.#learn(part, values[place]!, ipv6)
  }

  #learn(part: KeyPart, value: string, bits: number): void {
    // A value that stands in for a missing part starts with a space. What follows is the address.
    const isMissing = value.startsWith(' ')
    const address = isMissing ? value.slice(1) : part.kind === 'ip' ? value : ''
    if (address !== '') this.#ip = { address: address.split('/')[0]!, bits }
    this.#values.set(formatKeyPart(part), isMissing ? '' : value)
  }

  /** The key in another bucket of a route. */
  keyIn(settings: KeySettings, { name, settings: { match } }: Rule): DerivedKey {
    const values: string[] = []
    for (const part of settings.parts) {
      const known = this.#valueOf(part, settings, name) ?? valueByMatch(part, match)
      const value = known === '' ? this.#standIn(settings) : known
      if (value === undefined || value === 'none') return value
      values.push(value)
    }
    const [only] = values
    if (values.length === 1) return { key: only! }
    return { key: values.map(value => (value.includes('\n') ? encodeURIComponent(value) : value)).join('\n') }
  }

  /** Undefined: not known. Empty: it is missing. */
  #valueOf(part: KeyPart, { ipv6 }: KeySettings, route: string): string | undefined {
    if (part.kind === 'all') return 'all'
    if (part.kind === 'route') return route
    return part.kind === 'ip' ? this.#network(ipv6) : this.#values.get(formatKeyPart(part))
  }

  #network(bits: number): string | undefined {
    if (this.#ip === undefined || (this.#ip.bits < bits && this.#ip.address.includes(':'))) return undefined
    return addressKey(this.#ip.address, bits)
  }

  /** What stands in for a missing part. */
  #standIn({ missing, ipv6 }: KeySettings): string | 'none' | undefined {
    if (missing === 'all') return ' '
    if (missing !== 'ip') return 'none'
    const network = this.#network(ipv6)
    return network && ` ${network}`
  }
}

/** Values of requests that a route takes only with these. */
function valueByMatch(part: KeyPart, { method, host, header }: MatchSettings): string | undefined {
  if (part.kind === 'method') return method?.length === 1 ? method[0] : undefined
  const wanted = part.kind === 'host' ? host : part.kind === 'header' ? ownValue(header, part.name) : undefined
  return wanted?.includes('*') ? undefined : wanted
}

function decoded(value: string): string {
  try {
    return value.includes('%0A') ? decodeURIComponent(value) : value
  } catch {
    return value
  }
}
