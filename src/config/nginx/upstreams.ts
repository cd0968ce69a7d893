/** Where requests go: `proxy_pass`, and the servers of `upstream`. */
import { ownValue } from '../../core/structures/own-value.js'
import { quote } from '../messages.js'
import type { Directive, ImportNote } from './directives.js'
import type { Location } from './locations.js'
import { inherited, type Scopes, settingOf } from './scopes.js'

export interface Target {
  readonly url: string
  readonly hostHeader: 'preserve' | 'upstream'
  /** As in our file. Absent: as `upstream` has it without. */
  readonly connectTimeout?: string
  readonly responseTimeout?: string
  readonly idleTimeout?: string
}

/** What answers requests where nothing is proxied. */
const ANSWERS = [
  ...['fastcgi_pass', 'uwsgi_pass', 'scgi_pass', 'grpc_pass', 'memcached_pass'],
  ...['return', 'alias', 'root', 'try_files', 'index', 'stub_status', 'empty_gif'],
]

export class Targets {
  readonly #groups: ReadonlyMap<string, Directive>
  readonly #notes: ImportNote[]
  /** Why requests go where nginx does not send them. */
  readonly #strays: ImportNote[] = []

  constructor(http: readonly Directive[], notes: ImportNote[]) {
    this.#groups = new Map(http.flatMap(each => (each.name === 'upstream' ? [[each.args[0]!, each]] : [])))
    this.#notes = notes
  }

  /** Where a location sends its requests. Undefined: not to an HTTP server. */
  targetOf(location: Omit<Location, 'match'>): Target | undefined {
    const [block = []] = location.scopes
    const pass = block.find(({ name }) => name === 'proxy_pass')
    const returned = returnOf(location)
    if (returned !== undefined) {
      const why = `nginx answers "${location.title}" with "return", before any limit. Here it is not limited, and what answers has to be added there`
      return this.#strayed(returned, why)
    }
    if (pass === undefined) {
      const [answer] = ANSWERS.flatMap(name => block.find(each => each.name === name) ?? [])
      const why = answer === undefined ? 'has no "proxy_pass"' : `has "${answer.name}" and no "proxy_pass"`
      return this.#strayed(answer ?? location, `"${location.title}" ${why}`)
    }
    const url = this.#urlOf(pass, location)
    if (url === undefined) return undefined
    const [connectTimeout, responseTimeout] = ['proxy_connect_timeout', 'proxy_read_timeout'].map(name =>
      this.#timeOf(location, name),
    )
    return {
      url,
      hostHeader: this.#hostHeader(location),
      ...(connectTimeout !== undefined && { connectTimeout }),
      // nginx waits that long between two reads.
      ...(responseTimeout !== undefined && { responseTimeout, idleTimeout: responseTimeout }),
    }
  }

  /** Tells where requests go that nginx does not send to a server that shaper could call. */
  tellStrays({ url }: Target): void {
    for (const { place, message } of this.#strays) this.#tell({ place }, `${message}: its requests go to ${quote(url)}`)
  }

  #strayed({ place }: Pick<Directive, 'place'>, message: string): undefined {
    this.#strays.push({ place, message })
  }

  #timeOf({ scopes }: Pick<Location, 'scopes'>, name: string): string | undefined {
    const [found] = inherited(scopes, name)
    if (found === undefined) return undefined
    const time = durationOf(found.args[0] ?? '')
    if (time === undefined) this.#tell(found, `${name} ${quote(found.args[0])} is no time; left out`)
    return time
  }

  #urlOf(pass: Directive, { prefix, title }: Omit<Location, 'match'>): string | undefined {
    const [text = ''] = pass.args
    const [, scheme = '', authority = '', path = ''] = /^(https?):\/\/([^/$]+)(\/[^$]*)?$/.exec(text) ?? []
    if (scheme === '' || authority.startsWith('unix:')) {
      return this.#strayed(pass, `"${title}" has proxy_pass ${quote(text)}, no server that shaper could call`)
    }
    if (path !== '' && path !== prefix)
      this.#tell(pass, `proxy_pass ${quote(text)} rewrites paths; shaper passes them as they are`)
    const group = this.#groups.get(authority)
    if (group === undefined) return `${scheme}://${authority}`
    const servers = (group.block ?? []).filter(
      ({ name, args }) => name === 'server' && !args.includes('backup') && !args.includes('down'),
    )
    const [first] = servers
    const address = first?.args[0] ?? ''
    if (address === '' || address.startsWith('unix:')) {
      return this.#strayed(
        pass,
        `"${title}" goes to "upstream ${authority}", which has no server that shaper could call`,
      )
    }
    for (const backup of (group.block ?? []).filter(({ name, args }) => name === 'server' && args.includes('backup'))) {
      this.#tell(backup, `the backup ${quote(backup.args[0])} is left out: shaper sends to one server only`)
    }
    if (servers.length > 1) {
      this.#tell(
        group,
        `"upstream ${authority}" has ${servers.length} servers: shaper does not balance, the first gets all. Keep nginx behind shaper for it (--upstream)`,
      )
    }
    return `${scheme}://${address}`
  }

  /** nginx sends the name in `proxy_pass` unless it is told another. */
  #hostHeader({ scopes }: Pick<Location, 'scopes'>): Target['hostHeader'] {
    const set = inherited(scopes, 'proxy_set_header').find(({ args }) => args[0]?.toLowerCase() === 'host')
    const value = set?.args[1]
    if (
      set !== undefined &&
      value !== undefined &&
      !/^\$(?:http_)?host(?::\$server_port)?$|^\$proxy_host$/.test(value)
    ) {
      this.#tell(set, `Host ${value} is not sent: shaper sends that of the client`)
    }
    return value === undefined || value === '$proxy_host' ? 'upstream' : 'preserve'
  }

  #tell({ place }: Pick<Directive, 'place'>, message: string): void {
    this.#notes.push({ place, message })
  }
}

/** The `return` that answers all requests of a place: its own one, or that of its server. */
export function returnOf({ scopes }: Pick<Location, 'scopes'>): Directive | undefined {
  const [block = []] = scopes
  const server = scopes.at(-2) ?? []
  return [...block, ...server].find(({ name }) => name === 'return')
}

/** What makes nginx refuse all requests of a place. Undefined: nothing does. */
export function refusalOf(scopes: Scopes): Directive | undefined {
  const [internal] = inherited(scopes, 'internal')
  const returned = returnOf({ scopes })
  if (internal !== undefined) return internal
  if (returned !== undefined) return /^4\d\d$/.test(returned.args[0] ?? '') ? returned : undefined
  // The first rule that fits counts.
  const rules = scopes.map(each => each.filter(({ name }) => name === 'allow' || name === 'deny'))
  const [first] = rules.find(each => each.length > 0) ?? []
  const isOptional = settingOf(scopes, 'satisfy') === 'any'
  return first?.name === 'deny' && first.args[0] === 'all' && !isOptional ? first : undefined
}

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** A time of nginx, e.g. `60` or `1m 30s`, in our words. Undefined: it is none. */
function durationOf(text: string): string | undefined {
  if (!/^(?:\d+(?:ms|[smhd])?\s*)+$/.test(text)) return undefined
  const parts = [...text.matchAll(/(\d+)(ms|[smhd])?/g)]
  const total = parts.reduce((sum, [, count, unit = 's']) => sum + Number(count) * ownValue(UNITS, unit)!, 0)
  return total % 1000 === 0 ? `${total / 1000}s` : `${total}ms`
}
