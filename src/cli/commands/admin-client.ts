/** Questions of commands to an admin server. */
import { once } from 'node:events'
import { type IncomingMessage, request } from 'node:http'
import { text as readText } from 'node:stream/consumers'
import { ConfigError } from '../../config/load.js'
import { faultOfSocketPath, socketPathOf } from '../../http/unix-socket.js'
import { CommandError } from '../command.js'
import { cellText } from '../text.js'

export interface AdminAddress {
  readonly admin: string
  readonly token: string | undefined
}

/** The most characters of a server's text in an error. */
const LONGEST_DETAIL = 200

/** The server that `--admin` names, and its token. @throws ConfigError */
export function adminAddress(named: string, { SHAPER_TOKEN: token }: NodeJS.ProcessEnv): AdminAddress {
  const admin = adminUrl(named)
  if (admin !== undefined) return { admin, token }
  throw new ConfigError([{ path: '--admin', message: `"${named}" is not a URL; use e.g. http://127.0.0.1:9090` }])
}

/** The URL that `--admin` names: a URL, host and port, or a Unix socket. Undefined: it is none. */
export function adminUrl(text: string): string | undefined {
  const path = socketPathOf(text)
  if (path !== undefined) return faultOfSocketPath(path) === undefined ? text : undefined
  const url = /^[a-z]+:\/\//i.test(text) ? text : `http://${text}`
  return URL.canParse(url) && /^https?:/i.test(url) ? url : undefined
}

/**
 * @param path with its query
 * @param timeout ms
 * @param isAnswer whether the answer is one of an admin server of shaper
 * @throws CommandError when the admin server does not answer, or refuses
 */
export async function askAdmin<Answer>(
  { admin, token }: AdminAddress,
  path: string,
  isAnswer: (answer: Partial<Answer>) => boolean,
  { method = 'GET', timeout = 5_000 } = {},
): Promise<Answer> {
  const socketPath = socketPathOf(admin)
  const url = new URL(path, socketPath === undefined ? admin : 'http://localhost')
  const where = socketPath === undefined ? url.origin : admin
  const headers: Record<string, string> = {
    ...(token !== undefined && { authorization: `Bearer ${token}` }),
    ...(method === 'POST' && { 'content-type': 'application/json' }),
  }
  if (token !== undefined && !/^[\x21-\x7e]+$/.test(token))
    throw new CommandError('SHAPER_TOKEN has characters that cannot be sent; set it to the token of the configuration')
  const init = { method, headers, signal: AbortSignal.timeout(timeout) }
  const asked = socketPath === undefined ? fetch(url, init) : fetchOver(socketPath, path, init)
  const answer = await asked.catch((error: Error) => {
    const { cause } = error as { cause?: { code?: string } }
    const reason = cause?.code ?? error.message
    throw new CommandError(
      `the admin server at ${where} does not answer (${reason}); start shaper with "admin" in its configuration, or name it with --admin URL`,
    )
  })
  if (answer.status === 401) {
    const fault =
      token === undefined
        ? 'wants a token; set SHAPER_TOKEN'
        : 'refuses the token in SHAPER_TOKEN; set it to the token of the configuration'
    throw new CommandError(`the admin server at ${where} ${fault}`)
  }
  if (!answer.ok)
    throw new CommandError(`the admin server at ${where} answers ${answer.status}${await detailOf(answer)}`)
  const said = ((await answer.json().catch(() => null)) ?? {}) as Partial<Answer>
  if (!isAnswer(said)) throw new CommandError(`${where} is not an admin server of shaper; name one with --admin URL`)
  return said as Answer
}

/** As `fetch`, which has no Unix sockets. */
async function fetchOver(
  socketPath: string,
  path: string,
  init: { method: string; headers: Record<string, string>; signal: AbortSignal },
): Promise<Response> {
  const [answer] = (await once(request({ socketPath, path, ...init }).end(), 'response')) as [IncomingMessage]
  return new Response(await readText(answer), { status: answer.statusCode! })
}

/** What a problem document (RFC 9457) says, as the end of a message. Empty: the answer is none. */
async function detailOf(answer: Response): Promise<string> {
  const { detail } = ((await answer.json().catch(() => null)) ?? {}) as { detail?: unknown }
  return typeof detail === 'string' ? `: ${cellText(detail, LONGEST_DETAIL)}` : ''
}
