/** What `upstream` blocks of nginx say: `servers`, `pick` and `breaker` of ours. */
import { defined } from '../../core/structures/defined.js'
import { orElse } from '../../core/structures/or-else.js'
import { ownValue } from '../../core/structures/own-value.js'
import { faultOfSocketPath, socketPathOf } from '../../http/unix-socket.js'
import { quote } from '../messages.js'
import { parseUpstreamUrl } from '../schema/address.js'
import { keyFrom } from './buckets.js'
import { Inexpressible } from './conditions.js'
import type { Directive, ImportNote } from './directives.js'
import type { Variables } from './variables.js'

export interface ImportedServer {
  readonly url: string
  readonly weight?: number
  readonly maxInFlight?: number
  readonly backup?: boolean
}

export interface ImportedGroup {
  /** At least one. */
  readonly servers: readonly ImportedServer[]
  /** As in our file. Absent: that with the fewest in flight. */
  readonly pick?: unknown
  /** Absent: ours. */
  readonly breaker?: false | { readonly failures: number; readonly probe: string; readonly maxProbe: string }
}

const MOST_WEIGHT = 1_000
const METHODS = ['least_conn', 'ip_hash', 'hash', 'random']
/** What nginx has without `max_fails` and `fail_timeout`. */
const USUAL = { failures: 1, time: '10s' }

export class Groups {
  readonly #blocks: ReadonlyMap<string, Directive>
  readonly #variables: Variables
  readonly #notes: ImportNote[]

  constructor(http: readonly Directive[], variables: Variables, notes: ImportNote[]) {
    const groups = http.filter(({ name }) => name === 'upstream')
    this.#blocks = new Map(groups.map(each => [each.args[0]!.toLowerCase(), each]))
    this.#variables = variables
    this.#notes = notes
  }

  has(name: string): boolean {
    return this.#blocks.has(name.toLowerCase())
  }

  /** Undefined: it has no server that shaper could call. */
  read(name: string, scheme: string): ImportedGroup | undefined {
    const group = this.#blocks.get(name.toLowerCase())!
    const used = (group.block ?? []).filter(each => each.name === 'server' && this.#isUsed(each, scheme))
    const servers = this.#serversOf(used, scheme)
    if (servers.length === 0) return undefined
    // As in nginx, they mean nothing for a single one.
    if (servers.length === 1) return { servers: servers.map(({ weight: _, ...server }) => server) }
    this.#tellPlaces(group, used)
    return { servers, ...defined({ pick: this.#pickOf(group), breaker: this.#breakerOf(used) }) }
  }

  #isUsed(server: Directive, scheme: string): boolean {
    const [address = ''] = server.args
    if (server.args.includes('down')) {
      this.#tell(server, `the server ${quote(address)} is left out: it is "down"`)
      return false
    }
    if (urlOf(address, scheme) !== undefined) return true
    this.#tell(server, `the server ${quote(address)} is left out: shaper could not call it`)
    return false
  }

  #serversOf(used: readonly Directive[], scheme: string): ImportedServer[] {
    // nginx uses backups at once where nothing else is up.
    const isBackup = ({ args }: Directive): boolean => args.includes('backup') && used.some(isFirst)
    const found = new Map<string, ImportedServer>()
    for (const each of used) {
      const url = urlOf(each.args[0]!, scheme)!
      const known = found.get(url)
      if (known !== undefined)
        this.#tell(each, `the server ${quote(url)} is there twice: here it is one, with both weights`)
      const weight = (numberOf(each, 'weight') ?? 1) + (known === undefined ? 0 : (known.weight ?? 1))
      if (weight > MOST_WEIGHT)
        this.#tell(each, `a weight is at most ${MOST_WEIGHT} here: ${weight} of ${quote(url)} becomes that`)
      const maxInFlight = mostOf(each, known)
      found.set(url, {
        url,
        ...(weight > 1 && { weight: Math.min(MOST_WEIGHT, weight) }),
        ...(maxInFlight > 0 && { maxInFlight }),
        ...(isBackup(each) && { backup: true }),
      })
    }
    return [...found.values()]
  }

  #tellPlaces({ block = [] }: Directive, used: readonly Directive[]): void {
    const bounded = used.find(each => (numberOf(each, 'max_conns') ?? 0) > 0)
    if (bounded === undefined) return
    const isShared = block.some(({ name }) => name === 'zone')
    const alone = isShared ? '' : ', and without "zone" each of its worker processes counts for itself'
    this.#tell(
      bounded,
      `"max_conns" becomes "maxInFlight": while no server has a place requests wait here; nginx answers 502${alone}`,
    )
  }

