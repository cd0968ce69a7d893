/** Makes a configuration of shaper of one of nginx. */
import { dirname } from 'node:path'
import { groupedBy } from '../../core/structures/maps.js'
import { covers } from '../checks/match-coverage.js'
import { quote } from '../messages.js'
import type { MatchSettings } from '../settings.js'
import { type ImportedBucket, ImportedBuckets } from './buckets.js'
import { both, Inexpressible, reachable } from './conditions.js'
import { type Directive, type ImportNote, type NginxFiles, readDirectives, type SourcePlace } from './directives.js'
import { Groups } from './groups.js'
import { type Limit, Zones } from './limits.js'
import { type ImportedListen, listenOf, trustedOf } from './listen.js'
import { type Host, hostsOf, type Location, locationsOf } from './locations.js'
import { dependsOnEscapes, encodedPath } from './paths.js'
import { type Scopes, settingOf } from './scopes.js'
import { refusalOf, returnOf, type Target, Targets } from './upstreams.js'
import { Variables } from './variables.js'
import { notesOfOthers, tellBehind } from './vocabulary.js'

export interface ImportedRoute {
  readonly match: MatchSettings
  readonly mode: 'shape' | 'meter' | 'off' | 'refuse'
  readonly buckets: readonly ImportedBucket[]
  readonly dryRun: boolean
  /** Undefined: that of all. */
  readonly target: Target | undefined
  readonly title: string
  readonly place: SourcePlace
}

/** What a configuration of nginx says, in the words of ours. */
export interface ImportedConfig {
  readonly listen: ImportedListen
  readonly target: Target
  readonly trustProxy: readonly string[]
  readonly buckets: readonly ImportedBucket[]
  readonly routes: readonly ImportedRoute[]
}

export interface ImportOptions {
  readonly files: NginxFiles
  /** Where all requests go, instead of where nginx sends them. */
  readonly upstream?: string | undefined
}

const PLACEHOLDER = 'http://127.0.0.1:9000'

/** @returns the configuration, and a note for each thing that shaper cannot say. @throws NginxSyntaxError */
export function importNginx(
  file: string,
  { files, upstream }: ImportOptions,
): { config: ImportedConfig; notes: ImportNote[] } {
  const { directives, notes, names } = readDirectives(file, files)
  const begin = { file, line: 1 }
  // A file of conf.d has what is in the block "http".
  const blocks = directives.filter(({ name }) => name === 'http')
  const http = blocks.length === 0 ? directives : blocks.flatMap(({ block = [] }) => block)
  const written = http.filter(({ name }) => name === 'server')
  const { listen, servers, last, isIpv6 } = listenOf(written, { http, folder: dirname(file), notes })
  const trustProxy = trustedOf(servers, http, notes)
  const own = upstream === undefined ? undefined : ({ url: upstream, hostHeader: 'preserve' } as const)
  // Proxies pass on addresses of IPv6, too.
  const ipv6 = isIpv6 || trustProxy.length > 0 ? 128 : undefined
  const reader = new RouteReader(http, { notes, own, ipv6, folder: dirname(file) })
  const found = hostsOf(servers, last, notes).flatMap(host => reader.routesOf(host))
  const routes = found.length === 0 ? [untouched(begin)] : found
  const known = own ?? mostFrequent(routes)
  const target = known ?? { url: PLACEHOLDER, hostHeader: 'preserve' as const }
  if (known === undefined) {
    const message = `no "proxy_pass" names an HTTP server; "upstream" is ${PLACEHOLDER}: name yours`
    notes.push({ place: begin, message })
  }
  const imported = [...http.filter(({ name }) => name !== 'server'), ...servers]
  if (own === undefined) {
    reader.tellStrays(target)
    const outside = http === directives ? [] : directives.filter(({ name }) => name !== 'http')
    notes.push(...notesOfOthers([...outside, ...imported]))
  } else tellBehind(imported, notes)
  if (written.length === 0) {
    const message =
      'there is no "server", so nothing here is imported: name the file that includes this one, e.g. /etc/nginx/nginx.conf'
    notes.push({ place: begin, message })
  } else if (!routes.some(({ buckets }) => buckets.length > 0)) {
    notes.push({ place: begin, message: 'there is no limit_req and no limit_conn that could be imported' })
  }
  const same = JSON.stringify(target)
  const kept = withoutRedundant(
    routes.map(route => (JSON.stringify(route.target) === same ? { ...route, target: undefined } : route)),
  )
  const [folded, buckets] = foldConnections(kept)
  return { config: { listen, target, trustProxy, buckets, routes: folded }, notes: inOrder(notes, names) }
}

