/** Questions of commands to an admin server. */
import { CommandError } from '../command-error.js'
import { cellText } from '../top/text.js'

export interface AdminAddress {
  /** The URL of the admin server. */
  readonly admin: string
  readonly token: string | undefined
}

/** The most characters of a server's text in an error. */
const LONGEST_DETAIL = 200

/** The URL that `--admin` names: a URL, or host and port. Undefined: it is neither. */
export function adminUrl(text: string): string | undefined {
  const url = /^[a-z]+:\/\//i.test(text) ? text : `http://${text}`
  return URL.canParse(url) && /^https?:/i.test(url) ? url : undefined
}

/**
 * The answer to a question.
 *
 * @param path with its query
 * @param isAnswer whether the answer is one of an admin server of shaper
 * @throws CommandError when the admin server does not answer, or refuses
 */
export async function askAdmin<Answer>(
  { admin, token }: AdminAddress,
  path: string,
  isAnswer: (answer: Partial<Answer>) => boolean,
): Promise<Answer> {
  const url = new URL(path, admin)
  const headers = token === undefined ? {} : { authorization: `Bearer ${token}` }
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
    throw new CommandError('SHAPER_TOKEN has characters that cannot be sent; set it to the token of the configuration')
  }
  const answer = await fetch(url, { headers, signal: AbortSignal.timeout(5_000) }).catch((error: Error) => {
    const { cause } = error as { cause?: { code?: string } }
    const reason = cause?.code ?? error.message
    throw new CommandError(
      `the admin server at ${url.origin} does not answer (${reason}); start shaper with "admin" in its configuration, or name it with --admin URL`,
    )
  })
  if (answer.status === 401) {
    const fault =
      token === undefined
        ? 'wants a token; set SHAPER_TOKEN'
        : 'refuses the token in SHAPER_TOKEN; set it to the token of the configuration'
    throw new CommandError(`the admin server at ${url.origin} ${fault}`)
  }
  if (!answer.ok)
    throw new CommandError(`the admin server at ${url.origin} answers ${answer.status}${await detailOf(answer)}`)
  const said = ((await answer.json().catch(() => null)) ?? {}) as Partial<Answer>
  if (!isAnswer(said))
    throw new CommandError(`${url.origin} is not an admin server of shaper; name one with --admin URL`)
  return said as Answer
}

/** What a problem document (RFC 9457) says, as the end of a message. Empty: the answer is none. */
async function detailOf(answer: Response): Promise<string> {
  const { detail } = ((await answer.json().catch(() => null)) ?? {}) as { detail?: unknown }
  return typeof detail === 'string' ? `: ${cellText(detail, LONGEST_DETAIL)}` : ''
}
