import type { StoreSettings } from '../config/store-url.js'
import type { Clock } from '../core/clock.js'
import type { Store } from '../sharing/store.js'

interface Common {
  readonly clock: Clock
  /** ms */
  readonly timeout: number
  onError(error: Error): void
}

type Kind = StoreSettings['type']
type Open<K extends Kind> = (settings: Extract<StoreSettings, { type: K }>, common: Common) => Promise<Store>

/** Each kind of store: the package that it needs, and how it is opened. */
const KINDS: { readonly [K in Kind]: readonly [client: string, open: Open<K>] } = {
  redis: [
    'ioredis',
    async (settings, common) => (await import('./redis/store.js')).createRedisStore({ ...settings, ...common }),
  ],
  postgres: [
    'pg',
    async (settings, common) => (await import('./postgres/store.js')).createPostgresStore({ ...settings, ...common }),
  ],
}

/** Opens the store without waiting for its answer. @throws (rejects with) Error: its client is not installed */
export async function openStore(
  settings: StoreSettings,
  clock: Clock,
  onError: (error: Error) => void,
): Promise<Store> {
  const [client, open] = KINDS[settings.type] as readonly [string, Open<Kind>]
  try {
    return await open(settings as never, { clock, timeout: settings.timeout, onError })
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    // Of `import`, and of `require`.
    const isMissing = code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND'
    if (!isMissing || !message.includes(`'${client}'`)) throw error
    throw new Error(`the store needs the package ${client}; type: npm install ${client}`, { cause: error })
  }
}
