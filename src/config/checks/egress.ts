import { quote } from '../messages.js'
import type { Finding } from '../problems.js'
import { DEFAULT_LISTEN, formatListen, isLoopback, parseListen } from '../schema/address.js'
import { isObject } from './partial-config.js'
import { readOrNothing } from './upstream-loop.js'

/** Checks a file that is used with `--egress`. */
export function egressFaults({ egress, listen: given = DEFAULT_LISTEN }: Record<string, unknown>): Finding[] {
  if (egress === undefined) {
    const message = 'the file does not say where requests may go; add "egress": { "allow": ["api.example.com:443"] }'
    return [{ path: ['--egress'], message }]
  }
  const listen = readOrNothing(isObject(given) ? given.address : given, parseListen)
  if (listen === undefined || isLoopback(listen.host) || !isObject(egress) || 'token' in egress) return []
  const where = quote(formatListen(listen))
  const message = `other machines can reach ${where}, so a token is needed; set "egress": { "token": "\${SHAPER_TOKEN}" }, or listen on 127.0.0.1`
  return [{ path: ['egress', 'token'], message }]
}
