import { isDeepStrictEqual } from 'node:util'
import type { Settings } from '../settings.js'
import { effective } from './effective-config.js'

/** Values that may be credentials: keys of tiers, values of headers, and URLs. */
const SECRET = /\.tiers\[.*\]\.(keys|header)\b|\.match\.header\b|\.limits\.postgres\.url\b/

/** One line for each difference between two configurations, e.g. `buckets.client.rate: 10/s -> 5/s`. */
export function changes(before: Settings, after: Settings): string[] {
  const old = flatten(effective(before, 'clear'))
  const now = flatten(effective(after, 'clear'))
  const lines: string[] = []
  for (const path of new Set([...old.keys(), ...now.keys()])) {
    const [was, is] = [old.get(path), now.get(path)]
    if (was === is) continue
    if (SECRET.test(path)) {
      lines.push(`${path}: changed`)
      continue
    }
    lines.push(
      was === undefined ? `${path}: added, ${is}` : is === undefined ? `${path}: removed` : `${path}: ${was} -> ${is}`,
    )
  }
  const [kindBefore, kindAfter] = [kindOf(before), kindOf(after)]
  if (kindBefore !== kindAfter)
    return [`store: ${kindBefore} -> ${kindAfter}`, ...lines.filter(line => !/^store\b/.test(line))]
  const secrets: [path: string, text: string, was: unknown, is: unknown][] = [
    ['admin.token', 'another token', before.admin?.token, after.admin?.token],
    ['identity.jwt.secret', 'another secret', before.identity?.jwt.secret, after.identity?.jwt.secret],
    ['ticketKeys', 'other keys', before.ticketKeys, after.ticketKeys],
    ['store', 'another password', before.store, after.store],
  ]
  for (const [path, text, was, is] of secrets) {
    const isTold = lines.some(line => line.startsWith(path))
    if (!isTold && !isDeepStrictEqual(was, is)) lines.push(`${path}: ${text}`)
  }
  return lines
}

function kindOf({ store, levelsFile }: Settings): string {
  if (store !== 'memory') return store.type
  return levelsFile === undefined ? store : `memory, kept in ${levelsFile}`
}

/** Values by path. A rate is one value, also as a list by the time of day. List entries go by name, so that a removed route does not change the paths of those after it. */
function flatten(value: unknown, path = '', found = new Map<string, string>()): Map<string, string> {
  if (Array.isArray(value)) {
    if (path.endsWith('.rate')) {
      const entries = value.map(({ from, to, rate }) => (from === undefined ? rate : `${rate} from ${from} to ${to}`))
      return found.set(path, entries.join(', '))
    }
    if (value.every(item => typeof item !== 'object' || item === null)) return found.set(path, value.join(', '))
    for (const [index, item] of value.entries()) {
      const { name = index } = item as { name?: string }
      flatten(item, `${path}[${name}]`, found)
    }
    return found
  }
  if (typeof value !== 'object' || value === null) return found.set(path, String(value))
  for (const [key, inner] of Object.entries(value)) flatten(inner, path === '' ? key : `${path}.${key}`, found)
  return found
}
