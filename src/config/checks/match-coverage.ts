import type { MatchSettings } from '../settings.js'

/** Whether a route with the match `wide` takes every request that one with `narrow` would. Unsure is false. */
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
  // Spellings that requests are matched without are not compared.
  if (!wide.endsWith('*') || /%|\/[./]/.test(wide + narrow)) return false
  return narrow.startsWith(wide.slice(0, -1))
}

function coversMethods(wide: readonly string[] | undefined, narrow: readonly string[] | undefined): boolean {
  return wide === undefined || (narrow?.every(method => wide.includes(method)) ?? false)
}

/** A host without a port is that host on any port. */
function coversHost(wide: string | undefined, narrow: string | undefined): boolean {
  return wide === undefined || wide === narrow || wide === narrow?.replace(/:\d+$/, '')
}
