/** Translates errors of upstream connections into answers. */
import { ownValue } from '../../core/structures/own-value.js'
import { ProtocolError } from '../http1/fields.js'
import type { RequestFailure } from '../observe/observer.js'

/** The code of the error where a name has no address that may be connected to. */
export const FORBIDDEN_ADDRESS = 'SHAPER_FORBIDDEN_ADDRESS'

/** The upstream has not been asked, and will not be. */
const FORBIDDEN =
  'the name has only addresses of this machine or of private networks; if that is meant, the operator can add the address itself to "egress": { "allow": [...] }'

const REASONS: Record<string, readonly [403 | 502 | 504, string]> = {
  [FORBIDDEN_ADDRESS]: [403, FORBIDDEN],
  ECONNREFUSED: [502, 'the upstream refused the connection'],
  ENOTFOUND: [502, "the upstream's name does not resolve"],
  EAI_AGAIN: [502, "the upstream's name does not resolve"],
  ETIMEDOUT: [504, 'the connection to the upstream was not established in time'],
}

/** Whether the connection ended. The cause may be the close of an idle connection. */
export function isDisconnect(error: Error): boolean {
  const { code } = error as NodeJS.ErrnoException
  return code === 'ECONNRESET' || code === 'EPIPE'
}

/** What the system said: of a name with several addresses about each of them. */
export function causeOf(error: Error): Error {
  if (!(error instanceof AggregateError)) return error
  const { code } = error as NodeJS.ErrnoException
  return Object.assign(new Error(error.errors.map(each => (each as Error).message).join(', ')), code && { code })
}

/** A failure as one text, for operators. */
export function failureText({ detail, cause }: RequestFailure): string {
  return cause === undefined ? detail : `${detail} (${cause.message})`
}

/** The status and detail to answer. */
export function describeError(error: Error): readonly [403 | 502 | 504, string] {
  const cause = error instanceof AggregateError ? (error.errors[0] as Error) : error
  if (cause instanceof ProtocolError) return [502, `the upstream sent ${cause.message}`]
  const { code = '' } = cause as NodeJS.ErrnoException
  const reason = ownValue(REASONS, code)
  if (reason !== undefined) return reason
  if (isDisconnect(cause)) return [502, 'the upstream closed the connection before it answered']
  return [502, 'the upstream could not be used']
}
