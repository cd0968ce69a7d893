import { type Finding, isWithin } from './problems.js'

/**
 * Keys that are validated but whose part of the program is still to come, with `*` for any name or index: remove one to
 * make it available.
 */
const PENDING = ['admin']

/** Refuses what is written well but not there yet. `bad` are the findings so far: their values are not judged again. */
export function unavailable(raw: unknown, bad: readonly Finding[]): Finding[] {
  return PENDING.flatMap(pattern => places(raw, pattern.split('.'), []))
    .filter(path => !bad.some(finding => isWithin(finding.path, path)))
    .map(path => ({ path, message: 'not yet available; remove it' }))
}

function places(value: unknown, pattern: readonly string[], path: PropertyKey[]): PropertyKey[][] {
  const [step, ...rest] = pattern
  if (step === undefined) return [path]
  if (typeof value !== 'object' || value === null) return []
  if (step === '*') {
    return Object.entries(value).flatMap(([key, inner]) =>
      places(inner, rest, [...path, Array.isArray(value) ? Number(key) : key]),
    )
  }
  return Object.hasOwn(value, step) ? places((value as Record<string, unknown>)[step], rest, [...path, step]) : []
}
