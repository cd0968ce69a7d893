/** Warnings about settings that change their meaning with a shared store. */
import type { Settings } from '../settings.js'
import { usersOf, type Warning } from './key-scope.js'

export function storeWarnings(settings: Settings): Warning[] {
  if (settings.store === 'memory') return []
  return [...fairAmongOwn(settings), ...ownInFlight(settings)]
}

function fairAmongOwn(settings: Settings): Warning[] {
  return settings.buckets.flatMap(bucket => {
    if (bucket.limits.overflow !== 'fair' || !usersOf(bucket, settings).some(({ mode }) => mode === 'shape')) return []
    const message =
      'a hint: with a shared store "fair" makes room only among requests of the same instance, and rejects when requests of others fill the bucket; send each client to one instance, or use "reject"'
    return [{ path: ['buckets', bucket.name, 'overflow'], message }]
  })
}

/** Reported once for each URL. */
function ownInFlight({ routes }: Settings): Warning[] {
  const [common] = routes
  const reported = new Set<string>()
  return routes.flatMap(({ upstream }, index) => {
    const { url, maxInFlight, connections = Infinity } = upstream
    if (Math.min(maxInFlight, connections) === Infinity || reported.has(url)) return []
    reported.add(url)
    const path = [...(upstream === common?.upstream ? [] : ['routes', index]), 'upstream']
    const hint = (key: string, many: string) => ({
      path: [...path, key],
      message: `a hint: each program counts its own, so N programs have up to N x ${many}; divide it by how many programs there are; workers of one program divide it themselves`,
    })
    return [
      ...(maxInFlight < Infinity ? [hint('maxInFlight', `${maxInFlight} requests in flight`)] : []),
      ...(connections < Infinity ? [hint('connections', `${connections} connections`)] : []),
    ]
  })
}