  #pickOf({ block = [] }: Directive): unknown {
    const method = block.findLast(({ name }) => METHODS.includes(name))
    switch (method?.name) {
      case undefined:
        return 'round-robin'
      case 'least_conn':
        return undefined
      case 'ip_hash':
        this.#tell(
          method!,
          '"ip_hash" takes the first three numbers of an IPv4 address, "hash": "ip" the whole address',
        )
        return { hash: 'ip' }
      case 'hash':
        return this.#hashOf(method!)
      default: {
        const [count] = method!.args
        const becomes = count === 'two' ? 'of two at random' : 'one at random'
        const here = count === 'two' ? 'of all the one with the fewest in flight for its weight' : 'each in its turn'
        this.#tell(method!, `"random" takes ${becomes}; here it is ${here}`)
        return count === 'two' ? undefined : 'round-robin'
      }
    }
  }

  #hashOf(method: Directive): unknown {
    const [template = ''] = method.args
    try {
      const [only, ...others] = this.#variables.casesOf(template)
      if (only === undefined || others.length > 0 || Object.keys(only.when).length > 0)
        throw new Inexpressible('it depends on a map')
      const parts = [...new Set(only.parts)]
      keyFrom(parts, only.text, undefined)
      if (parts.length > 0) return { hash: parts.length === 1 ? parts[0] : parts }
      throw new Inexpressible('it is the same for all')
    } catch (error) {
      if (!(error instanceof Inexpressible)) throw error
      const message = `"hash ${template}" cannot be said in shaper (${error.message}): here each server has its turn. Name a header, a cookie or the address in "pick"`
      this.#tell(method, message)
      return 'round-robin'
    }
  }

  #breakerOf(used: readonly Directive[]): ImportedGroup['breaker'] {
    const written = used.find(each => parameterOf(each, 'max_fails') ?? parameterOf(each, 'fail_timeout'))
    if (written === undefined) return undefined
    const all = used.map(each => ({
      failures: numberOf(each, 'max_fails') ?? USUAL.failures,
      time: timeFrom(parameterOf(each, 'fail_timeout') ?? USUAL.time) ?? USUAL.time,
    }))
    const most = all.reduce((a, b) => (b.failures > a.failures ? b : a))
    if (all.some(each => each.failures !== most.failures || each.time !== most.time)) {
      const message = `servers have different max_fails and fail_timeout; shaper has one "breaker" for each server of an upstream: all have ${most.failures} and ${most.time} here`
      this.#tell(written, message)
    }
    if (most.failures === 0) return false
    const message = `max_fails=${most.failures} fail_timeout=${most.time} becomes "breaker": so many failures in a row, of requests that were sent once two clients have had them; then the server is tried every ${most.time}`
    this.#tell(written, message)
    return { failures: most.failures, probe: most.time, maxProbe: most.time }
  }

  #tell({ place }: Pick<Directive, 'place'>, message: string): void {
    this.#notes.push({ place, message })
  }
}

const isFirst = ({ args }: Directive): boolean => !args.includes('backup')

function parameterOf({ args }: Directive, name: string): string | undefined {
  return args.find(each => each.startsWith(`${name}=`))?.slice(name.length + 1)
}

function numberOf(server: Directive, name: string): number | undefined {
  const value = parameterOf(server, name) ?? ''
  return /^\d{1,9}$/.test(value) ? Number(value) : undefined
}

/** How many requests a server takes at once, together with what else is known of it. 0: any number. */
function mostOf(server: Directive, known: ImportedServer | undefined): number {
  const own = numberOf(server, 'max_conns') ?? 0
  if (known === undefined || own === 0) return known === undefined ? own : 0
  return known.maxInFlight === undefined ? 0 : own + known.maxInFlight
}

/** The URL of a server in its usual spelling. Undefined: shaper could not call it. */
function urlOf(address: string, scheme: string): string | undefined {
  if (isFaultySocket(scheme, address)) return undefined
  // The port of a server is 80 there, also for https.
  const url =
    socketPathOf(address) === undefined
      ? `${scheme}://${address}${scheme === 'https' && !/:\d+$/.test(address) ? ':80' : ''}`
      : address
  return orElse(() => parseUpstreamUrl(url), undefined)
}

/** TLS goes over TCP only. */
export function isFaultySocket(scheme: string, authority: string): boolean {
  const path = socketPathOf(authority)
  return path !== undefined && (scheme === 'https' || faultOfSocketPath(path) !== undefined)
}

const UNITS: Readonly<Record<string, number>> = {
  ...{ ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 },
}

/** A time of nginx, e.g. `60` or `1m 30s`, in our words. Undefined: it is none. */
export function timeFrom(text: string): string | undefined {
  if (!/^(?=\d)(?:\d+(?:ms|[smhdw]) *)*\d*$/.test(text)) return undefined
  const parts = [...text.matchAll(/(\d+)(ms|[smhdw])?/g)]
  const total = parts.reduce((sum, [, count, unit = 's']) => sum + Number(count) * ownValue(UNITS, unit)!, 0)
  return total % 1000 === 0 ? `${total / 1000}s` : `${total}ms`
}
