import { readAuthorities } from '../../config/checks/readable-files.js'
import type { UpstreamSettings } from '../../config/settings.js'
import type { Clock } from '../../core/clock.js'
import { type Echo, startEcho } from './echo.js'
import { createUpstream, type Upstream } from './upstream.js'
import { listensTo, UpstreamQuota } from './upstream-quota.js'

/** Upstreams for new settings, not in use yet. */
export interface Prepared {
  readonly found: ReadonlyMap<UpstreamSettings, Upstream>
  /** The new contents of `tls.ca` files that changed. */
  readonly authorities: ReadonlyMap<Upstream, Buffer>
}

/**
 * All upstreams of a process. An upstream whose settings stay the same across a reload keeps its connections, its gate
 * and the requests that wait at it. An upstream that is no longer named is closed after its last request.
 */
export class Upstreams {
  readonly #clock: Clock
  readonly #known = new Map<string, Upstream>()
  readonly #retired = new Set<Upstream>()
  #echo: Promise<Echo> | undefined

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Finds or creates the upstreams for these settings. Changes nothing in use.
   *
   * @throws if the file of `tls.ca` cannot be read or is bad
   */
  async prepare(list: readonly UpstreamSettings[]): Promise<Prepared> {
    const found = new Map<UpstreamSettings, Upstream>()
    const byKey = new Map<string, Upstream>()
    const authorities = new Map<Upstream, Buffer>()
    for (const settings of list) {
      const key = JSON.stringify(settings)
      const url = await this.#urlOf(settings)
      const upstream = byKey.get(key) ?? this.#known.get(key) ?? createUpstream(settings, url, this.#clock)
      if (upstream.ca !== undefined && !byKey.has(key)) {
        const ca = readAuthorities(settings.tls.ca!)
        if (!ca.equals(upstream.ca)) authorities.set(upstream, ca)
      }
      byKey.set(key, upstream)
      found.set(settings, upstream)
    }
    return { found, authorities }
  }

  /** Replaces the current upstreams with prepared ones. */
  commit({ found, authorities }: Prepared): void {
    for (const [upstream, ca] of authorities) upstream.trust(ca)
    const used = new Set(found.values())
    for (const upstream of this.#known.values()) if (!used.has(upstream)) this.#retired.add(upstream)
    this.#known.clear()
    for (const [settings, upstream] of found) {
      this.#known.set(JSON.stringify(settings), upstream)
      this.#retired.delete(upstream)
    }
    this.#attachQuotas()
    for (const upstream of this.#known.values()) upstream.onUnused = undefined
    for (const upstream of this.#retired) {
      upstream.onUnused = () => {
        this.#retired.delete(upstream)
        void upstream.close()
      }
      if (upstream.requests === 0) upstream.onUnused()
    }
  }

  /** The upstreams in use, and those that still have requests. */
  *[Symbol.iterator](): Generator<Upstream> {
    yield* this.#known.values()
    yield* this.#retired
  }

  async close(): Promise<void> {
    const echo = await this.#echo
    await Promise.all([...[...this].map(upstream => upstream.close()), echo?.close()])
  }

  /** Keeps one quota for each URL whose limits are used. Routes to the same URL share them. */
  #attachQuotas(): void {
    const all = [...this]
    const quotas = new Map(all.flatMap(({ url, quota }) => (quota === undefined ? [] : [[url, quota] as const])))
    for (const { settings, url } of all) {
      if (listensTo(settings) && !quotas.has(url)) quotas.set(url, new UpstreamQuota(url))
    }
    for (const upstream of all) {
      upstream.quota = quotas.get(upstream.url)
      upstream.quota?.attach(upstream.gate)
    }
  }

  async #urlOf({ url }: UpstreamSettings): Promise<string> {
    if (url !== 'echo:') return url
    this.#echo ??= startEcho()
    return (await this.#echo).url
  }
}
