import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { DEFAULT_LISTEN, formatListen, parseListen } from '../schema/address.js'
import { isObject } from './partial-config.js'
import { asAddress, readOrNothing } from './upstream-loop.js'

/** Finds two servers on one address: the proxy, gRPC and the admin server. Port 0 takes any free one, so it is never the same. */
export function adminAddressFaults({ listen: given = DEFAULT_LISTEN, admin }: Record<string, unknown>): Finding[] {
  const proxy = readOrNothing(isObject(given) ? given.address : given, parseListen)
  const grpc = readOrNothing(isObject(given) ? given.grpc : undefined, parseListen)
  const own = readOrNothing(isObject(admin) ? admin.listen : undefined, parseListen)
  return [
    ...sameAddress(own, ['admin', 'listen'], { what: 'the proxy listens ("listen"', at: proxy }),
    ...sameAddress(own, ['admin', 'listen'], { what: 'gRPC is served ("listen.grpc"', at: grpc }),
    ...sameAddress(grpc, ['listen', 'grpc'], { what: 'the proxy listens ("listen"', at: proxy }),
  ]
}

type Address = ReturnType<typeof parseListen>

function sameAddress(
  own: Address | undefined,
  path: PropertyKey[],
  { what, at }: { what: string; at: Address | undefined },
): Finding[] {
  if (at === undefined || own === undefined || own.port === 0) return []
  if (own.port !== at.port || asAddress(own.host) !== asAddress(at.host)) return []
  const message = `${quote(formatListen(own))} is also where ${what}: ${quote(formatListen(at))}); choose another port for one of them`
  return [{ path, message }]
}
