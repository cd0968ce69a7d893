import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { DEFAULT_LISTEN, formatListen, parseListen } from '../schema/address.js'
import { isObject } from './partial-config.js'
import { asAddress, readOrNothing } from './upstream-loop.js'

/** Finds an admin server on the address of the proxy. Port 0 takes any free one, so it is never the same. */
export function adminAddressFaults({ listen: given = DEFAULT_LISTEN, admin }: Record<string, unknown>): Finding[] {
  const proxy = readOrNothing(isObject(given) ? given.address : given, parseListen)
  const own = readOrNothing(isObject(admin) ? admin.listen : undefined, parseListen)
  if (proxy === undefined || own === undefined || own.port === 0) return []
  if (own.port !== proxy.port || asAddress(own.host) !== asAddress(proxy.host)) return []
  const message = `${quote(formatListen(own))} is also where the proxy listens ("listen": ${quote(formatListen(proxy))}); choose another port for one of them`
  return [{ path: ['admin', 'listen'], message }]
}
