/** Makes a configuration of shaper of one of nginx. */
import { covers } from '../checks/match-coverage.js'
import type { MatchSettings } from '../settings.js'
import { type ImportedBucket, ImportedBuckets } from './buckets.js'
import { both, Inexpressible } from './conditions.js'
import { type Directive, type ImportNote, type NginxFiles, type Place, readDirectives } from './directives.js'
import { type Limit, Zones } from './limits.js'
import { type ImportedListen, listenOf, listensOnIpv6, trustedOf } from './listen.js'
import { type Host, hostsOf, type Location, locationsOf } from './locations.js'
import { type Scopes, settingOf } from './scopes.js'
import { type Target, Targets } from './upstreams.js'
import { type Case, Variables } from './variables.js'

export interface ImportedRoute {
  readonly match: MatchSettings
  readonly mode: 'shape' | 'meter' | 'off'
  readonly buckets: readonly ImportedBucket[]
  readonly dryRun: boolean
  /** Undefined: that of all. */
  readonly target: Target | undefined
  /** Where it comes from. */
  readonly title: string
  readonly place: Place
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

/** Directives of nginx that limit or change what passes, and that shaper has nothing for. */
const OTHERS = [
  ...['limit_rate', 'limit_rate_after', 'limit_except', 'allow', 'deny', 'auth_basic', 'auth_request', 'auth_jwt'],
  ...['rewrite', 'if', 'mirror', 'sub_filter', 'proxy_cache', 'add_header', 'client_max_body_size', 'gzip'],
]
const PLACEHOLDER = 'http://127.0.0.1:9000'

/**
 * @returns the configuration, and a note for each thing that shaper cannot say
 * @throws NginxSyntaxError
 */
export function importNginx(
  file: string,
  { files, upstream }: ImportOptions,
): { config: ImportedConfig; notes: ImportNote[] } {
  const { directives, notes } = readDirectives(file, files)
  // A file of conf.d has what is in the block "http".
  const http = directives.find(({ name }) => name === 'http')?.block ?? directives
  const servers = http.filter(({ name }) => name === 'server')
  const own = upstream === undefined ? undefined : ({ url: upstream, hostHeader: 'preserve' } as const)
  const reader = new RouteReader(http, { notes, own, ipv6: listensOnIpv6(servers) ? 128 : undefined })
  const found = hostsOf(servers, notes).flatMap(host => reader.routesOf(host))
  const routes = found.length === 0 ? [untouched({ file, line: 1 })] : found
  const target = own ?? mostFrequent(routes) ?? { url: PLACEHOLDER, hostHeader: 'preserve' as const }
  if (own === undefined && mostFrequent(routes) === undefined) {
    notes.push({
      place: { file, line: 1 },
      message: `no "proxy_pass" names an HTTP server; "upstream" is ${PLACEHOLDER}: name yours`,
    })
  }
  if (own === undefined) tellOthers(servers, notes)
  if (!routes.some(({ buckets }) => buckets.length > 0)) {
    notes.push({ place: { file, line: 1 }, message: 'there is no limit_req and no limit_conn that could be imported' })
  }
  const kept = withoutRedundant(
    routes.map(route => (isSame(route.target, target) ? { ...route, target: undefined } : route)),
  )
  const [folded, buckets] = foldConnections(kept)
  const config = {
    listen: listenOf(servers, http, notes),
    target,
    trustProxy: trustedOf([...servers.map(({ block = [] }) => block), http], notes),
    buckets,
    routes: folded,
  }
  return { config, notes: inOrder(notes) }
}

/** The route of a file without servers. */
function untouched(place: Place): ImportedRoute {
  return { match: {}, mode: 'off', buckets: [], dryRun: false, target: undefined, title: '', place }
}

interface ReaderOptions {
  readonly notes: ImportNote[]
  readonly own: Target | undefined
  readonly ipv6: number | undefined
}

/** A bucket, and the limit that it is for. */
interface Use {
  readonly limit: Limit
  readonly bucket: ImportedBucket
}

/** The buckets of the requests under a condition. */
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

  constructor(http: readonly Directive[], options: ReaderOptions) {
    const { notes, ipv6 } = options
    this.#http = http
    this.#options = options
    this.#variables = new Variables(http, notes)
    this.#zones = new Zones(http, notes)
    this.#targets = new Targets(http, notes)
    this.#buckets = new ImportedBuckets(notes, ipv6)
  }

