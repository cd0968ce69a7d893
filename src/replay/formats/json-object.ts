import { isObject } from '../../config/checks/partial-config.js'

export type JsonObject = Record<string, unknown>

/** Parses a JSON object; undefined for any other text. */
export function readJsonObject(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}
