/** Servers and locations, in the order in which the first that matches is the one that nginx would take. */
import { expressionFault } from '../../http/matching/path-pattern.js'
import { covers } from '../checks/match-coverage.js'
import { quote } from '../messages.js'
import type { MatchSettings } from '../settings.js'
import { both, Inexpressible } from './conditions.js'
import type { Directive, ImportNote, SourcePlace } from './directives.js'
import { encodedExpression, encodedPath } from './paths.js'
import type { Scopes } from './scopes.js'

export interface Location {
  /** `location ~ \.php$`, or `server` for what no location takes. */
  readonly title: string
  readonly match: MatchSettings
  /** The prefix; undefined: it is none. */
  readonly prefix: string | undefined
  readonly scopes: Scopes
  readonly place: SourcePlace
}

interface Written extends Location {
  readonly kind: '=' | '^~' | '~' | ''
  readonly text: string
}

/** The locations of a server, and the server itself for the requests that are in none. */
export function locationsOf(server: Directive, http: readonly Directive[], notes: ImportNote[]): Location[] {
  const scopes: Scopes = [server.block ?? [], http]
  const outside = { match: {}, scopes }
  const all = written(outside, notes)
  const hasRoot = all.some(({ kind, text }) => kind !== '=' && kind !== '~' && text === '/')
  const rest: Location = { title: 'server', match: {}, prefix: undefined, scopes, place: server.place }
  return [...ordered(all, notes), ...(hasRoot ? [] : [rest])]
}

function written(outer: { match: MatchSettings; scopes: Scopes }, notes: ImportNote[]): Written[] {
  const locations = outer.scopes[0]!.filter(({ name }) => name === 'location')
  return locations.flatMap(directive => {
    const { args, place, block = [] } = directive
    const [kind, text] = readArguments(args)
    const title = `location ${args.join(' ')}`
    const match = matchWithin(outer.match, { kind, text, title, place }, notes)
    if (match === undefined) return []
    const inner = { match, scopes: [block, ...outer.scopes] }
    const prefix = kind.startsWith('~') || kind === '=' ? undefined : text
    return [{ ...inner, title, place, prefix, text, kind: kind === '~*' ? '~' : kind }, ...written(inner, notes)]
  })
}

/** Undefined: no request is in the location, or none that a route could match. */
function matchWithin(
  outer: MatchSettings,
  { kind, text, title, place }: { kind: string; text: string; title: string; place: SourcePlace },
  notes: ImportNote[],
): MatchSettings | undefined {
  // A named one is for redirects within nginx.
  if (text.startsWith('@')) return undefined
  try {
    return both(outer, matchOf(kind, text))
  } catch (error) {
    if (!(error instanceof Inexpressible)) throw error
    notes.push({
      place,
      message: `"${title}" is left out (${error.message}): its requests are in the next one that fits`,
    })
    return undefined
  }
}

function readArguments(args: readonly string[]): ['=' | '^~' | '~' | '~*' | '', string] {
  const [first = '', second] = args
  if (second !== undefined) return [first as '=', second]
  // The space may be left out.
  const [, kind = '', text = ''] = /^(=|\^~|~\*|~|)(.*)$/s.exec(first) ?? []
  return [kind as '=', text]
}

/** @throws Inexpressible */
function matchOf(kind: string, text: string): MatchSettings {
  if (kind.startsWith('~')) {
    const fault = expressionFault(text)
    if (fault !== undefined) throw new Inexpressible(`this expression takes more than linear time (${fault})`)
    return { path: `~ ${encodedExpression(text)}`, ...(kind === '~*' && { normalise: ['case'] as const }) }
  }
  const path = encodedPath(text)
  if (kind === '=') return { path }
  return path === '/' ? {} : { path: `${path}*` }
}

/**
 * Exact ones first. The longest prefix with `^~` goes before expressions, these in the order of the file, and then the longest
 * prefix.
 */
function ordered(all: readonly Written[], notes: ImportNote[]): Location[] {
  const longestFirst = (list: Written[]): Written[] => list.sort((a, b) => b.text.length - a.text.length)
  const ofKind = (kind: Written['kind']): Written[] => all.filter(each => each.kind === kind)
  const expressions = ofKind('~')
  const final = ofKind('^~')
  // The longer one of both is asked first.
  const isInside = ({ text }: Written): boolean => final.some(other => text.startsWith(other.text))
  for (const each of expressions.length > 0 ? ofKind('').filter(isInside) : []) {
    const message = `"${each.title}" is inside one with "^~": here it goes before regular expressions, too`
    notes.push({ place: each.place, message })
  }
  return [
    ...ofKind('='),
    ...longestFirst([...final, ...ofKind('').filter(isInside)]),
    ...expressions,
    ...longestFirst(ofKind('').filter(each => !isInside(each))),
  ]
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
    if (host !== '_' && host !== '') {
      notes.push({ place, message: `server_name ${quote(text)} is left out: hosts have no expressions, only "*"` })
    }
    return []
  })
}
