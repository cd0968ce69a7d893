/** Access control of the admin server. */
import type { IncomingMessage } from 'node:http'
import { createTokenCheck, pageDenial } from '../../http/access.js'

/** The status of a refusal. */
export type AccessDenial = 401 | 403 | 421

export type Access = (req: IncomingMessage) => AccessDenial | undefined

/**
 * Checks requests to the admin server.
 *
 * With a token: requests need it as `Authorization: Bearer`.
 *
 * Without one the address is loopback, and every program on the machine may ask. Pages of other sites may not.
 */
export function createAccess(token: string | undefined): Access {
  if (token === undefined) return accessWithout
  const isToken = createTokenCheck(token)
  return ({ headers: { authorization = '' } }) => {
    const [, sent = ''] = /^Bearer +(\S+) *$/i.exec(authorization) ?? []
    return isToken(sent) ? undefined : 401
  }
}

function accessWithout({ headers }: IncomingMessage): AccessDenial | undefined {
  const { host, origin } = headers
  return pageDenial({ host, origin, fetchSite: headers['sec-fetch-site'] as string | undefined }, 'http')
}
