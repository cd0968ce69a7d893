/** Where Redis is, from URLs. */
import type { RedisOptions } from 'ioredis'

/** `name` says where it is, without passwords. */
export interface Address {
  readonly name: string
  readonly options: RedisOptions
}

const PORT = 6379
const SENTINEL_PORT = 26_379

/**
 * `redis://user:password@host:port/db`, `rediss://` for TLS (the certificate is verified), or
 * `redis+sentinel://user:password@host:port,host:port/NAME`, where user and password are the servers'.
 *
 * @throws TypeError that does not show the URL
 */
export function parseAddress(url: string): Address {
  const [, scheme = '', user = '', hosts = '', path = ''] =
    /^(rediss?(?:\+sentinel)?):\/\/(?:([^/?#]*)@)?([^/?#]+)(?:\/([^/?#]*))?(?:\?.*)?$/.exec(url) ?? []
  if (hosts === '') throw new TypeError('not a Redis URL; use e.g. "redis://127.0.0.1:6379"')
  const separator = user.indexOf(':')
  const username = decode(separator < 0 ? user : user.slice(0, separator))
  const password = separator < 0 ? '' : decode(user.slice(separator + 1))
  const common: RedisOptions = {
    ...(username !== '' && { username }),
    ...(password !== '' && { password }),
    ...(scheme.startsWith('rediss') && { tls: {} }),
  }
  if (!scheme.endsWith('+sentinel')) {
    const { host, port } = parseHost(hosts, PORT)
    const db = path === '' ? 0 : Number(path)
    return { name: `${host}:${port}`, options: { ...common, host, port, db } }
  }
  const sentinels = hosts.split(',').map(text => parseHost(text, SENTINEL_PORT))
  const tls = common.tls && { enableTLSForSentinelMode: true, sentinelTLS: {} }
  const name = decode(path)
  return { name: `${name} of Sentinel ${hosts}`, options: { ...common, ...tls, sentinels, name } }
}

/** `host:port`, `[::1]:port`; @throws TypeError */
function parseHost(text: string, defaultPort: number): { host: string; port: number } {
  const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d+))?$/.exec(text) ?? []
  const host = bracketed ?? plain
  if (host === undefined) throw new TypeError(`${JSON.stringify(text)} is not a host and port`)
  return { host, port: port === undefined ? defaultPort : Number(port) }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
