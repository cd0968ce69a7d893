/** Translates undici's errors into answers. */

const REASONS: Record<string, readonly [502 | 504, string]> = {
  ECONNREFUSED: [502, 'the upstream refused the connection'],
  ENOTFOUND: [502, "the upstream's name does not resolve"],
  EAI_AGAIN: [502, "the upstream's name does not resolve"],
  ETIMEDOUT: [504, 'the connection to the upstream was not established in time'],
  UND_ERR_CONNECT_TIMEOUT: [504, 'the connection to the upstream was not established in time'],
  UND_ERR_HEADERS_OVERFLOW: [502, "the upstream's headers are too large"],
}

/** Whether the connection ended. The cause may be the close of an idle connection. */
export function isDisconnect(error: Error): boolean {
  const { code } = error as NodeJS.ErrnoException
  return code === 'UND_ERR_SOCKET' || code === 'ECONNRESET' || code === 'EPIPE'
}

/** The status and detail to answer. */
export function describeError(error: Error): readonly [502 | 504, string] {
  const cause = error instanceof AggregateError ? (error.errors[0] as Error) : error
  const { code = '' } = cause as NodeJS.ErrnoException
  if (REASONS[code] !== undefined) return REASONS[code]
  if (isDisconnect(cause)) return [502, 'the upstream closed the connection before it answered']
  return [502, 'the upstream could not be used, or its answer was not valid']
}
