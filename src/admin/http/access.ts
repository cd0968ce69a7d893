/** Who may ask the admin server what. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'

/** Why not: the status to answer. */
export type AccessDenial = 401 | 403 | 421

export type Access = (req: IncomingMessage) => AccessDenial | undefined

/**
 * With a token: who sends it as `Authorization: Bearer`, compared in constant time. Without: whoever reaches the address,
 * which is the machine's own; but not a page of another site in somebody's browser, which a name that resolves to
 * 127.0.0.1 (DNS rebinding) or a plain form would let in.
 */
export function createAccess(token: string | undefined): Access {
  if (token === undefined) return accessWithout
  const expected = digest(token)
  return ({ headers: { authorization = '' } }) => {
    const [, sent = ''] = /^Bearer +(\S+) *$/i.exec(authorization) ?? []
    return timingSafeEqual(digest(sent), expected) ? undefined : 401
  }
}

/** Of one length, whatever the text. */
function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

function accessWithout({ headers }: IncomingMessage): AccessDenial | undefined {
  const { host = '', origin } = headers
  if (!isOwnName(host)) return 421
  if (headers['sec-fetch-site'] === 'cross-site' || (origin !== undefined && origin !== `http://${host}`)) return 403
  return undefined
}

/** An address, or the name of the machine itself. */
function isOwnName(host: string): boolean {
  return /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\])(?::\d+)?$/i.test(host)
}
