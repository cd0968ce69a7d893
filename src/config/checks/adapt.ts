/** Checks of `upstream.adapt` that need other parts of the file. */
import { ADAPTIVE } from '../derived/adapted-upstreams.js'
import { quote } from '../messages.js'
import { type Finding, formatPath } from '../problems.js'
import { parseUpstreamUrl } from '../schema/address.js'
import { isObject } from './partial-config.js'
import { readOrNothing } from './upstream-loop.js'

/** Looks at the file as written, so that this is reported together with all other errors. */
export function adaptFaults(file: Record<string, unknown>): Finding[] {
  const { buckets, upstream, routes } = file
  const list: unknown[] = Array.isArray(routes) ? routes : []
  const adapted = [
    ...adaptOf(upstream, ['upstream']),
    ...list.flatMap((route, index) => (isObject(route) ? adaptOf(route.upstream, ['routes', index, 'upstream']) : [])),
  ]
  const findings: Finding[] = []
  if (isObject(buckets) && ADAPTIVE in buckets) {
    const message = `${quote(ADAPTIVE)} is the name of the bucket that "upstream.adapt" makes; use another name`
    findings.push({ path: ['buckets', ADAPTIVE], message })
  }
  for (const [index, { path, url, targets }] of adapted.entries()) {
    const first = adapted.slice(0, index).find(other => other.url === url)
    if (first === undefined || first.targets === targets) continue
    const message = `${quote(url)} has other targets at ${formatPath(first.path)}, and one rate for all routes to it; make them the same`
    findings.push({ path, message })
  }
  return findings
}

interface Adapted {
  readonly path: PropertyKey[]
  readonly url: string
  /** As JSON. */
  readonly targets: string
}

function adaptOf(upstream: unknown, path: PropertyKey[]): Adapted[] {
  if (!isObject(upstream) || upstream.adapt === undefined) return []
  const url = readOrNothing(upstream.url, parseUpstreamUrl)
  return url === undefined ? [] : [{ path: [...path, 'adapt'], url, targets: JSON.stringify(upstream.adapt) }]
}
