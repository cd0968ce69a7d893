/** Warns when the key `ip` cannot tell clients apart. */
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
    const message = `with true clients can choose their own address for bucket "${name}", with a header X-Forwarded-For; list your proxies instead, e.g. ["loopback", "10.0.0.0/8"], or give their number`
    return [{ path, message }]
  }
  if (trustProxy !== false || !isLoopback(listen.host)) return []
  const everywhere = formatListen({ host: '0.0.0.0', port: listen.port })
  const message = `a hint: only this machine reaches ${listen.host}, so all clients have the same address and share bucket "${name}"; behind a proxy on this machine use ["loopback"], for clients on others "listen": "${everywhere}"`
  return [{ path, message }]
}
