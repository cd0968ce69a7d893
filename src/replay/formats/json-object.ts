import { isObject } from '../../config/checks/partial-config.js'

export type JsonObject = Record<string, unknown>

/** A string, or a number that is missing. */
const REPAIRED = /"(?:[^"\\]|\\.)*(?:"|\\?$)|:\s*(?:-\s*)?(?=[,}])/g

/** Parses a JSON object; undefined for any other text. */
export function readJsonObject(text: string): JsonObject | undefined {
  const object = parsed(text)
  if (object !== undefined) return object
  const changed = text.replace(REPAIRED, repaired)
  return changed === text ? undefined : parsed(changed)
}

function parsed(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

/** What nginx writes without `escape=json`: bytes as `\xC3`, and `-` or nothing for a number that it does not have. */
function repaired(text: string): string {
  if (text.startsWith(':')) return ':null'
  return text.replace(/(?:\\x[\dA-F]{2})+|\\./gi, escaped => {
    if (!escaped.startsWith('\\x')) return escaped
    return JSON.stringify(Buffer.from(escaped.replaceAll('\\x', ''), 'hex').toString()).slice(1, -1)
  })
}
