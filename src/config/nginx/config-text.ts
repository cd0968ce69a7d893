/** Writes an imported configuration, with comments that say where each part comes from. */
import { escapeControls } from '../messages.js'
import type { MatchSettings } from '../settings.js'
import type { ImportedBucket } from './buckets.js'
import type { SourcePlace } from './directives.js'
import type { ImportedConfig, ImportedRoute } from './import-nginx.js'
import type { Target } from './upstreams.js'

export function configText(source: string, { listen, target, trustProxy, buckets, routes }: ImportedConfig): string {
  const parts = [
    `  "listen": ${inline(listen)}`,
    `  "upstream": ${inline(upstreamOf(target))}`,
    ...(trustProxy.length === 0 ? [] : [`  "trustProxy": ${inline(trustProxy)}`]),
    ...(buckets.length === 0 ? [] : [`  "buckets": {\n${buckets.map(bucketText).join(',\n')}\n  }`]),
    `  "routes": [\n${routes.map(routeText).join(',\n')}\n  ]`,
  ]
  return `// From ${escapeControls(source)}, by "shaper import".\n{\n${parts.join(',\n')}\n}\n`
}

function bucketText({ name, place, ...bucket }: ImportedBucket): string {
  const { key, rate, capacity, burst, maxInFlight, status } = bucket
  const value = { key, rate, capacity, burst, maxInFlight, ...(status !== 429 && { status }) }
  return `    ${comment(place)}\n    ${inline(name)}: ${inline(value)}`
}

function routeText({ match, mode, buckets, dryRun, target, title, place }: ImportedRoute): string {
  const value = {
    ...(Object.keys(match).length > 0 && { match: matchOf(match) }),
    mode: mode === 'refuse' ? 'off' : mode,
    ...(mode === 'refuse' && { refuse: true }),
    ...(buckets.length > 0 && { buckets: buckets.map(({ name }) => name) }),
    ...(dryRun && { dryRun }),
    ...(target !== undefined && { upstream: upstreamOf(target) }),
  }
  return `    ${comment(place, title)}\n    ${inline(value)}`
}

function matchOf({ path, normalise, method, host, header, ip }: MatchSettings): object {
  const one = (list: readonly string[] | undefined) => (list?.length === 1 ? list[0] : list)
  return { host, path, normalise, method: one(method), header, ip: one(ip) }
}

function upstreamOf({ url, servers, hostHeader, ...options }: Target): unknown {
  if (servers === undefined && hostHeader === 'preserve' && Object.keys(options).length === 0) return url
  const where = servers?.map(server => (Object.keys(server).length === 1 ? server.url : server))
  const { pick, breaker, ...rest } = options
  return {
    ...(where ? { servers: where, pick, breaker } : { url }),
    ...(hostHeader !== 'preserve' && { hostHeader }),
    ...rest,
  }
}

function comment({ file, line }: SourcePlace, title = ''): string {
  return `// ${escapeControls(`${file}:${line} ${title}`)}`.trimEnd()
}

function inline(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(inline).join(', ')}]`
  if (typeof value !== 'object' || value === null) return escapeControls(JSON.stringify(value))
  const members = Object.entries(value).filter(([, each]) => each !== undefined)
  return `{ ${members.map(([key, each]) => `${JSON.stringify(key)}: ${inline(each)}`).join(', ')} }`
}
