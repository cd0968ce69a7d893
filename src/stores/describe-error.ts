/** For the log: errors of the server and of the system, and in our words those of a client library. */
export function describeTrouble(error: Error): string {
  const { code, message } = error as NodeJS.ErrnoException
  const isOfServer = error.name === 'ReplyError' || 'severity' in error
  // A RangeError is ours: the answer cannot be read.
  if (isOfServer || code !== undefined || error instanceof RangeError) return message || code!
  return KNOWN.find(([text]) => text.test(message))?.[1] ?? 'the connection failed'
}

const REFUSAL =
  /\b(?:NOPERM|NOAUTH|WRONGPASS|READONLY|OOM|MISCONF|LOADING)\b|permission denied|authentication failed|pg_hba\.conf/

/** Whether a server answers and refuses: its user lacks rights, or is none, or it takes no writes. */
export function isRefusal(reason: string | undefined): boolean {
  return reason !== undefined && REFUSAL.test(reason)
}

const KNOWN: readonly [text: RegExp, meaning: string][] = [
  [/sentinel/i, 'no Sentinel tells of the master'],
  [/timeout/i, 'no answer'],
  [/closed|terminated|max retries|writeable/i, 'the connection was closed'],
  [/SSL/, 'the server offers no TLS'],
  [/SASL|password/, 'the server wants a password'],
]
