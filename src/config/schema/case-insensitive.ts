/** Objects with case-insensitive names as keys. */
import * as z from 'zod'
import { wantsSecret } from '../messages.js'
import { headerName } from '../read-values.js'

/** Header names, lower-cased, with their exact values. */
export function headers(noun: string, remedy: string) {
  return z
    .record(z.string(), z.string({ error: wantsSecret('a header value', 'use a string, e.g. "gold"') }), {
      error: wantsSecret(noun, remedy),
    })
    .transform((values, ctx) => renameKeys(values, headerName, ctx))
}

/** Renames every key. A key that `rename` refuses, or that becomes the same as another, is an issue. */
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

/** The part of zod's transform context that is used here. */
interface Issues {
  issues: { push(issue: { code: 'custom'; path: PropertyKey[]; message: string; input: unknown }): unknown }
}

/** Renames one key. A key that `rename` refuses stays as it is and is an issue. */
export function renameOrReport(value: string, rename: (value: string) => string, key: string, ctx: Issues): string {
  try {
    return rename(value)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    ctx.issues.push({ code: 'custom', path: [key], message: error.message, input: value })
    return value
  }
}