function untouched(place: SourcePlace): ImportedRoute {
  return { match: {}, mode: 'off', buckets: [], dryRun: false, target: undefined, title: '', place }
}

interface ReaderOptions {
  readonly notes: ImportNote[]
  readonly own: Target | undefined
  readonly ipv6: number | undefined
  readonly folder: string
}

interface Use {
  readonly limit: Limit
  readonly bucket: ImportedBucket
}

interface Combination {
  readonly match: MatchSettings
  readonly uses: readonly Use[]
}

class RouteReader {
  readonly #http: readonly Directive[]
  readonly #options: ReaderOptions
  readonly #variables: Variables
  readonly #zones: Zones
  readonly #targets: Targets
  readonly #buckets: ImportedBuckets
  #hasToldEscapes = false

  constructor(http: readonly Directive[], options: ReaderOptions) {
    const { notes, ipv6, folder } = options
    this.#http = http
    this.#options = options
    this.#variables = new Variables(http, notes)
    this.#zones = new Zones(http, notes)
    this.#targets = new Targets(new Groups(http, this.#variables, notes), folder, notes)
    this.#buckets = new ImportedBuckets(notes, ipv6)
  }

  routesOf({ host, server }: Host): ImportedRoute[] {
    const { notes, own } = this.#options
    const serverName = settingOf([server.block ?? []], 'server_name') ?? ''
    const { locations, named } = locationsOf(server, this.#http, notes)
    const followed = new Set<Place>()
    const routes = locations.flatMap(({ match: ofPath, ...location }) => {
      const match = { ...(host !== undefined && { host }), ...ofPath }
      const path = pathThrough(location, target => named.get(target) ?? locationOf(target, locations))
      for (const each of path.slice(1)) followed.add(each)
      const { title, place } = location
      if (own === undefined && this.#isRefused(location))
        return [{ match, mode: 'refuse' as const, buckets: [], dryRun: false, target: undefined, title, place }]
      for (const { scopes } of own === undefined ? path : []) this.#tellFiles(scopes)
      const target = own ?? this.#targets.targetOf({ ...location, scopes: path.at(-1)!.scopes })
      const cases =
        returnOf(location) === undefined
          ? this.#casesOf(path, { match, serverName })
          : [{ match, mode: 'off' as const, buckets: [], dryRun: false }]
      return cases.map(each => ({ ...each, target, title, place }))
    })
    for (const [name, location] of named) if (!followed.has(location)) this.#tellNamed(name, location)
    return routes
  }

  #isRefused({ title, scopes }: Pick<Location, 'title' | 'scopes'>): boolean {
    const refusal = refusalOf(scopes)
    if (refusal === undefined) return false
    const { name, args, place } = refusal
    const isInternal = name === 'internal'
    if (isInternal || (args[0] !== '404' && name === 'return') || name === 'deny') {
      const message = isInternal
        ? `"${title}" is for redirects within nginx (X-Accel-Redirect, error_page): here it answers 404. If an upstream sends X-Accel-Redirect, keep nginx behind shaper (--upstream)`
        : `"${title}" has ${quote([name, ...args].join(' '))}: here it answers 404`
      this.#options.notes.push({ place, message })
    }
    return true
  }

  /** nginx looks for files before it proxies a request. */
  #tellFiles([block = []]: Scopes): void {
    const found = block.find(({ name }) => name === 'try_files')
    if (found === undefined) return
    const last = found.args.at(-1) ?? ''
    const rest = /^[=@]/.test(last) ? '' : `, or with what ${quote(last)} leads to`
    const lost = /^[^?]*\$/.test(last) ? '. Limits of the location that it leads to are left out' : ''
    const message = `${quote(['try_files', ...found.args].join(' '))} answers with files${rest}; here all requests go on, with the path that they have${lost}`
    this.#options.notes.push({ place: found.place, message })
  }

