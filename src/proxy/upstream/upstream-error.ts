import { ownValue } from '../../core/structures/own-value.js'
import { ProtocolError } from '../http/fields.js'
import { UNTAKEN } from '../http/http2.js'
import type { RequestFailure } from '../observe/observer.js'

/** Why a request got no answer from its upstream. Nothing has been written to its client. */
export interface Failure {
  readonly kind: 'failed'
  /** 403: the upstream may not be connected to. */
  readonly status: 403 | 408 | 502 | 504
  readonly detail: string
  readonly cause?: Error
  /** Nothing of the request has been sent: there was no connection. Its body is as it was. */
  readonly unconnected?: boolean
  /**
   * It may be sent again (RFC 9110 9.2.2). `idle`: idempotent and without a body, it may have met the close of an idle connection.
   * `elsewhere`: idempotent, and there are other servers.
   */
  readonly repeatable?: 'idle' | 'elsewhere' | undefined
  /** The upstream has not processed it. It may be sent again, whatever its method is, if its body is still there. */
  readonly untaken?: boolean
}

/** The code of the error where a name has no address that may be connected to. */
export const FORBIDDEN_ADDRESS = 'SHAPER_FORBIDDEN_ADDRESS'

/** The upstream has not been asked, and will not be. */
const FORBIDDEN =
  'the name has only addresses of this machine or of private networks; if that is meant, the operator can add the address itself to "egress": { "allow": [...] }'

const REASONS: Record<string, readonly [403 | 502 | 504, string]> = {
  [FORBIDDEN_ADDRESS]: [403, FORBIDDEN],
  ECONNREFUSED: [502, 'the upstream refused the connection'],
  // Of a Unix socket.
  ENOENT: [502, "the upstream's socket does not exist"],
  EACCES: [502, 'the upstream may not be connected to: this program needs write access to its socket'],
  ENOTFOUND: [502, "the upstream's name does not resolve"],
  EAI_AGAIN: [502, "the upstream's name does not resolve"],
  ETIMEDOUT: [504, 'the connection to the upstream was not established in time'],
  [UNTAKEN]: [502, 'the upstream did not take the request'],
}

/**
 * Codes of OpenSSL and Node for a certificate that is not trusted or not valid. Faults that Node has no code for, such as name
 * constraints and weak keys, are UNSPECIFIED. Alerts of the other side are ERR_SSL.
 */
const UNTRUSTED = /^(?!ERR_SSL).*(?:CERT|CRL|ISSUER|LEAF|INVALID_CA|INVALID_PURPOSE|PATH_LENGTH|HOSTNAME)|^UNSPECIFIED$/
/** A handshake that the other side, or its protocol, does not allow: alerts are from there. The first that fits counts. */
const REFUSED_HANDSHAKES: readonly (readonly [RegExp, detail: string])[] = [
  [/^ERR_SSL_(?:WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG)/, 'the upstream does not speak TLS'],
  [/^ERR_SSL_.*ALERT_NO_APPLICATION_PROTOCOL/, 'the upstream does not speak HTTP/2'],
  [/^ERR_SSL_.*ALERT.*(?:CERTIFICATE|CA$)/, 'the upstream wants a certificate from its clients'],
  [/^ERR_SSL_(?!.*INTERNAL_ERROR).*(?:ALERT|PROTOCOL)/, 'the upstream refused the TLS handshake'],
]
const OTHER_NAME = 'ERR_TLS_CERT_ALTNAME_INVALID'
const codeOf = (error: Error): string => (error as NodeJS.ErrnoException).code ?? ''

function refusedHandshake(code: string): string | undefined {
  return REFUSED_HANDSHAKES.find(([pattern]) => pattern.test(code))?.[1]
}

/** Whether the configuration is at fault: another try would not help, and the failure says nothing of the upstream's health. */
export function isMisconfigured({ status, cause }: { readonly status: number; readonly cause?: Error }): boolean {
  if (status === 403) return true
  const code = cause === undefined ? '' : codeOf(cause)
  return UNTRUSTED.test(code) || refusedHandshake(code) !== undefined
}

/** Whether the connection ended. The cause may be the close of an idle connection. */
export function isDisconnect(error: Error): boolean {
  const code = codeOf(error)
  return code === 'ECONNRESET' || code === 'EPIPE'
}

export function isUntaken(error: Error): boolean {
  return codeOf(error) === UNTAKEN
}

/** What the system said: of a name with several addresses about each of them, and of a certificate with the remedy. */
export function causeOf(error: Error): Error {
  const code = codeOf(error)
  let message: string
  if (error instanceof AggregateError) message = error.errors.map(each => (each as Error).message).join(', ')
  else if (refusedHandshake(code) !== undefined) message = `${error.message} (${refusedHandshake(code)})`
  else if (!UNTRUSTED.test(code) || code === 'CERT_HAS_EXPIRED') return error
  else if (code === OTHER_NAME)
    message = `${error.message}; if it is the right server, set a name of its certificate as tls.servername`
  else message = `${error.message}; if it is the right server, name a file with its authority in tls.ca`
  return Object.assign(new Error(message), code !== '' && { code })
}

export function failureText({ detail, cause }: RequestFailure): string {
  return cause === undefined ? detail : `${detail} (${cause.message})`
}

export function describeError(error: Error): readonly [403 | 502 | 504, string] {
  const cause = error instanceof AggregateError ? (error.errors[0] as Error) : error
  if (cause instanceof ProtocolError) return [502, `the upstream sent ${cause.message}`]
  const code = codeOf(cause)
  const reason = ownValue(REASONS, code)
  if (reason !== undefined) return reason
  if (code === OTHER_NAME) return [502, "the upstream's certificate is for another name"]
  if (UNTRUSTED.test(code)) return [502, "the upstream's certificate is not trusted"]
  const refused = refusedHandshake(code)
  if (refused !== undefined) return [502, refused]
  if (isDisconnect(cause)) return [502, 'the upstream closed the connection before it answered']
  return [502, 'the upstream could not be used']
}
