import type { MatchSettings } from '../settings.js'

/** Whether the match `wide` accepts every request that `narrow` accepts. Unsure is false. */
export function covers(wide: MatchSettings, narrow: MatchSettings): boolean {
  return (
    coversPath(wide.path, narrow.path) &&
    coversMethods(wide.method, narrow.method) &&
    coversHost(wide.host, narrow.host) &&
    Object.entries(wide.header ?? {}).every(([name, value]) => narrow.header?.[name] === value)
  )
}

function coversPath(wide = '*', narrow = '*'): boolean {
  if (wide === narrow || wide === '*' || wide === '/*') return true
  // Paths are matched in normal form, so patterns with other spellings are not compared.
  if (!wide.endsWith('*') || /%|\/[./]/.test(wide + narrow)) return false
  return narrow.startsWith(wide.slice(0, -1))
}

function coversMethods(wide: readonly string[] | undefined, narrow: readonly string[] | undefined): boolean {
  return wide === undefined || (narrow?.every(method => wide.includes(method)) ?? false)
}

/** A host without a port covers that host on every port. */
function coversHost(wide: string | undefined, narrow: string | undefined): boolean {
  return wide === undefined || wide === narrow || wide === narrow?.replace(/:\d+$/, '')
}
