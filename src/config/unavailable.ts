import { type Finding, isWithin } from './problems.js'

interface Pending {
  /** Where, with `*` for any name or index. */
  readonly at: readonly string[]
  /** The value that works already, if any. */
  readonly works?: unknown
  /** What is not available, of a value that is otherwise good. */
  readonly what?: (value: never) => string
}

/** Keys that are validated but whose part of the program is still to come: remove a line to make it available. */
const PENDING: readonly Pending[] = [
  { at: ['store'], works: 'memory', what: (value: { type: string }) => `${value.type} is ` },
  { at: ['upstream.pauseOn', 'routes.*.upstream.pauseOn'] },
  { at: ['upstream.retry', 'routes.*.upstream.retry'] },
  { at: ['upstream.learn', 'routes.*.upstream.learn'] },
  { at: ['admin'] },
]

/** Refuses what is written well but not there yet. `bad` are the findings so far: their values are not judged again. */
export function unavailable(raw: unknown, bad: readonly Finding[]): Finding[] {
  return PENDING.flatMap(({ at, works, what }) =>
    at
      .flatMap(pattern => places(raw, pattern.split('.'), []))
      .filter(({ path, value }) => value !== works && !bad.some(finding => isWithin(finding.path, path)))
      .map(({ path, value }) => ({
        path,
        message: `${what?.(value as never) ?? ''}not yet available; ${works ? `use "${works}"` : 'remove it'}`,
      })),
  )
}

interface Place {
  path: PropertyKey[]
  value: unknown
}

function places(value: unknown, pattern: readonly string[], path: PropertyKey[]): Place[] {
  const [step, ...rest] = pattern
  if (step === undefined) return [{ path, value }]
  if (typeof value !== 'object' || value === null) return []
  if (step === '*') {
    return Object.entries(value).flatMap(([key, inner]) =>
      places(inner, rest, [...path, Array.isArray(value) ? Number(key) : key]),
    )
  }
  return Object.hasOwn(value, step) ? places((value as Record<string, unknown>)[step], rest, [...path, step]) : []
}
