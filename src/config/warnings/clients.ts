/** Warns when the address cannot tell clients apart. */
import { formatListen, isLoopback } from '../schema/address.js'
import type { Settings } from '../settings.js'
import { usersOf, type Warning } from './key-scope.js'

export function clientWarnings(settings: Settings): Warning[] {
  const { buckets, routes, listen, trustProxy } = settings
  const byAddress = buckets.find(
    bucket => bucket.key.parts.some(({ kind }) => kind === 'ip') && usersOf(bucket, settings).length > 0,
  )
  const path = ['trustProxy']
  const chosen = routes.find(({ match }) => match.ip !== undefined)
  if (trustProxy === true && (chosen ?? byAddress) !== undefined) {
    const subject = chosen === undefined ? `bucket "${byAddress!.name}"` : `"match" of route "${chosen.name}"`
    const message = `with true clients can choose their own address for ${subject}, with a header X-Forwarded-For; list your proxies instead, e.g. ["loopback", "10.0.0.0/8"], or give their number`
    return [{ path, message }]
  }
  if (byAddress === undefined) return []
  const { name } = byAddress
  if (trustProxy !== false || !isLoopback(listen.host)) return []
  const everywhere = formatListen({ host: '0.0.0.0', port: listen.port })
  const message = `a hint: only this machine reaches ${listen.host}, so all clients have the same address and share bucket "${name}"; behind a proxy on this machine use ["loopback"], for clients on others "listen": "${everywhere}"`
  return [{ path, message }]
}
