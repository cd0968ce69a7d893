import { ownValue } from '../../core/structures/own-value.js'
import { quote } from '../messages.js'
import type { Finding } from '../problems.js'

export type Environment = Readonly<Record<string, string | undefined>>
/** What is left of a variable without braces, e.g. `$HOST`. */
const BARE = /\$([A-Z]\w*)/

/** Replaces `${NAME}`. An unset variable is a finding, as is `$NAME`: where it may be meant as text, a warning. */
export function substitute(raw: unknown, env: Environment) {
  const findings: Finding[] = []
  const warnings: Finding[] = []

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
  const fill = (text: string, path: readonly PropertyKey[]): string => {
    const name = bareName(text, path)
    if (name !== undefined) {
      findings.push({ path, message: `"$${name}" is not replaced; write "\${${name}}" for a variable` })
    } else if (BARE.test(text)) {
      // It may be a part of a secret, so it is not shown.
      const message = `"$" and a name are taken as text here; for a variable write "\${NAME}"`
      warnings.push({ path, message })
    }
    return text.replace(/\$\{([^}]*)\}/g, (reference, name: string) => {
      const value = ownValue(env, name)
      if (value === undefined) {
        const message = `environment variable ${quote(name)} is not set; set it or write the value here`
        findings.push({ path, message })
      }
      return value ?? reference
    })
  }

  return { value: visit(raw, []), findings, warnings }
}

/** The name of a variable that has no braces, where `$NAME` makes no sense as text. */
function bareName(text: string, path: readonly PropertyKey[]): string | undefined {
  if (isOfClients(text, path)) return undefined
  // A secret may have any text, so all of it has to be a name. That of a URL is its user or its password.
  const [, user, host = text] = /^[^:/?#]+:\/\/(.*)@([^@]*)$/s.exec(text) ?? []
  const wholes = [...(user?.split(':') ?? []), ...(isSecret(path) ? [host] : [])]
  const whole = wholes.map(each => /^\$([A-Z][A-Z0-9_]*)$/.exec(each)?.[1]).find(name => name !== undefined)
  return whole ?? (isSecret(path) ? undefined : BARE.exec(host)?.[1])
}

/** Text that is compared with what clients send. */
function isOfClients(text: string, path: readonly PropertyKey[]): boolean {
  const isMatched = path.includes('match') && (path.includes('path') || path.includes('header'))
  return isMatched || path.includes('tiers') || /^(?:query|cookie):/.test(text)
}

function isSecret(path: readonly PropertyKey[]): boolean {
  return path[0] === 'ticketKeys' || path.at(-1) === 'token'
}
