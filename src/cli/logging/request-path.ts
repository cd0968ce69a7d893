/** In characters. */
const LONGEST_PATH = 512
const PLAIN_PATH = /^\/(?!https?\/)/

/** The path of a request for logs and traces: without its query and without a password. */
export function withoutQuery(target: string): string {
  const query = target.indexOf('?')
  const path = query < 0 ? target : target.slice(0, query)
  // A path has a fragment or a password only where it begins as one to a base URL.
  const clean = PLAIN_PATH.test(path) ? path : path.replace(/#.*$/s, '').replace(/^(\/?https?:?\/+)?[^/]*@/i, '$1***@')
  return clean.length > LONGEST_PATH ? clean.slice(0, LONGEST_PATH) : clean
}
