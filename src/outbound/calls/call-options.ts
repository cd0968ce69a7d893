/** The options of one call, and their checks. */

import { either, quote } from '../../config/messages.js'
import { quotaOf } from '../../config/periods.js'
import { formatPath } from '../../config/problems.js'
import { DEFAULT_PRIORITY, LAST_PRIORITY } from '../../core/priority.js'
import type { Cost } from '../../core/queue/lane.js'
import { ownValue } from '../../core/structures/own-value.js'
import { isCost } from '../../decider/costs.js'
import { durationOf, unknownOption } from '../option-reader.js'
import type { CostOf, Costs } from '../options.js'
import { isSignal } from './abort-signals.js'

/** Options of one call. */
export interface CallOptions<Name extends string = string> {
  /**
   * Cost units that it adds to its bucket, which it holds for cost / rate. Default 1. Where there are several buckets: in each of them,
   * or by their names. One that is not named costs 1.
   */
  readonly cost?: CostOf<Name>
  /** Takes the call out of the queue and frees its place and cost. After the release it aborts the signal of a run. */
  readonly signal?: AbortSignal
  /** `"10s"`, or ms. Default: the shaper's. */
  readonly maxWait?: string | number
  /** 0 to 7: of the calls of a key lower numbers go first. Default 3. */
  readonly priority?: number
  /** Stands for the call in events. */
  readonly id?: string
}

/** Options of one call whose function the shaper runs. */
export interface RunOptions<Name extends string = string> extends CallOptions<Name> {
  /**
   * How long one try of the function may take: `"30s"`, or ms. Then the run fails with TimeoutError, its place is free, and the
   * signal of the function is aborted. Default: no bound.
   */
  readonly timeout?: string | number
}

/** Options after reading: ms. */
export interface CallSettings extends Cost {
  readonly signal: AbortSignal | undefined
  readonly maxWait: number | undefined
  readonly priority: number
  readonly id: string | undefined
}

interface RunSettings extends CallSettings {
  readonly timeout: number | undefined
}

/** The names of the buckets of a shaper. Undefined: there is only one. */
export type BucketNames = readonly string[] | undefined
const CALL_OPTIONS = ['cost', 'signal', 'maxWait', 'priority', 'id'] as const satisfies (keyof CallOptions)[]
export const RUN_OPTIONS = [...CALL_OPTIONS, 'timeout'] as const satisfies (keyof RunOptions)[]

const DEFAULTS: RunSettings = {
  cost: 1,
  signal: undefined,
  maxWait: undefined,
  priority: DEFAULT_PRIORITY,
  id: undefined,
  timeout: undefined,
}

/** @throws TypeError or RangeError for invalid options */
export function readCallOptions(options: CallOptions | undefined, names: BucketNames): CallSettings {
  if (options === undefined) return DEFAULTS
  checkOptions(options, CALL_OPTIONS, '{ cost: 2 }')
  return settingsOf(options, names)
}

/** @throws TypeError or RangeError for invalid options */
export function readRunOptions(options: RunOptions | undefined, names: BucketNames): RunSettings {
  if (options === undefined) return DEFAULTS
  checkOptions(options, RUN_OPTIONS, '{ cost: 2 }')
  const { timeout } = options
  const settings = settingsOf(options, names)
  const ms = timeout === undefined ? undefined : readMs('timeout', timeout)
  if (ms === 0) throw new RangeError('timeout: 0 lets no function end; use e.g. "30s"')
  return { ...settings, timeout: ms }
}

function settingsOf({ cost = 1, signal, maxWait, priority, id }: CallOptions, names: BucketNames): CallSettings {
  const costs = readCost(cost, names)
  if (signal !== undefined && !isSignal(signal))
    throw new TypeError(`signal: ${quote(signal)} is no AbortSignal; use e.g. controller.signal`)
  if (priority !== undefined && !(Number.isInteger(priority) && priority >= 0 && priority <= LAST_PRIORITY)) {
    throw new RangeError(
      `priority: ${quote(priority)} is not a priority; use a whole number from 0 (first) to 7 (last)`,
    )
  }
  if (id !== undefined && typeof id !== 'string')
    throw new TypeError(`id: ${quote(id)} is not a string; use e.g. "report-17"`)
  return {
    ...costs,
    ...{ signal, id, priority: priority ?? DEFAULT_PRIORITY },
    maxWait: maxWait === undefined ? undefined : readMs('maxWait', maxWait),
  }
}

/** @throws TypeError if `options` is no object; RangeError with one line for each unknown key */
export function checkOptions(options: unknown, known: readonly string[], example: string): void {
  if (typeof options !== 'object' || options === null)
    throw new TypeError(`${quote(options)} is not a set of options; use e.g. ${example}`)
  const unknown = Object.entries(options).filter(([key, value]) => !known.includes(key) && value !== undefined)
  if (unknown.length === 0) return
  throw new RangeError(unknown.map(([key]) => `${formatPath([key])}: ${unknownOption(key, known)}`).join('\n'))
}

/** @throws TypeError */
export function checkKey(key: unknown): string {
  if (typeof key === 'object' && key !== null)
    throw new TypeError('key: an object is not a string; options come last: e.g. admit("user_42", { cost: 2 })')
  if (typeof key !== 'string') throw new TypeError(`key: ${quote(key)} is not a string; use e.g. "user_42"`)
  return key
}

/** Of the only bucket, of each of several, or by their names. @throws RangeError */
export function readCost(cost: unknown, names: BucketNames): Cost {
  if (typeof cost !== 'object' || cost === null) return { cost: checkCost(cost) }
  const costs = readCosts(cost, names, 'cost')
  // What paces a quota counts as the quota does.
  const all = names!.map(name => ownValue(costs, name) ?? ownValue(costs, quotaOf(name) ?? name) ?? 1)
  return { cost: all.at(-1)!, costs: all }
}

/** Costs by the names of buckets. @throws RangeError */
export function readCosts(costs: object, names: BucketNames, path: string): Costs {
  if (names === undefined) throw new RangeError(`${path}: there is only one bucket; use a number, e.g. 1`)
  for (const [name, cost] of Object.entries(costs)) {
    if (!names.includes(name)) throw new RangeError(`${path}.${name}: there is no such bucket; use ${either(names)}`)
    if (cost !== undefined) checkCost(cost, `${path}.${name}`)
  }
  return costs as Costs
}

/** @throws RangeError */
export function checkCost(cost: unknown, path = 'cost'): number {
  if (!isCost(cost))
    throw new RangeError(`${path}: ${quote(cost)} is not a finite number of units, 0 or more; use e.g. 1`)
  return cost
}

/** `"10s"`, or a number of ms. @throws RangeError */
export function readMs(name: string, input: unknown): number {
  try {
    return durationOf(input)
  } catch (error) {
    throw new RangeError(`${name}: ${(error as Error).message}`)
  }
}
