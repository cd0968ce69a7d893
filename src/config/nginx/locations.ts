/** Servers and locations, in the order in which the first that matches is the one that nginx would take. */
import { expressionFault } from '../../http/matching/path-pattern.js'
import { covers } from '../checks/match-coverage.js'
import { quote } from '../messages.js'
import type { MatchSettings } from '../settings.js'
import { both, Inexpressible } from './conditions.js'
import { type Directive, type ImportNote, NginxSyntaxError, type SourcePlace } from './directives.js'
import { encodedExpression, encodedPath } from './paths.js'
import type { Scopes } from './scopes.js'

export interface Location {
  /** `location ~ \.php$`, or `server` for what no location takes. */
  readonly title: string
  readonly match: MatchSettings
  /** The text; undefined: it is a regular expression. */
  readonly prefix: string | undefined
  readonly scopes: Scopes
  readonly place: SourcePlace
}

type Kind = '=' | '^~' | '~' | '~*' | '@' | ''

interface Written extends Location {
  readonly kind: Kind
  readonly text: string
  readonly exact: readonly Written[]
  /** The longest first. */
  readonly prefixes: readonly Written[]
  readonly expressions: readonly Written[]
}

export interface ServerLocations {
  /** The first whose `match` fits is the one that nginx takes. The last is the server itself, for requests in none. */
  readonly locations: readonly Location[]
  /** Those that only redirects within nginx reach, by name: `@name`. */
  readonly named: ReadonlyMap<string, Location>
}

/**
 * nginx looks for the longest prefix, inside it for the longest of those in it, and so on. Then it asks the regular expressions
 * of each block around, the innermost block first. A block whose longest prefix has `^~` is left out. So the expressions of
 * the blocks around a prefix with locations inside, or with `^~`, are written again for the paths of that prefix alone, and
 * before them all longer prefixes that begin with it. Compared with nginx itself in test/cli/import-locations.test.ts.
 */
export function locationsOf(server: Directive, http: readonly Directive[], notes: ImportNote[]): ServerLocations {
  const scopes: Scopes = [server.block ?? [], http]
  const { named, ...inside } = insideOf(scopes, notes)
  const rest: Location = { title: 'server', match: {}, prefix: undefined, scopes, place: server.place }
  const root: Written = { ...rest, kind: '', text: '', ...inside }
  const reader = new LocationOrder(notes)
  const ordered = reader.ofBlock(root, { within: {}, after: [] })
  reader.tellUnreached(root)
  const hasRoot = root.prefixes.some(({ text }) => text === '/')
  return { locations: [...ordered, ...(hasRoot ? [] : [rest])], named }
}

type Inside = Pick<Written, 'exact' | 'prefixes' | 'expressions'> & { readonly named: ReadonlyMap<string, Location> }

function insideOf(scopes: Scopes, notes: ImportNote[]): Inside {
  const all = scopes[0]!.filter(({ name }) => name === 'location').flatMap(each => written(each, scopes, notes))
  const ofKind = (...kinds: Kind[]): Written[] => all.filter(({ kind }) => kinds.includes(kind))
  return {
    exact: ofKind('='),
    prefixes: ofKind('', '^~').sort((a, b) => b.text.length - a.text.length),
    expressions: ofKind('~', '~*'),
    named: new Map(ofKind('@').map(each => [each.text, each])),
  }
}

function written(directive: Directive, outer: Scopes, notes: ImportNote[]): Written[] {
  const { args, place, block = [] } = directive
  const [kind, text] = readArguments(directive)
  const title = `location ${args.join(' ')}`
  if (!/^[~@]/.test(kind) && !text.startsWith('/')) {
    notes.push({ place, message: `"${title}" is left out: no path begins so` })
    return []
  }
  const scopes = [block, ...outer]
  try {
    const prefix = kind.startsWith('~') ? undefined : text
    return [{ kind, text, title, place, scopes, prefix, match: matchOf(kind, text), ...insideOf(scopes, notes) }]
  } catch (error) {
    tellLost({ title, place }, error, notes)
    return []
  }
}

/** @param error of `matchOf` or `both` */
function tellLost({ title, place }: Pick<Location, 'title' | 'place'>, error: unknown, notes: ImportNote[]): void {
  if (!(error instanceof Inexpressible)) throw error
  const message = `"${title}" is left out (${error.message}): its requests are in the next one that fits`
  notes.push({ place, message })
}

/** @throws NginxSyntaxError */
function readArguments({ args, place }: Directive): [Kind, string] {
  const [first = '', second] = args
  if (second !== undefined) {
    if (args.length === 2 && /^(?:=|\^~|~\*?)$/.test(first)) return [first as Kind, second]
    throw new NginxSyntaxError(place, `"location ${args.join(' ')}" is no location`)
  }
  // The space may be left out.
  const [, kind = '', text = ''] = /^(=|\^~|~\*|~|)(.*)$/s.exec(first) ?? []
  return [text.startsWith('@') ? '@' : (kind as Kind), text]
}

