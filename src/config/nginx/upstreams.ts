/** Where requests go: `proxy_pass`, and the servers of `upstream`. */
import { defined } from '../../core/structures/defined.js'
import { socketPathOf } from '../../http/unix-socket.js'
import { quote } from '../messages.js'
import { type Directive, type ImportNote, pathFrom } from './directives.js'
import { type Groups, type ImportedGroup, isFaultySocket, timeFrom } from './groups.js'
import type { Location } from './locations.js'
import { inherited, type Scopes, settingOf } from './scopes.js'

interface ImportedTls {
  readonly ca?: string
  readonly servername?: string
  readonly cert?: string
  readonly key?: string
}

export interface Target extends Partial<ImportedGroup> {
  /** With `servers` that of the first. */
  readonly url: string
  readonly hostHeader: 'preserve' | 'upstream'
  /** As in our file. Absent: as `upstream` has it without. */
  readonly connectTimeout?: string
  readonly responseTimeout?: string
  readonly idleTimeout?: string
  readonly tls?: ImportedTls
}

/** What answers requests where nothing is proxied. */
const ANSWERS = [
  ...['fastcgi_pass', 'uwsgi_pass', 'scgi_pass', 'grpc_pass', 'memcached_pass'],
  ...['return', 'alias', 'root', 'try_files', 'index', 'stub_status', 'empty_gif'],
]

export class Targets {
  readonly #groups: Groups
  /** Names of files start here. */
  readonly #folder: string
  readonly #notes: ImportNote[]
  /** Why requests go where nginx does not send them. */
  readonly #strays: ImportNote[] = []

  constructor(groups: Groups, folder: string, notes: ImportNote[]) {
    this.#groups = groups
    this.#folder = folder
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
    const target = this.#serversOf(pass, location)
    if (target === undefined) return undefined
    const connectTimeout = this.#timeOf(location, 'proxy_connect_timeout')
    // nginx waits that long between two reads.
    const responseTimeout = this.#timeOf(location, 'proxy_read_timeout')
    const hostHeader = this.#hostHeader(location)
    const { name, ...there } = target
    if (hostHeader === 'upstream' && name !== undefined) this.#tellHost(pass, name, there)
    const tls = target.url.startsWith('https:') ? this.#tlsOf(location, pass, name) : undefined
    const timeouts = { connectTimeout, responseTimeout, idleTimeout: responseTimeout }
    return { ...there, hostHeader, ...defined({ ...timeouts, tls }) }
  }

  #tellHost(pass: Directive, name: string, { url, servers = [] }: Pick<Target, 'url' | 'servers'>): void {
    const own = socketPathOf(url) === undefined ? quote(url.replace(/^\w+:\/\//, '')) : '"localhost"'
    this.#tell(pass, `nginx sends "Host: ${name}", and shaper ${servers.length > 1 ? 'that of each server' : own}`)
  }

  /** Tells where requests go that nginx does not send to a server that shaper could call. */
  tellStrays({ url, servers = [] }: Target): void {
    const there = servers.length > 1 ? `${quote(url)} and ${servers.length - 1} more` : quote(url)
    for (const { place, message } of this.#strays) this.#tell({ place }, `${message}: its requests go to ${there}`)
  }

  #strayed({ place }: Pick<Directive, 'place'>, message: string): undefined {
    this.#strays.push({ place, message })
  }

  #timeOf({ scopes }: Pick<Location, 'scopes'>, name: string): string | undefined {
    const [found] = inherited(scopes, name)
    if (found === undefined) return undefined
    const time = timeFrom(found.args[0] ?? '')
    if (time === undefined) this.#tell(found, `${name} ${quote(found.args[0])} is no time; left out`)
    return time
  }

  /** With the name of their group, if it is one. */
  #serversOf(
    pass: Directive,
    { prefix, title }: Omit<Location, 'match'>,
  ): (Partial<ImportedGroup> & { url: string; name?: string }) | undefined {
    const text = (pass.args[0] ?? '').replace(/^\w+:/, scheme => scheme.toLowerCase())
    const [, scheme = '', authority = '', path = ''] =
      /^(https?):\/\/(unix:\/[^:$]+)(?::([^$]*))?$/.exec(text) ?? /^(https?):\/\/([^/$]+)(\/[^$]*)?$/.exec(text) ?? []
    if (scheme === '' || isFaultySocket(scheme, authority))
      return this.#strayed(pass, `"${title}" has proxy_pass ${quote(text)}, no server that shaper could call`)
    if (path !== '' && path !== prefix)
      this.#tell(pass, `proxy_pass ${quote(text)} rewrites paths; shaper passes them as they are`)
    if (socketPathOf(authority) !== undefined) return { url: authority }
    if (!this.#groups.has(authority)) return { url: `${scheme}://${authority}` }
    const group = this.#groups.read(authority, scheme)
    if (group === undefined) {
      const why = `"${title}" goes to "upstream ${authority}", which has no server that shaper could call`
      return this.#strayed(pass, why)
    }
    const [first, ...others] = group.servers
    const { url, ...options } = first!
    const isPlain = others.length === 0 && Object.keys(options).length === 0
    return { url, ...(!isPlain && group), name: authority }
  }

  /** Whom an upstream of https has to be, and who we are. nginx takes any certificate unless it is told to verify it. */
  #tlsOf({ scopes }: Pick<Location, 'scopes'>, pass: Directive, group: string | undefined): ImportedTls | undefined {
    const settled = (name: string): string | undefined => {
      const [found] = inherited(scopes, name)
      const value = found?.args[0]
      if (value === undefined || !value.includes('$')) return value
      this.#tell(found!, `${name} ${quote(value)} depends on the request; left out`)
      return undefined
    }
    const file = (name: string): string | undefined => {
      const value = settled(name)
      return value && pathFrom(this.#folder, value)
    }
    const [cert, key] = [file('proxy_ssl_certificate'), file('proxy_ssl_certificate_key')]
    if ((cert === undefined) !== (key === undefined))
      this.#tell(pass, 'proxy_ssl_certificate and proxy_ssl_certificate_key are left out: one is without the other')
    const isVerified = settingOf(scopes, 'proxy_ssl_verify') === 'on'
    const ca = isVerified ? file('proxy_ssl_trusted_certificate') : undefined
    const servername = settled('proxy_ssl_name') ?? (isVerified ? group : undefined)
    if (!isVerified) {
      const message =
        'without "proxy_ssl_verify on" nginx takes any certificate of the upstream. shaper verifies it: for an authority of your own add "tls": { "ca": "FILE" }'
      this.#tell(pass, message)
    }
    const tls = { ...defined({ ca, servername }), ...(cert !== undefined && key !== undefined && { cert, key }) }
    return Object.keys(tls).length === 0 ? undefined : tls
  }

  /** nginx sends the name in `proxy_pass` unless it is told another. */
  #hostHeader({ scopes }: Pick<Location, 'scopes'>): Target['hostHeader'] {
    const set = inherited(scopes, 'proxy_set_header').find(({ args }) => args[0]?.toLowerCase() === 'host')
    const value = set?.args[1]
    if (set !== undefined && value !== undefined && !/^\$(?:http_)?host(?::\$server_port)?$|^\$proxy_host$/.test(value))
      this.#tell(set, `Host ${value} is not sent: shaper sends that of the client`)
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
