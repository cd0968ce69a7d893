/** Access control of the admin server. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'

/** The status of a refusal. */
export type AccessDenial = 401 | 403 | 421

export type Access = (req: IncomingMessage) => AccessDenial | undefined

/**
 * Checks requests to the admin server.
 *
 * With a token: requests need it as `Authorization: Bearer`. It is compared in constant time.
 *
 * Without one the address is loopback, and every program on the machine may ask. Pages of other sites in a browser on the
 * machine may not. They could send a plain form, or use a name of theirs that resolves to 127.0.0.1 (DNS rebinding).
 */
export function createAccess(token: string | undefined): Access {
  if (token === undefined) return accessWithout
  const expected = digest(token)
  return ({ headers: { authorization = '' } }) => {
    const [, sent = ''] = /^Bearer +(\S+) *$/i.exec(authorization) ?? []
    return timingSafeEqual(digest(sent), expected) ? undefined : 401
  }
}

/** Texts of any length become equally long, as `timingSafeEqual` needs it. */
function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

function accessWithout({ headers }: IncomingMessage): AccessDenial | undefined {
  const { host = '', origin } = headers
  if (!isOwnName(host)) return 421
  if (headers['sec-fetch-site'] === 'cross-site' || (origin !== undefined && origin !== `http://${host}`)) return 403
  return undefined
}

/** Whether the Host is an address or `localhost`. */
function isOwnName(host: string): boolean {
  return /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\])(?::\d+)?$/i.test(host)
}
