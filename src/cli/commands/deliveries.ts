/** Stored requests: lists them, shows one, sends a dead letter again, or deletes one, through an admin server. */
import { ConfigError } from '../../config/load.js'
import { aligned, cellText } from '../text.js'
import { adminAddress, askAdmin } from './admin-client.js'

export type DeliveryVerb = 'list' | 'show' | 'retry' | 'delete'
const ID = /^[\w-]{22}$/
/** Characters of a text that an upstream may have chosen. */
const LONGEST = 100

export interface DeliveriesFlags {
  admin: string
  state?: string
  json?: boolean
}

interface Listed {
  readonly id: string
  readonly route: string
  readonly state: string
  readonly attempts: number
  readonly createdAt: string
  readonly error?: { readonly detail?: string }
}

/**
 * @throws ConfigError when `--admin` is no URL, or there is no id
 * @throws CommandError when the admin server does not answer, or refuses
 */
export async function runDeliveries(
  verb: DeliveryVerb,
  id: string | undefined,
  { admin, state, json = false }: DeliveriesFlags,
  { env, stdout }: { readonly env: NodeJS.ProcessEnv; readonly stdout: NodeJS.WritableStream },
): Promise<void> {
  const address = adminAddress(admin, env)
  const write = (value: object): void => void stdout.write(`${JSON.stringify(value, undefined, json ? 0 : 2)}\n`)
  if (verb === 'list') {
    const path = `/deliveries${state === undefined ? '' : `?state=${encodeURIComponent(state)}`}`
    const found = await askAdmin<{ deliveries: Listed[] }>(address, path, ({ deliveries }) => Array.isArray(deliveries))
    if (json) return write(found)
    const rows = found.deliveries.map(({ id, route, state, attempts, createdAt, error }) => {
      return [id, route, state, attempts, createdAt, cellText(error?.detail ?? '', LONGEST)]
    })
    return void stdout.write(
      `${aligned([['id', 'route', 'state', 'attempts', 'accepted', 'error'], ...rows]).join('\n')}\n`,
    )
  }
  if (id === undefined || !ID.test(id))
    throw new ConfigError([
      {
        path: verb,
        message: `needs the id of a delivery; use e.g. shaper deliveries ${verb} ID, with one of shaper deliveries list`,
      },
    ])
  const [method, path] = {
    show: ['GET', `/deliveries/${id}`],
    retry: ['POST', `/deliveries/${id}/retry`],
    delete: ['DELETE', `/deliveries/${id}`],
  }[verb] as [string, string]
  write(await askAdmin<{ id: string }>(address, path, answer => answer.id === id, { method }))
}
