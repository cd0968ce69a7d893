import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { performance } from 'node:perf_hooks'
import { isDeepStrictEqual } from 'node:util'
import { readTlsFiles, type TlsFiles } from '../../config/checks/readable-files.js'
import { adaptedUpstreams } from '../../config/derived/adapted-upstreams.js'
import { routeKey } from '../../config/derived/egress-routes.js'
import type { RouteSettings, UpstreamSettings } from '../../config/settings.js'
import { AdaptiveLimit } from './adaptive-limit.js'
import { serversOf, Upstream, type UpstreamsOptions } from './upstream.js'
import { listensTo, UpstreamQuota } from './upstream-quota.js'

interface Prepared {
  /** By the `routeKey` of their route. */
  readonly byRoute: ReadonlyMap<string, Upstream>
  readonly delivering: ReadonlySet<Upstream>
  /** Those whose servers change. */
  readonly changed: ReadonlyMap<Upstream, UpstreamSettings>
  /** The new contents of the files of `tls` that changed. */
  readonly renewed: ReadonlyMap<Upstream, TlsFiles>
}

/**
 * All upstreams of a process. An upstream whose settings stay the same across a reload keeps its connections. One whose
 * settings change is replaced, and hands its limit on: its gate with the requests that wait at it, and its count of
 * connections. An upstream that is no longer in use is closed after its last request.
 */
export class Upstreams {
  readonly #options: UpstreamsOptions
  readonly #retired = new Set<Upstream>()
  #byRoute: ReadonlyMap<string, Upstream> = new Map()
  /** Those of routes with `deliver`. */
  #delivering: ReadonlySet<Upstream> = new Set()
  #echo: Promise<Echo> | undefined

  constructor(options: UpstreamsOptions) {
    this.#options = options
  }

