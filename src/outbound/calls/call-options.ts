/** The options of one call, and their checks. */

import { quote, unknownKey } from '../../config/messages.js'
import { formatPath } from '../../config/problems.js'
import { duration } from '../../config/schema/values.js'
import { isCost } from '../options.js'
import { isSignal } from './abort-signals.js'

export interface CallOptions {
  /** Cost units that it adds to its bucket. Default 1. It holds the bucket for cost / rate. */
  readonly cost?: number
  /** Takes the call out of the queue and frees its place and cost. After the release the signal does nothing. */
  readonly signal?: AbortSignal
  /** `"10s"`, or ms. Default: the shaper's. */
  readonly maxWait?: string | number
}

/** Options after reading: ms. */
export interface CallSettings {
  readonly cost: number
  readonly signal: AbortSignal | undefined
  readonly maxWait: number | undefined
}

/** Every option of a call. */
export const CALL_OPTIONS = ['cost', 'signal', 'maxWait'] as const satisfies (keyof CallOptions)[]

const DEFAULTS: CallSettings = { cost: 1, signal: undefined, maxWait: undefined }

/** @throws TypeError or RangeError for invalid options */
export function readCallOptions(options: CallOptions | undefined): CallSettings {
  if (options === undefined) return DEFAULTS
  checkOptions(options, CALL_OPTIONS, '{ cost: 2 }')
  const { cost = 1, signal, maxWait } = options
  checkCost(cost)
  if (signal !== undefined && !isSignal(signal)) {
    throw new TypeError(`signal: ${quote(signal)} is no AbortSignal; use e.g. controller.signal`)
  }
  return { cost, signal, maxWait: maxWait === undefined ? undefined : readMs('maxWait', maxWait) }
}

/** @throws TypeError if `options` is no object; RangeError with one line for each unknown key */
export function checkOptions(options: unknown, known: readonly string[], example: string): void {
  if (typeof options !== 'object' || options === null) {
    throw new TypeError(`${quote(options)} is not a set of options; use e.g. ${example}`)
  }
  const given = options as Record<string, unknown>
  const unknown = Object.keys(given).filter(key => !known.includes(key) && given[key] !== undefined)
  if (unknown.length === 0) return
  throw new RangeError(unknown.map(key => `${formatPath([key])}: ${unknownKey(key, known)}`).join('\n'))
}

/** @throws TypeError */
export function checkKey(key: unknown): string {
  if (typeof key !== 'string') throw new TypeError(`key: ${quote(key)} is not a string; use e.g. "user_42"`)
  return key
}

/** @throws RangeError */
export function checkCost(cost: unknown): number {
  if (!isCost(cost)) throw new RangeError(`cost: ${quote(cost)} is not a finite number of units, 0 or more; use e.g. 1`)
  return cost
}

/**
 * Reads a duration: `"10s"`, or a number of ms.
 *
 * @returns ms
 * @throws RangeError
 */
export function readMs(name: string, input: unknown): number {
  if (typeof input === 'number' && input >= 0) return input
  const parsed = typeof input === 'string' ? duration.safeParse(input) : undefined
  if (parsed?.success) return parsed.data
  throw new RangeError(`${name}: ${quote(input)} is not a duration; use e.g. "10s", or a number of ms`)
}
