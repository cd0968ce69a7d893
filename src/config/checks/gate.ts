/** Checks of routes whose upstream is `"gate:"`. */
import { ownValue } from '../../core/structures/own-value.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { GATE } from '../schema/address.js'
import { isObject } from './partial-config.js'

const UPSTREAM = `"upstream": ${quote(GATE)}`

/** Looks at the file as written, so that this is reported together with all other errors. */
export function gateFaults(file: Record<string, unknown>): Finding[] {
  const { trustProxy = false, upstream, routes, listen } = file
  const list: unknown[] = Array.isArray(routes) ? routes : [{}]
  const own = list.flatMap((route, index) =>
    isObject(route) ? [{ route, path: ['routes', index], isGate: isGate(route.upstream ?? upstream) }] : [],
  )
  return [
    ...(own.some(({ isGate }) => isGate) && isNobody(trustProxy) ? [UNTRUSTED] : []),
    ...(isObject(listen) && listen.grpc !== undefined && !own.some(({ isGate }) => isGate) ? [NO_GATE] : []),
    ...own.flatMap(({ route, path, isGate }) => {
      if (isGate) return [...unseenBody(route.cost, path), ...unseenPage(route.waitingPage, path)]
      if (route.gate === undefined) return []
      return [{ path: [...path, 'gate'], message: `only goes with ${UPSTREAM}; add that, or remove this` }]
    }),
  ]
}

const UNTRUSTED: Finding = {
  path: ['trustProxy'],
  message: `a route has ${UPSTREAM}, and only from a trusted proxy is known which request it asks for; name the proxies, e.g. ["loopback", "10.0.0.0/8"]`,
}

const NO_GATE: Finding = {
  path: ['listen', 'grpc'],
  message: `no route has ${UPSTREAM}, and only those are asked by gRPC; add one, or remove this`,
}

function isGate(upstream: unknown): boolean {
  return upstream === GATE || (isObject(upstream) && upstream.url === GATE)
}

function isNobody(trustProxy: unknown): boolean {
  return trustProxy === false || trustProxy === 0 || (Array.isArray(trustProxy) && trustProxy.length === 0)
}

/** A page that no browser would get. */
function unseenPage(page: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(page)) return []
  const message = `a gate answers a proxy, and with ${UPSTREAM} no browser gets a page; remove it`
  return [{ path: [...path, 'waitingPage'], message }]
}

/** Costs in bodies, which do not come. */
function unseenBody(cost: unknown, path: PropertyKey[]): Finding[] {
  if (!isObject(cost) || !isObject(cost.buckets)) return []
  return Object.entries(cost.buckets).flatMap(([name, each]) => {
    if (!isObject(each)) return []
    const read = [...(typeof each.estimate === 'string' ? ['estimate'] : []), 'max', 'after']
    return read
      .filter(key => ownValue(each, key) !== undefined)
      .map(key => ({
        path: [...path, 'cost', 'buckets', name, key],
        message: `reads a body, and with ${UPSTREAM} none comes here; use a number, or a header with the cost`,
      }))
  })
}
