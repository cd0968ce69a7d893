import { isObject } from '../../config/checks/partial-config.js'

export type Tree = Record<string, unknown>

/** What a text holds as JSON; undefined: no object. */
export function readTree(text: string): Tree | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}