  /** Finds or creates the upstreams for these routes. Changes nothing in use. @throws if a file of `tls` is bad */
  async prepare(routes: readonly Pick<RouteSettings, 'name' | 'origin' | 'upstream' | 'deliver'>[]): Promise<Prepared> {
    const { names } = this.#options
    names.forgetUnused()
    await Promise.all(
      routes.map(({ upstream }) => names.ask(serversOf(upstream, upstream.url), upstream.connectTimeout)),
    )
    const known = new Map([...this.#byRoute.values()].map(upstream => [JSON.stringify(upstream.settings), upstream]))
    const byRoute = new Map<string, Upstream>()
    const byKey = new Map<string, Upstream>()
    const delivering = new Set<Upstream>()
    const renewed = new Map<Upstream, TlsFiles>()
    const changed = new Map<Upstream, UpstreamSettings>()
    const stays = new Set(routes.map(({ upstream }) => JSON.stringify(upstream)))
    /** One of which only the servers change. */
    const findLike = (settings: UpstreamSettings): Upstream | undefined => {
      for (const [key, upstream] of known) {
        if (stays.has(key) || changed.has(upstream) || !upstream.canBecome(settings)) continue
        changed.set(upstream, settings)
        return upstream
      }
      return undefined
    }
    for (const route of routes) {
      const { upstream: settings } = route
      const key = JSON.stringify(settings)
      const url = await this.#urlOf(settings)
      const upstream =
        byKey.get(key) ?? known.get(key) ?? findLike(settings) ?? new Upstream(settings, url, this.#options)
      if (!byKey.has(key)) {
        const files = readTlsFiles(settings.tls)
        if (!isDeepStrictEqual(files, upstream.tlsFiles)) renewed.set(upstream, files)
      }
      byKey.set(key, upstream)
      byRoute.set(routeKey(route), upstream)
      if (route.deliver !== undefined) delivering.add(upstream)
    }
    return { byRoute, delivering, changed, renewed }
  }

  /** Replaces the current upstreams with prepared ones. After it wake the gates. */
  commit({ byRoute, delivering, changed, renewed }: Prepared): void {
    for (const [upstream, settings] of changed) upstream.change(settings)
    for (const [upstream, files] of renewed) upstream.renew(files)
    this.#handGatesOn(byRoute)
    const used = new Set(byRoute.values())
    for (const upstream of this.#byRoute.values()) if (!used.has(upstream)) this.#retired.add(upstream)
    this.#byRoute = byRoute
    this.#delivering = delivering
    for (const upstream of used) {
      this.#retired.delete(upstream)
      upstream.onUnused = undefined
    }
    this.#attachQuotas()
    this.#attachAdaptive()
    for (const upstream of this.#retired) {
      upstream.onUnused = () => this.#close(upstream)
      if (upstream.requests === 0) upstream.onUnused()
    }
  }

  /** The upstreams in use, and those that still have requests. */
  *[Symbol.iterator](): Generator<Upstream> {
    yield* new Set(this.#byRoute.values())
    yield* this.#retired
  }

  async close(): Promise<void> {
    const echo = await this.#echo
    const all = [...this]
    for (const { quota, gate } of all) quota?.detach(gate)
    for (const upstream of all) upstream.close()
    this.#options.names.close()
    await echo?.close()
  }

  /**
   * A new upstream takes over a gate that nobody uses any more, of an upstream with a server that it has, too: that of its route if it
   * can, else the first. So the order of those that wait, `maxInFlight` and `connections` hold across a reload. A gate that
   * is still in use is not shared: then the new upstream has its own, and its own connections.
   */
  #handGatesOn(byRoute: ReadonlyMap<string, Upstream>): void {
    const before = [...this]
    const free = new Set(before.map(({ gate }) => gate))
    const heirs = new Set(byRoute.values())
    for (const upstream of before) if (heirs.delete(upstream)) free.delete(upstream.gate)
    const take = (heir: Upstream, from: Upstream | undefined): void => {
      if (from === undefined || !heir.sharesServer(from) || !heirs.has(heir) || !free.delete(from.gate)) return
      heirs.delete(heir)
      for (const each of before) if (each.gate === from.gate) each.retire()
      heir.replace(from)
    }
    for (const [route, heir] of byRoute) take(heir, this.#byRoute.get(route))
    for (const heir of heirs) for (const from of before) take(heir, from)
  }

  #close(upstream: Upstream): void {
    const { gate, quota } = upstream
    this.#retired.delete(upstream)
    quota?.warming.delete(upstream)
    if (![...this].some(other => other.gate === gate)) quota?.detach(gate)
    upstream.close()
  }

  /** Keeps one quota for each URL, and each resource of it, whose limits are used. Routes to the same one share them. */
  #attachQuotas(): void {
    const nameOf = ({ url, settings: { resource } }: Upstream) => (resource === undefined ? url : `${url} ${resource}`)
    const all = [...this]
    const quotas = new Map(all.flatMap(each => (each.quota === undefined ? [] : [[nameOf(each), each.quota] as const])))
    for (const each of all) {
      const name = nameOf(each)
      const listens = listensTo(each.settings) || this.#delivering.has(each)
      if (listens && !quotas.has(name)) quotas.set(name, new UpstreamQuota(name))
    }
    for (const upstream of all) {
      upstream.quota = quotas.get(nameOf(upstream))
      const { quota } = upstream
      quota?.attach(upstream.gate)
      quota?.warming.add(upstream)
    }
  }

  /** Keeps one adaptive rate for each URL. All routes to it pass that, whether or not their own settings name it. */
  #attachAdaptive(): void {
    const { now, adapted, adaptiveFound, isShared } = this.#options
    const all = [...this]
    const known = new Map(
      all.flatMap(({ settings, adaptive }) => (adaptive ? [[settings.url, adaptive] as const] : [])),
    )
    const wanted = adaptedUpstreams([...this.#byRoute.values()].map(({ settings }) => settings))
    for (const [url, { name, targets }] of wanted) {
      const before = known.get(url)
      if (before !== undefined) before.configure(name, targets)
      else {
        const context = { now, isShared, changed: adapted, found: adaptiveFound }
        known.set(url, new AdaptiveLimit(name, targets, context))
      }
    }
    for (const upstream of all) {
      const { url } = upstream.settings
      upstream.adaptive = wanted.has(url) ? known.get(url) : undefined
    }
  }

  async #urlOf({ url }: UpstreamSettings): Promise<string> {
    if (url !== 'echo:') return url
    this.#echo ??= startEcho()
    return (await this.#echo).url
  }
}

interface Echo {
  readonly url: string
  close(): Promise<void>
}

/** Starts the built-in upstream (`"upstream": "echo:"`) on a free loopback port. */
async function startEcho(): Promise<Echo> {
  let count = 0
  let last: number | undefined
  const server = createServer((req, res) => {
    const now = performance.now()
    count += 1
    const since = last === undefined ? null : Math.round(now - last)
    last = now
    let bytes = 0
    req.on('data', (chunk: Buffer) => {
      bytes += chunk.length
    })
    req.on('end', () => {
      const answer = {
        request: count,
        msSincePrevious: since,
        method: req.method,
        path: req.url,
        bytes,
        headers: req.headers,
      }
      const body = `${JSON.stringify(answer)}\n`
      res.writeHead(200, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) })
      res.end(body)
    })
  })
  server.requestTimeout = 0
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    // Each worker has its own: with a shared port it would go with the worker that took the connection.
    server.listen({ port: 0, host: '127.0.0.1', exclusive: true }, resolve)
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
