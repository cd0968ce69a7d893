import type { StoreSettings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import type { Store } from '../core/store.js'

/** Opens the store, and does not wait until it answers. */
export async function openStore(
  settings: StoreSettings,
  clock: Clock,
  onError: (error: Error) => void,
): Promise<Store> {
  const { timeout } = settings
  if (settings.type === 'postgres') {
    const { createPostgresStore } = await import('./postgres/store.js')
    const { url, table } = settings
    return createPostgresStore({ url, table, timeout, clock, onError })
  }
  const { createRedisStore } = await import('./redis/store.js')
  const { url, cluster, prefix } = settings
  return createRedisStore({ ...(url !== undefined ? { url } : { cluster: cluster! }), prefix, timeout, clock, onError })
}