  routesOf({ host, server }: Host): ImportedRoute[] {
    const { notes, own } = this.#options
    const serverName = settingOf([server.block ?? []], 'server_name') ?? ''
    return locationsOf(server, this.#http, notes).flatMap(location => {
      const target = own ?? this.#targets.targetOf(location)
      const match = { ...(host !== undefined && { host }), ...location.match }
      return this.#casesOf(location, { match, serverName }).map(each => ({
        ...each,
        target,
        title: location.title,
        place: location.place,
      }))
    })
  }

  /** The routes of a location: one for each combination of the cases of its limits. */
  #casesOf(
    { scopes, place }: Location,
    { match, serverName }: { match: MatchSettings; serverName: string },
  ): Pick<ImportedRoute, 'match' | 'mode' | 'buckets' | 'dryRun'>[] {
    // The name of a server is the same for all of its requests, whatever their Host is.
    const limits = this.#zones.limitsOf(scopes).map(limit => {
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
    return combinations.map(each => {
      const mode = modeOf(each.uses.map(({ limit }) => limit))
      if (mode === 'shape') for (const use of each.uses) this.#enterShape(use)
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
          return [{ match: own, uses: isLimited ? [...uses, this.#use(limit, each)] : uses }]
        }),
      ),
    )
  }

  #orTell<T>(place: Place, what: string, make: () => readonly T[]): readonly T[] {
    try {
      return make()
    } catch (error) {
      if (!(error instanceof Inexpressible)) throw error
      this.#options.notes.push({ place, message: `${what} (${error.message}): the limit is left out` })
      return []
    }
  }

  #use(limit: Limit, each: Case): Use {
    return { limit, bucket: this.#buckets.bucketFor(limit, each) }
  }

  /** In `shape` nothing waits for what nginx does not delay, and connections are waited for. */
  #enterShape({ limit, bucket }: Use): void {
    const { zone, place, connections } = limit
    if (zone.kind === 'connections') {
      const message = `where requests are delayed, more than ${connections} at once wait here; nginx rejects them`
      this.#options.notes.push({ place, message })
    } else if (limit.undelayed === Infinity && bucket.capacity > 1) bucket.burst = bucket.capacity
  }

  #isDry(scopes: Scopes, limits: readonly Limit[], place: Place): boolean {
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

function outcomeOf({ mode, buckets, dryRun, target }: ImportedRoute): string {
  return JSON.stringify([mode, buckets.map(({ name }) => name), dryRun, target])
}

/** Leaves out routes whose requests the following ones treat alike. */
function withoutRedundant(routes: readonly ImportedRoute[]): ImportedRoute[] {
  const kept: ImportedRoute[] = []
  for (const route of [...routes].reverse()) {
    const other = kept.findIndex(each => outcomeOf(each) !== outcomeOf(route))
    const alike = other < 0 ? kept : kept.slice(0, other)
    if (!alike.some(each => covers(each.match, route.match))) kept.unshift(route)
  }
  return kept
}

/** Puts `maxInFlight` into the bucket of a rate where both are always used together and have the same key. */
function foldConnections(routes: readonly ImportedRoute[]): [ImportedRoute[], ImportedBucket[]] {
  const all = [...new Set(routes.flatMap(({ buckets }) => buckets))]
  const usersOf = (bucket: ImportedBucket): string =>
    routes.flatMap(({ buckets }, index) => (buckets.includes(bucket) ? [index] : [])).join()
  const folded = new Set<ImportedBucket>()
  for (const bucket of all.filter(({ maxInFlight }) => maxInFlight !== undefined)) {
    const host = all.find(
      each =>
        each.maxInFlight === undefined &&
        each.status === bucket.status &&
        JSON.stringify(each.key) === JSON.stringify(bucket.key) &&
        usersOf(each) === usersOf(bucket),
    )
    if (host === undefined) continue
    host.maxInFlight = bucket.maxInFlight!
    folded.add(bucket)
  }
  const isKept = (bucket: ImportedBucket): boolean => !folded.has(bucket)
  return [routes.map(route => ({ ...route, buckets: route.buckets.filter(isKept) })), all.filter(isKept)]
}

function isSame(a: Target | undefined, b: Target): boolean {
  return a?.url === b.url && a.hostHeader === b.hostHeader
}

function mostFrequent(routes: readonly ImportedRoute[]): Target | undefined {
  const counts = new Map<string, { target: Target; count: number }>()
  for (const { target } of routes) {
    if (target === undefined) continue
    const entry = counts.get(JSON.stringify(target)) ?? { target, count: 0 }
    entry.count += 1
    counts.set(JSON.stringify(target), entry)
  }
  return [...counts.values()].sort((a, b) => b.count - a.count)[0]?.target
}

function tellOthers(blocks: readonly Directive[], notes: ImportNote[]): void {
  for (const { name, block, place } of blocks) {
    if (OTHERS.includes(name)) {
      const message = `"${name}" is not imported: shaper has nothing like it. Keep nginx behind shaper for it (--upstream)`
      notes.push({ place, message })
    }
    if (block !== undefined && name !== 'if') tellOthers(block, notes)
  }
}

/** Each note once, in the order of the files. */
function inOrder(notes: readonly ImportNote[]): ImportNote[] {
  const files = [...new Set(notes.map(({ place }) => place.file))]
  const once = [...new Map(notes.map(note => [JSON.stringify(note), note])).values()]
  return once.sort((a, b) => files.indexOf(a.place.file) - files.indexOf(b.place.file) || a.place.line - b.place.line)
}
