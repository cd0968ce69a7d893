/** Objects whose keys are names that come in any case, or need checking. */
import * as z from 'zod'
import { wants } from '../messages.js'
import { headerName } from './values.js'

/** Header names, which become lower-cased, and the exact value of each. */
export function headers(noun: string, remedy: string) {
  return z
    .record(z.string(), z.string({ error: wants('a header value', 'use a string, e.g. "gold"') }), {
      error: wants(noun, remedy),
    })
    .transform((values, ctx) => renameKeys(values, headerName, ctx))
}

/** Renames every key; a key that cannot be renamed, or twice to the same, is an issue at that key. */
export function renameKeys<T>(
  values: Record<string, T>,
  rename: (key: string) => string,
  ctx: Issues,
): Record<string, T> {
  const entries = Object.entries(values).map(([key, value]) => [renameOrReport(key, rename, key, ctx), value] as const)
  const names = entries.map(([key]) => key)
  Object.keys(values).forEach((key, index) => {
    if (names.indexOf(names[index]!) < index) {
      ctx.issues.push({
        code: 'custom',
        path: [key],
        message: 'given twice in different cases; remove one',
        input: key,
      })
    }
  })
  return Object.fromEntries(entries)
}

/** As much of a transform's context as is needed here. */
interface Issues {
  issues: { push(issue: { code: 'custom'; path: PropertyKey[]; message: string; input: unknown }): unknown }
}

/** Renames one key; where `rename` refuses it, it stays and there is an issue. */
export function renameOrReport(value: string, rename: (value: string) => string, key: string, ctx: Issues): string {
  try {
    return rename(value)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    ctx.issues.push({ code: 'custom', path: [key], message: error.message, input: value })
    return value
  }
}
