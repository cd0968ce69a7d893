import { readAuthorities } from '../../config/checks/readable-files.js'
import { adaptedUpstreams } from '../../config/derived/adapted-upstreams.js'
import { routeKey } from '../../config/derived/egress-routes.js'
import type { RouteSettings, UpstreamSettings } from '../../config/settings.js'
import { AdaptiveLimit } from './adaptive-limit.js'
import { type Echo, startEcho } from './echo.js'
import { createUpstream, type Upstream, type UpstreamsOptions } from './upstream.js'
import { listensTo, UpstreamQuota } from './upstream-quota.js'

/** Upstreams for new settings, not in use yet. */
export interface Prepared {
  /** By the `routeKey` of their route. */
  readonly byRoute: ReadonlyMap<string, Upstream>
  /** The new contents of `tls.ca` files that changed. */
  readonly authorities: ReadonlyMap<Upstream, Buffer>
}

/**
 * All upstreams of a process. An upstream whose settings stay the same across a reload keeps its connections. One whose
 * settings change is replaced, and hands its limit on: its gate with the requests that wait at it, and its count of
 * connections. An upstream that is no longer in use is closed after its last request.
 */
export class Upstreams {
  readonly #options: UpstreamsOptions
  readonly #retired = new Set<Upstream>()
  /** The upstreams in use, by the `routeKey` of their route. */
  #byRoute: ReadonlyMap<string, Upstream> = new Map()
  #echo: Promise<Echo> | undefined

  constructor(options: UpstreamsOptions) {
    this.#options = options
  }

  /**
   * Finds or creates the upstreams for these routes. Changes nothing in use.
   *
   * @throws if the file of `tls.ca` cannot be read or is bad
   */
  async prepare(routes: readonly Pick<RouteSettings, 'name' | 'origin' | 'upstream'>[]): Promise<Prepared> {
    const known = new Map([...this.#byRoute.values()].map(upstream => [JSON.stringify(upstream.settings), upstream]))
    const byRoute = new Map<string, Upstream>()
    const byKey = new Map<string, Upstream>()
    const authorities = new Map<Upstream, Buffer>()
    for (const route of routes) {
      const { upstream: settings } = route
      const key = JSON.stringify(settings)
      const url = await this.#urlOf(settings)
      const upstream = byKey.get(key) ?? known.get(key) ?? createUpstream(settings, url, this.#options)
      if (upstream.ca !== undefined && !byKey.has(key)) {
        const ca = readAuthorities(settings.tls.ca!)
        if (!ca.equals(upstream.ca)) authorities.set(upstream, ca)
      }
      byKey.set(key, upstream)
      byRoute.set(routeKey(route), upstream)
    }
    return { byRoute, authorities }
  }

  /** Replaces the current upstreams with prepared ones. After it wake the gates. */
  commit({ byRoute, authorities }: Prepared): void {
    for (const [upstream, ca] of authorities) upstream.trust(ca)
    this.#handGatesOn(byRoute)
    const used = new Set(byRoute.values())
    for (const upstream of this.#byRoute.values()) if (!used.has(upstream)) this.#retired.add(upstream)
    this.#byRoute = byRoute
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
    await echo?.close()
  }

  /**
   * A new upstream takes over a gate that nobody uses any more, of an upstream with the same URL: that of its route if it
   * can, else the first. So the order of those that wait, `maxInFlight` and `connections` hold across a reload. A gate that
   * is still in use is not shared: then the new upstream has its own, and its own connections.
   */
  #handGatesOn(byRoute: ReadonlyMap<string, Upstream>): void {
    const before = [...this]
    const free = new Set(before.map(({ gate }) => gate))
    const heirs = new Set(byRoute.values())
    for (const upstream of before) if (heirs.delete(upstream)) free.delete(upstream.gate)
    const take = (heir: Upstream, from: Upstream | undefined): void => {
      if (from === undefined || from.url !== heir.url || !heirs.has(heir) || !free.delete(from.gate)) return
      heirs.delete(heir)
      for (const { gate, breaker } of before) if (gate === from.gate) breaker?.retire()
      heir.replace(from)
    }
    for (const [route, heir] of byRoute) take(heir, this.#byRoute.get(route))
    for (const heir of heirs) for (const from of before) take(heir, from)
  }

  #close(upstream: Upstream): void {
    const { gate, quota, warmUp } = upstream
    this.#retired.delete(upstream)
    if (warmUp !== undefined) quota?.warmUps.delete(warmUp)
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
      if (listensTo(each.settings) && !quotas.has(name)) quotas.set(name, new UpstreamQuota(name))
    }
    for (const upstream of all) {
      upstream.quota = quotas.get(nameOf(upstream))
      const { quota, warmUp } = upstream
      quota?.attach(upstream.gate)
      if (warmUp !== undefined) quota?.warmUps.add(warmUp)
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
