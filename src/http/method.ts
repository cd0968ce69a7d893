/**
 * What may be a method: a token (RFC 9110 9.1) that begins with a letter and has none in lower case. Some servers read `get` as
 * `GET`, so a limit on `GET` would not hold for it. nginx refuses it, too.
 */
export const METHOD = /^[A-Z][A-Z0-9!#$%&'*+\-.^_`|~]*$/

const SAFE: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'])

/** Whether a request with this method is never stored to be delivered later: it asks for an answer, or is a stream. */
export function isAnsweredAtOnce(method: string): boolean {
  return SAFE.has(method)
}