  /** A location that only what is not imported leads to. */
  #tellNamed(name: string, { place, scopes }: Location): void {
    const [block = []] = scopes
    const lost = block.filter(each => /^limit_(?:req|conn)$|_pass$/.test(each.name))
    const what = lost.map(each => quote([each.name, ...each.args].join(' '))).join(', ')
    const message = `"location ${name}" is left out${what && `, with ${what}`}: no "try_files" leads to it`
    this.#options.notes.push({ place, message })
  }

  tellStrays(target: Target): void {
    this.#targets.tellStrays(target)
  }

  /** The routes of a location: one for each combination of the cases of its limits. */
  #casesOf(
    path: readonly Place[],
    { match, serverName }: { match: MatchSettings; serverName: string },
  ): Pick<ImportedRoute, 'match' | 'mode' | 'buckets' | 'dryRun'>[] {
    const { scopes, place } = path[0]!
    // The name of a server is the same for all of its requests, whatever their Host is.
    const limits = this.#zones.limitsOf(path.map(each => each.scopes)).map(limit => {
      const key = limit.zone.key.replace(/\$server_name\b|\$\{server_name\}/g, () => serverName)
      return { ...limit, zone: { ...limit.zone, key } }
    })
    const combinations = limits.reduce<readonly Combination[]>(
      (before, limit) => {
        const cases = this.#usable(limit, before)
        return cases.length === 0 ? before : cases
      },
      [{ match, uses: [] }],
    )
    const isDry = this.#isDry(scopes, limits, place)
    return reachable(combinations, each => each.match).map(each => {
      const mode = modeOf(each.uses.map(({ limit }) => limit))
      if (mode === 'shape') for (const use of each.uses) this.#enterShape(use)
      this.#tellTogether(each.uses, mode)
      if (mode !== 'off') this.#tellEscapes(each.match, place)
      return {
        match: each.match,
        mode,
        buckets: each.uses.map(({ bucket }) => bucket),
        dryRun: isDry && mode !== 'off',
      }
    })
  }

  /** A limit under each of the conditions so far. None: it is left out. */
  #usable(limit: Limit, before: readonly Combination[]): readonly Combination[] {
    const { key, name, place } = limit.zone
    const what = `the key "${key}" of zone "${name}" cannot be said in shaper`
    const cases = this.#orTell(place, what, () => this.#variables.casesOf(key))
    return this.#orTell(limit.place, `zone "${name}" cannot be said in shaper`, () =>
      before.flatMap(({ match, uses }) =>
        cases.flatMap(each => {
          const own = both(match, each.when)
          if (own === undefined) return []
          const isLimited = each.parts.length > 0 || each.text !== ''
          if (!isLimited) return [{ match: own, uses }]
          return [{ match: own, uses: [...uses, { limit, bucket: this.#buckets.bucketFor(limit, each) }] }]
        }),
      ),
    )
  }

  #orTell<T>(place: SourcePlace, what: string, make: () => readonly T[]): readonly T[] {
    try {
      return make()
    } catch (error) {
      if (!(error instanceof Inexpressible)) throw error
      this.#options.notes.push({ place, message: `${what} (${error.message}): the limit is left out` })
      return []
    }
  }

  /** In `shape` nothing waits for what nginx does not delay, and connections are waited for. */
  #enterShape({ limit, bucket }: Use): void {
    const { zone, place, connections } = limit
    if (zone.kind === 'connections') {
      const message = `where requests are delayed, more than ${connections} at once wait here; nginx rejects them`
      this.#options.notes.push({ place, message })
    } else if (limit.undelayed === Infinity && limit.excess > 0) bucket.burst = limit.excess + 1
  }

  /** How limits act together differs where requests wait, or are in flight. */
  #tellTogether(uses: readonly Use[], mode: ImportedRoute['mode']): void {
    const { notes } = this.#options
    const rates = uses.filter(({ limit }) => limit.zone.kind === 'rate')
    const connections = uses.filter(({ limit }) => limit.zone.kind === 'connections')
    if (mode === 'shape' && rates.length > 1) {
      const message =
        'a request that waits for one of several limits goes on counting in the others, so some more are rejected; in nginx it counts from its arrival'
      notes.push({ place: rates[1]!.limit.place, message })
    }
    if (mode === 'meter' && rates.length > 0 && connections.length > 0) {
      const message = 'in nginx a request that limit_conn rejects counts in the zones of limit_req, here it does not'
      notes.push({ place: connections[0]!.limit.place, message })
    }
  }

  /** Once: it is the same for all paths. */
  #tellEscapes({ path = '' }: MatchSettings, place: SourcePlace): void {
    if (this.#hasToldEscapes || !dependsOnEscapes(path)) return
    this.#hasToldEscapes = true
    const message = `nginx compares decoded paths, here only letters, digits and "-._~" are decoded: ${quote(path)} and its like do not match a path with "%2F" for "/", so such requests get past the limit. If the upstream decodes it, match "~ ^/api(?:/|%2F)" and not "/api/*"`
    this.#options.notes.push({ place, message })
  }

  #isDry(scopes: Scopes, limits: readonly Limit[], place: SourcePlace): boolean {
    const isOn = (kind: Limit['zone']['kind']): boolean[] =>
      limits.some(({ zone }) => zone.kind === kind)
        ? [settingOf(scopes, kind === 'rate' ? 'limit_req_dry_run' : 'limit_conn_dry_run') === 'on']
        : []
    const all = [...isOn('rate'), ...isOn('connections')]
    if (new Set(all).size > 1) {
      const message = 'only one of limit_req and limit_conn is a dry run; a route is one or none: it is one here'
      this.#options.notes.push({ place, message })
    }
    return all.includes(true)
  }
}

