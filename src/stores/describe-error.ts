/**
 * Why a server cannot be asked, for the log. Errors of the server and of the system are passed on. A client library's own
 * errors name its options and states, which mean nothing to an operator of shaper.
 */
export function describeTrouble(error: Error): string {
  const { code, message } = error as NodeJS.ErrnoException
  const isOfServer = error.name === 'ReplyError' || 'severity' in error
  // A RangeError is ours: the answer cannot be read.
  if (isOfServer || code !== undefined || error instanceof RangeError) return message || code!
  return KNOWN.find(([text]) => text.test(message))?.[1] ?? 'the connection failed'
}

/** Whether a server answers and refuses: its user lacks rights, or is none. */
export function isRefusal(reason: string | undefined): boolean {
  return reason !== undefined && /\b(?:NOPERM|NOAUTH|WRONGPASS)\b|permission denied/.test(reason)
}

const KNOWN: readonly [text: RegExp, meaning: string][] = [
  [/sentinel/i, 'no Sentinel tells of the master'],
  [/timeout/i, 'no answer'],
  [/closed|terminated|max retries|writeable/i, 'the connection was closed'],
  [/SSL/, 'the server offers no TLS'],
  [/SASL|password/, 'the server wants a password'],
]
