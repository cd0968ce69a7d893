/** The buckets that limits become. */
import { Inexpressible } from './conditions.js'
import type { ImportNote, SourcePlace } from './directives.js'
import type { Limit } from './limits.js'
import type { Case } from './variables.js'

export interface ImportedBucket {
  readonly name: string
  readonly key: unknown
  /** Absent, with `capacity`: only requests in flight count. */
  readonly rate?: string
  readonly capacity?: number
  burst?: number
  maxInFlight?: number
  readonly status: number
  readonly place: SourcePlace
}

export class ImportedBuckets {
  /** By everything that makes them differ. */
  readonly #buckets = new Map<string, ImportedBucket>()
  readonly #levels = new Map<string, Limit>()
  readonly #names = new Set<string>()
  readonly #counts = new Map<string, number>()
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
    if (known !== undefined) return known
    const other = this.#levels.get(level)
    if (other !== undefined) {
      const at = `${other.place.file}:${other.place.line}`
      const message = `zone "${zone.name}" is used with other numbers at ${at}. In nginx both share one level for each key, here each has its own`
      this.#notes.push({ place, message })
    }
    const own = [...new Set(parts)]
    if (own.filter(isOptional).length === own.length && own.length > 1 && text === '') {
      const message = `zone "${zone.name}": a request without one of ${own.join(', ')} is not limited; nginx does not limit one without any`
      this.#notes.push({ place: zone.place, message })
    }
    const common = { name: this.#freeName(zone.name), key: keyFrom(own, text, this.#ipv6), status, place: zone.place }
    const bucket: ImportedBucket =
      zone.kind === 'connections'
        ? { ...common, maxInFlight: connections }
        : {
            ...common,
            rate: zone.rate,
            capacity: excess + 1,
            ...(undelayed > 0 && undelayed < Infinity && { burst: undelayed + 1 }),
          }
    this.#buckets.set(id, bucket)
    if (other === undefined) this.#levels.set(level, limit)
    return bucket
  }

  #freeName(zone: string): string {
    const plain = zone.replace(/[^A-Za-z0-9_.-]/g, '_').slice(0, 60) || 'zone'
    let count = this.#counts.get(plain) ?? 0
    const next = (): string => (count === 1 ? plain : `${plain}-${count}`)
    do count += 1
    while (this.#names.has(next()))
    this.#counts.set(plain, count)
    this.#names.add(next())
    return next()
  }
}

function isOptional(part: string): boolean {
  return part.includes(':')
}

/** @param own different parts. @param text what is the same in all keys. @throws Inexpressible */
export function keyFrom(own: readonly string[], text: string, ipv6: number | undefined): unknown {
  if (own.some(part => part === 'path' || part === 'target'))
    throw new Inexpressible(
      'shaper has no key for the whole path; "path:1" is its first segment, and "route" tells routes apart',
    )
  if (own.length === 0) return 'all'
  const from = own.length === 1 ? own[0]! : own
  const bits = own.includes('ip') ? ipv6 : undefined
  const missing = missingOf(own, text)
  if (missing === undefined && bits === undefined) return from
  return { from, ...(missing !== undefined && { missing }), ...(bits !== undefined && { ipv6: bits }) }
}

/** nginx does not limit requests whose key is empty. What is missing in a key that is not empty tells no requests apart. */
function missingOf(own: readonly string[], text: string): 'skip' | 'all' | undefined {
  if (text === '' && own.every(isOptional)) return 'skip'
  return own.some(isOptional) && !own.includes('ip') ? 'all' : undefined
}