function matchOf(kind: Kind, text: string): MatchSettings {
  if (kind === '@') return {}
  if (kind.startsWith('~')) {
    const fault = expressionFault(text)
    if (fault !== undefined) throw new Inexpressible(`this expression takes more than linear time (${fault})`)
    return { path: `~ ${kind === '~*' ? '(?i)' : ''}${encodedExpression(text)}` }
  }
  const path = encodedPath(text)
  if (kind === '=') return { path }
  return path === '/' ? {} : { path: `${path}*` }
}

interface Around {
  /** The requests that come here. */
  readonly within: MatchSettings
  /** The expressions of the blocks around, in the order in which nginx asks them. */
  readonly after: readonly Written[]
}

class LocationOrder {
  readonly #notes: ImportNote[]
  readonly #reached = new Set<SourcePlace>()

  constructor(notes: ImportNote[]) {
    this.#notes = notes
  }

  /** All inside a block, without the block itself. */
  ofBlock(block: Written, { within, after }: Around): Location[] {
    const { exact, prefixes, expressions } = block
    const decide = prefixes.filter(each => each.kind === '^~' || hasInside(each))
    const isEarly = ({ text }: Written): boolean => decide.some(other => text.startsWith(other.text))
    return [
      ...exact.flatMap(each => this.#only(each, within)),
      ...prefixes.filter(isEarly).flatMap(each => {
        const asked = each.kind === '^~' ? after : [...expressions, ...after]
        return this.#whole(each, { within, after: asked })
      }),
      ...[...expressions, ...after].flatMap(each => this.#whole(each, { within, after: [] })),
      ...prefixes.filter(each => !isEarly(each)).flatMap(each => this.#only(each, within)),
    ]
  }

  tellUnreached({ exact, prefixes, expressions }: Written): void {
    for (const each of [...exact, ...prefixes, ...expressions]) {
      if (!this.#reached.has(each.place)) {
        const message = `"${each.title}" is left out: no request is in it, or the one around it is left out`
        this.#notes.push({ place: each.place, message })
      }
      this.tellUnreached(each)
    }
  }

  /** A location, and before it those inside. */
  #whole(location: Written, { within, after }: Around): Location[] {
    const [own] = this.#only(location, within)
    return own === undefined ? [] : [...this.ofBlock(location, { within: own.match, after }), own]
  }

  /** A location without those inside. None: no request is in it, or no route could match them. */
  #only(location: Written, within: MatchSettings): Location[] {
    const { match, title, prefix, scopes, place } = location
    try {
      const found = both(within, match)
      if (found === undefined) return []
      this.#reached.add(place)
      return [{ match: found, title, prefix, scopes, place }]
    } catch (error) {
      this.#reached.add(place)
      tellLost(location, error, this.#notes)
      return []
    }
  }
}

function hasInside({ exact, prefixes, expressions }: Written): boolean {
  return exact.length + prefixes.length + expressions.length > 0
}

export interface Host {
  /** Undefined: what no other server takes. */
  readonly host: string | undefined
  readonly server: Directive
}

/** The hosts of servers in the order in which nginx looks for them; at the end the default server, `last`. */
export function hostsOf(servers: readonly Directive[], last: Directive | undefined, notes: ImportNote[]): Host[] {
  const all = servers.flatMap(server => namesOf(server, notes).map((host): Host => ({ host, server })))
  const others = all.filter(({ server }) => server !== last)
  // The default server takes its own names anyway, unless a pattern of another one has them.
  const named = all.filter(
    ({ host, server }) => server !== last || others.some(other => covers({ host: other.host! }, { host: host! })),
  )
  const rank = ({ host = '' }: Host): number => (host.startsWith('*') ? 1 : host.endsWith('*') ? 2 : 0)
  named.sort((a, b) => rank(a) - rank(b) || (rank(a) > 0 ? b.host!.length - a.host!.length : 0))
  return [...named, ...(last === undefined ? [] : [{ host: undefined, server: last }])]
}

/** Names as patterns of hosts. */
function namesOf({ block = [] }: Directive, notes: ImportNote[]): string[] {
  const names = block
    .filter(({ name }) => name === 'server_name')
    .flatMap(({ args, place }) => args.map(text => ({ text, place })))
  return names.flatMap(({ text, place }) => {
    const host = text.toLowerCase()
    if (host.startsWith('.')) return [host.slice(1), `*${host}`]
    if (/^(?:\*\.)?[\w.-]+(?:\.\*)?$/.test(host) && host !== '_') return [host]
    if (host !== '_' && host !== '')
      notes.push({ place, message: `server_name ${quote(text)} is left out: hosts have no expressions, only "*"` })
    return []
  })
}
