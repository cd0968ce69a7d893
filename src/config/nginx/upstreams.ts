/** Where requests go: `proxy_pass`, and the servers of `upstream`. */
import type { Directive, ImportNote } from './directives.js'
import type { Location } from './locations.js'
import { inherited } from './scopes.js'

export interface Target {
  readonly url: string
  readonly hostHeader: 'preserve' | 'upstream'
}

/** What answers requests where nothing is proxied. */
const ANSWERS = [
  ...['fastcgi_pass', 'uwsgi_pass', 'scgi_pass', 'grpc_pass', 'memcached_pass'],
  ...['return', 'alias', 'root', 'try_files', 'index', 'stub_status', 'empty_gif'],
]

export class Targets {
  readonly #groups: ReadonlyMap<string, Directive>
  readonly #notes: ImportNote[]

  constructor(http: readonly Directive[], notes: ImportNote[]) {
    this.#groups = new Map(http.flatMap(each => (each.name === 'upstream' ? [[each.args[0]!, each]] : [])))
    this.#notes = notes
  }

  /** Where a location sends its requests. Undefined: not to an HTTP server. */
  targetOf(location: Location): Target | undefined {
    const [block = []] = location.scopes
    const pass = block.find(({ name }) => name === 'proxy_pass')
    if (pass === undefined) {
      const [answer] = ANSWERS.flatMap(name => block.find(each => each.name === name) ?? [])
      const why = answer === undefined ? 'has no "proxy_pass"' : `has "${answer.name}" and no "proxy_pass"`
      this.#tell(answer ?? location, `"${location.title}" ${why}: its requests go to "upstream"`)
      return undefined
    }
    const url = this.#urlOf(pass, location)
    return url === undefined ? undefined : { url, hostHeader: this.#hostHeader(location) }
  }

  #urlOf(pass: Directive, { prefix }: Location): string | undefined {
    const [text = ''] = pass.args
    const [, scheme = '', authority = '', path = ''] = /^(https?):\/\/([^/$]+)(\/[^$]*)?$/.exec(text) ?? []
    if (scheme === '' || authority.startsWith('unix:')) {
      this.#tell(pass, `proxy_pass ${text} is no address of a server that shaper could call: "upstream" is used`)
      return undefined
    }
    if (path !== '' && path !== prefix)
      this.#tell(pass, `proxy_pass ${text} rewrites paths; shaper passes them as they are`)
    const group = this.#groups.get(authority)
    if (group === undefined) return `${scheme}://${authority}`
    const servers = (group.block ?? []).filter(
      ({ name, args }) => name === 'server' && !args.includes('backup') && !args.includes('down'),
    )
    const [first] = servers
    const address = first?.args[0] ?? ''
    if (address === '' || address.startsWith('unix:')) {
      this.#tell(group, `"upstream ${authority}" has no server that shaper could call: "upstream" is used`)
      return undefined
    }
    if (servers.length > 1) {
      this.#tell(
        group,
        `"upstream ${authority}" has ${servers.length} servers and a route one address: the first is used`,
      )
    }
    return `${scheme}://${address}`
  }

  /** nginx sends the name in `proxy_pass` unless it is told another. */
  #hostHeader({ scopes }: Location): Target['hostHeader'] {
    const set = inherited(scopes, 'proxy_set_header').find(({ args }) => args[0]?.toLowerCase() === 'host')
    const value = set?.args[1]
    if (set !== undefined && !/^\$(?:http_)?host(?::\$server_port)?$|^\$proxy_host$/.test(value!)) {
      this.#tell(set, `Host ${value} is not sent: shaper sends that of the client`)
    }
    return value === undefined || value === '$proxy_host' ? 'upstream' : 'preserve'
  }

  #tell({ place }: Pick<Directive, 'place'>, message: string): void {
    this.#notes.push({ place, message })
  }
}
