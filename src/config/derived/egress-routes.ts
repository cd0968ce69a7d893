import { createHostMatcher } from '../../http/matching/wildcard.js'
import type { EgressSettings, RouteSettings, Settings } from '../settings.js'

/** An entry of `egress.allow` as origins of URLs. */
export interface Origins {
  /** Undefined on port 443. */
  readonly http: string | undefined
  /** Undefined on port 80. */
  readonly https: string | undefined
}

/** What is allowed, by `"host:port"`. */
export type EgressOrigins = ReadonlyMap<string, Origins>

export function originsOf(allow: EgressSettings['allow']): EgressOrigins {
  return new Map(
    allow.map(authority => {
      const http = authority.endsWith(':443') ? undefined : new URL(`http://${authority}`).origin
      const https = authority.endsWith(':80') ? undefined : new URL(`https://${authority}`).origin
      return [authority, { http, https }]
    }),
  )
}

/**
 * Makes a route for each allowed origin that a route leads to, with an upstream of its own. Those that an earlier route takes
 * whole are left out. So pools, gates, pauses and limits need to know nothing of egress. Routes of the same name share their
 * lanes' name, their buckets and what is learnt.
 */
export function withEgressRoutes(settings: Settings): Settings {
  const { egress } = settings
  if (egress === undefined) return settings
  const all = [...originsOf(egress.allow).values()]
  /** Those that no route has taken whole. */
  let origins = all.flatMap(({ http, https }) => [http, https].filter(origin => origin !== undefined))
  const routesOf = (route: RouteSettings): RouteSettings[] => {
    const leadsTo = createHostMatcher(route.match.host)
    const own = origins.filter(origin => leadsTo(new URL(origin).host))
    if (Object.keys(route.match).every(key => key === 'host')) origins = origins.filter(origin => !own.includes(origin))
    return own.map(origin => ({ ...route, origin, upstream: { ...route.upstream, url: origin } }))
  }
  return { ...settings, routes: settings.routes.flatMap(routesOf) }
}

export function routeKey({ name, origin }: Pick<RouteSettings, 'name' | 'origin'>): string {
  return origin === undefined ? name : `${name} ${origin}`
}