/** Where a limit delays requests, they wait. */
function modeOf(limits: readonly Limit[]): ImportedRoute['mode'] {
  if (limits.length === 0) return 'off'
  return limits.some(({ zone, undelayed }) => zone.kind === 'rate' && undelayed < Infinity) ? 'shape' : 'meter'
}

/** Locations that a request passes: the one that it is in, and those that `try_files` leads to. */
type Place = Pick<Location, 'scopes' | 'place'>

/** @param find the location that the last argument of `try_files` leads to */
function pathThrough(location: Place, find: (target: string) => Place | undefined): [Place, ...Place[]] {
  const path: [Place, ...Place[]] = [location]
  for (;;) {
    const [block = []] = path.at(-1)!.scopes
    const next = find(block.find(({ name }) => name === 'try_files')?.args.at(-1) ?? '')
    if (next === undefined || path.some(each => each.place === next.place)) return path
    path.push(next)
  }
}

/** The location of a path without variables. */
function locationOf(target: string, locations: readonly Location[]): Location | undefined {
  const [path = ''] = target.split('?')
  if (!/^\/[^$*]*$/.test(path)) return undefined
  return locations.find(({ match }) => covers(match, { path: encodedPath(path) }))
}

function outcomeOf({ mode, buckets, dryRun, target }: ImportedRoute): string {
  return JSON.stringify([mode, buckets.map(({ name }) => name), dryRun, target])
}

/** Leaves out routes whose requests the following ones treat alike. */
function withoutRedundant(routes: readonly ImportedRoute[]): ImportedRoute[] {
  const kept: ImportedRoute[] = []
  /** The following routes with one outcome, the nearest last. */
  let alike: ImportedRoute[] = []
  let outcome = ''
  for (const route of [...routes].reverse()) {
    const own = outcomeOf(route)
    if (own !== outcome) alike = []
    outcome = own
    if (alike.some(each => covers(each.match, route.match))) continue
    alike.push(route)
    kept.push(route)
  }
  return kept.reverse()
}

/** Puts `maxInFlight` into the bucket of a rate where both are always used together and have the same key. */
function foldConnections(routes: readonly ImportedRoute[]): [ImportedRoute[], ImportedBucket[]] {
  const all = [...new Set(routes.flatMap(({ buckets }) => buckets))]
  const users = new Map(all.map(bucket => [bucket, [] as number[]]))
  for (const [index, { buckets }] of routes.entries()) for (const each of buckets) users.get(each)!.push(index)
  const alikeOf = (bucket: ImportedBucket): string => JSON.stringify([bucket.status, bucket.key, users.get(bucket)])
  const hosts = new Map<string, ImportedBucket>()
  for (const bucket of all) {
    const alike = alikeOf(bucket)
    if (bucket.maxInFlight === undefined && !hosts.has(alike)) hosts.set(alike, bucket)
  }
  const folded = new Set<ImportedBucket>()
  for (const bucket of all.filter(({ maxInFlight }) => maxInFlight !== undefined)) {
    const host = hosts.get(alikeOf(bucket))
    if (host === undefined || host.maxInFlight !== undefined) continue
    host.maxInFlight = bucket.maxInFlight!
    folded.add(bucket)
  }
  const isKept = (bucket: ImportedBucket): boolean => !folded.has(bucket)
  return [routes.map(route => ({ ...route, buckets: route.buckets.filter(isKept) })), all.filter(isKept)]
}

function mostFrequent(routes: readonly ImportedRoute[]): Target | undefined {
  const alike = groupedBy(
    routes.flatMap(({ target }) => target ?? []),
    target => JSON.stringify(target),
  )
  return [...alike.values()].sort((a, b) => b.length - a.length)[0]?.[0]
}

/** Each note once: what lets requests through first, then in the order of the files. */
function inOrder(notes: readonly ImportNote[], files: readonly string[]): ImportNote[] {
  const once = [...new Map(notes.map(note => [JSON.stringify(note), note])).values()]
  const rank = ({ isFirst }: ImportNote): number => (isFirst ? 0 : 1)
  const fileOf = ({ place }: ImportNote): number => files.indexOf(place.file)
  return once.sort((a, b) => rank(a) - rank(b) || fileOf(a) - fileOf(b) || a.place.line - b.place.line)
}
