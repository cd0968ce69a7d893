/** The buckets that limits become. */

import { Inexpressible } from './conditions.js'
import type { ImportNote, Place } from './directives.js'
import type { Limit } from './limits.js'
import type { Case } from './variables.js'

export interface ImportedBucket {
  readonly name: string
  readonly key: unknown
  readonly rate: string
  readonly capacity: number
  burst?: number
  maxInFlight?: number
  readonly status: number
  /** Where the zone is defined. */
  readonly place: Place
}

/** More than a connection limit ever lets pass: such a bucket counts requests in flight only. */
const NO_RATE = { rate: '1000000/s', capacity: 1_000_000 }

export class ImportedBuckets {
  /** By everything that makes them differ. */
  readonly #buckets = new Map<string, { bucket: ImportedBucket; limit: Limit; level: string }>()
  readonly #notes: ImportNote[]
  /** Bits of an IPv6 network in the key `ip`. Undefined: nginx listens on IPv4 only. */
  readonly #ipv6: number | undefined

  constructor(notes: ImportNote[], ipv6: number | undefined) {
    this.#notes = notes
    this.#ipv6 = ipv6
  }

  /** The bucket of a limit, for requests with that key. @throws Inexpressible */
  bucketFor(limit: Limit, { parts, text }: Case): ImportedBucket {
    const { zone, excess, undelayed, status, connections, place } = limit
    const level = JSON.stringify([zone.kind, zone.name, parts, text])
    const id = JSON.stringify([level, excess, undelayed, status, connections])
    const known = this.#buckets.get(id)
    if (known !== undefined) return known.bucket
    const other = [...this.#buckets.values()].find(each => each.level === level)
    if (other !== undefined) {
      const at = `${other.limit.place.file}:${other.limit.place.line}`
      const message = `zone "${zone.name}" is used with other numbers at ${at}. In nginx both share one level for each key, here each has its own`
      this.#notes.push({ place, message })
    }
    const common = { name: this.#freeName(zone.name), key: keyOf(parts, this.#ipv6), status, place: zone.place }
    const bucket: ImportedBucket =
      zone.kind === 'connections'
        ? { ...common, ...NO_RATE, maxInFlight: connections }
        : {
            ...common,
            rate: zone.rate,
            capacity: excess + 1,
            ...(undelayed > 0 && undelayed < Infinity && { burst: undelayed + 1 }),
          }
    this.#buckets.set(id, { bucket, limit, level })
    return bucket
  }

  #freeName(zone: string): string {
    const plain = zone.replace(/[^A-Za-z0-9_.-]/g, '_').slice(0, 60) || 'zone'
    const taken = new Set([...this.#buckets.values()].map(({ bucket }) => bucket.name))
    const names = [plain, ...Array.from({ length: taken.size + 1 }, (_, index) => `${plain}-${index + 2}`)]
    return names.find(name => !taken.has(name))!
  }
}

/** @throws Inexpressible */
function keyOf(parts: readonly string[], ipv6: number | undefined): unknown {
  const own = [...new Set(parts)]
  if (own.includes('path')) throw new Inexpressible('shaper has no key for the path; "route" tells routes apart')
  if (own.length === 0) return 'all'
  const from = own.length === 1 ? own[0]! : own
  // nginx does not limit requests whose key is empty.
  const isOptional = own.every(part => part.includes(':'))
  const bits = own.includes('ip') ? ipv6 : undefined
  if (!isOptional && bits === undefined) return from
  return { from, ...(isOptional && { missing: 'skip' }), ...(bits !== undefined && { ipv6: bits }) }
}
