import { isObject } from '../../config/checks/partial-config.js'

export type JsonObject = Record<string, unknown>

/** What a text holds as JSON; undefined: no object. */
export function readJsonObject(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}
