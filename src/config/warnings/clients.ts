/** Whether the key `ip` can tell clients apart at all. */
import { formatListen, isLoopback } from '../schema/address.js'
import type { Settings } from '../settings.js'
import { usersOf, type Warning } from './key-scope.js'

export function clientWarnings(settings: Settings): Warning[] {
  const { buckets, listen, trustProxy } = settings
  const byAddress = buckets.find(
    bucket => bucket.key.parts.some(({ kind }) => kind === 'ip') && usersOf(bucket, settings).length > 0,
  )
  if (byAddress === undefined) return []
  const path = ['trustProxy']
  const { name } = byAddress
  if (trustProxy === true) {
    const message = `with true anyone can choose the address that bucket "${name}" goes by, with a header X-Forwarded-For; list your proxies instead, e.g. ["loopback", "10.0.0.0/8"], or say how many there are`
    return [{ path, message }]
  }
  if (trustProxy !== false || !isLoopback(listen.host)) return []
  const everywhere = formatListen({ host: '0.0.0.0', port: listen.port })
  const message = `a hint: only this machine reaches ${listen.host}, so all who come have one address and bucket "${name}" is one for all; behind a proxy here use ["loopback"], for clients elsewhere "listen": "${everywhere}"`
  return [{ path, message }]
}
