import { ownValue } from '../../core/structures/own-value.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'

export type Environment = Readonly<Record<string, string | undefined>>

/** Replaces every `${NAME}` inside a string by that environment variable. An unset variable is a finding. */
export function substitute(raw: unknown, env: Environment): { value: unknown; findings: Finding[] } {
  const findings: Finding[] = []

  const visit = (value: unknown, path: readonly PropertyKey[]): unknown => {
    if (typeof value === 'string') return fill(value, path)
    if (Array.isArray(value)) return value.map((element, index) => visit(element, [...path, index]))
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).flatMap(([key, inner]) => member(key, inner, [...path, key])))
  }
  const member = (key: string, inner: unknown, path: readonly PropertyKey[]): [string, unknown][] => {
    if (key !== '__proto__') return [[key, visit(inner, path)]]
    findings.push({ path, message: 'this word cannot be a key; use another' })
    return []
  }
  const fill = (text: string, path: readonly PropertyKey[]): string =>
    text.replace(/\$\{([^}]*)\}/g, (reference, name: string) => {
      const value = ownValue(env, name)
      if (value === undefined) {
        const message = `environment variable ${quote(name)} is not set; set it or write the value here`
        findings.push({ path, message })
      }
      return value ?? reference
    })

  return { value: visit(raw, []), findings }
}
