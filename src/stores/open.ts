import type { StoreSettings } from '../config/settings.js'
import type { Clock } from '../core/clock.js'
import type { Store } from '../core/store.js'

/**
 * Opens the store, and does not wait until it answers.
 *
 * @throws (rejects with) Error if the client of such a store is not installed: users of the library alone install it themselves
 */
export async function openStore(
  settings: StoreSettings,
  clock: Clock,
  onError: (error: Error) => void,
): Promise<Store> {
  const { timeout } = settings
  if (settings.type === 'postgres') {
    const { createPostgresStore } = await import('./postgres/store.js').catch(notInstalled('pg'))
    const { url, table } = settings
    return createPostgresStore({ url, table, timeout, clock, onError })
  }
  const { createRedisStore } = await import('./redis/store.js').catch(notInstalled('ioredis'))
  const { url, cluster, prefix } = settings
  return createRedisStore({ ...(url !== undefined ? { url } : { cluster: cluster! }), prefix, timeout, clock, onError })
}

function notInstalled(client: string): (error: NodeJS.ErrnoException) => never {
  return error => {
    // Of `import`, and of `require`.
    const isMissing = error.code === 'ERR_MODULE_NOT_FOUND' || error.code === 'MODULE_NOT_FOUND'
    if (!isMissing || !error.message.includes(`'${client}'`)) throw error
    throw new Error(`the store needs the package ${client}; type: npm install ${client}`, { cause: error })
  }
}
