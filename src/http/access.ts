/** Who may use a server that is meant for programs on the same machine, or for those with its token. */
import { createHash, timingSafeEqual } from 'node:crypto'

export function createTokenCheck(token: string): (sent: string) => boolean {
  const expected = digest(token)
  return sent => timingSafeEqual(digest(sent), expected)
}

/** Texts of any length become equally long, as `timingSafeEqual` needs it. */
function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

/** An address, or `localhost`. */
const OWN_NAME = /^(?:localhost|\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:.]+\])(?::\d+)?$/i

export interface PageHeaders {
  readonly host: string | undefined
  readonly origin: string | undefined
  readonly fetchSite: string | undefined
}

/**
 * Refuses requests of other sites' pages in a browser on the machine. They could send a plain form, or use a name of theirs
 * that resolves to 127.0.0.1 (DNS rebinding).
 *
 * @param scheme of the server
 * @returns the status of the refusal
 */
export function pageDenial(
  { host = '', origin, fetchSite }: PageHeaders,
  scheme: 'http' | 'https',
): 403 | 421 | undefined {
  if (!OWN_NAME.test(host)) return 421
  if (fetchSite === 'cross-site' || (origin !== undefined && origin !== `${scheme}://${host}`)) return 403
  return undefined
}
