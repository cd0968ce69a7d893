import { keyPartsOf, needsOf } from '../../config/derived/header-needs.js'
import { ConfigError, type Problem } from '../../config/load.js'
import { formatKeyPart } from '../../config/schema/key.js'
import type { BucketSettings, RouteSettings, Settings } from '../../config/settings.js'
import type { FieldNames, FieldUse } from '../formats/format-names.js'
import type { LineParser } from '../formats/line-parser.js'
import type { ArrivalsOptions } from '../input/arrivals.js'
import { STDIN } from '../input/log-files.js'
import type { Bound, Point } from '../runs/level-rows.js'
import type { GridRequest } from './sweep-grid.js'

export interface ReplayLimits {
  readonly settings: Settings
  /** The name in reports: the file, or `the flags`. */
  readonly name: string
  /** True if the limits come from flags alone. They are then a single bucket. */
  readonly plain: boolean
  /** No rate was given: a sweep or a target looks for one. */
  readonly sought?: true
}

export interface Plan extends Omit<ArrivalsOptions, 'directory' | 'begin' | 'onServiceTime'> {
  readonly limits: ReplayLimits
  /** Try all rates and capacities of a grid. */
  readonly sweep?: GridRequest
  /** Find the smallest rate and capacity that keep these bounds. */
  readonly target?: readonly Bound[]
  /** How long clients wait for their answers, in ms. */
  readonly patience?: number
}

export interface Single {
  readonly route: RouteSettings
  readonly bucket: BucketSettings
  readonly cost: number
}

/** The single bucket of a configuration. Undefined if anything but this bucket affects a request. */
export function singleOf({ routes }: Settings): Single | undefined {
  const [route] = routes
  const [bucket] = route?.buckets ?? []
  if (route === undefined || bucket === undefined || routes.length > 1 || route.buckets.length > 1) return undefined
  const { match, mode, cost, maxWait, patience, deliver } = route
  const { key, limits, tiers, outside } = bucket
  const isPlain =
    Object.keys(match).length === 0 &&
    mode !== 'off' &&
    deliver === undefined &&
    cost.kind === 'fixed' &&
    maxWait === Infinity &&
    (mode === 'meter' || typeof patience !== 'number') &&
    tiers.length === 0 &&
    outside === undefined &&
    key.missing !== 'skip' &&
    bucket.schedule === undefined &&
    bucket.quota === undefined &&
    limits.blockFor === undefined &&
    (limits.overflow ?? 'reject') === 'reject'
  return isPlain ? { route, bucket, cost: cost.cost } : undefined
}

export function limitsAt(limits: ReplayLimits, { route, bucket }: Single, { rate, capacity }: Point): ReplayLimits {
  const other = { ...bucket, rate, capacity, limits: { ...bucket.limits, rate, capacity } }
  return { ...limits, settings: { ...limits.settings, routes: [{ ...route, buckets: [other] }] } }
}

export function isByAddress({ bucket }: Single): boolean {
  return bucket.key.parts.length === 1 && bucket.key.parts[0]!.kind === 'ip'
}

/**
 * Checks each log against the limits as it is opened.
 *
 * @returns `notes`: what logs lack; `begin` throws ConfigError where a log lacks what a flag names
 */
export function createLogChecks(fields: FieldNames, ...all: readonly ReplayLimits[]) {
  const notes = new Set<string>()
  for (const limits of all) {
    for (const note of storingNotes(limits)) notes.add(all.length > 1 ? `${limits.name}: ${note}` : note)
  }
  const begin = (parser: LineParser, log: string): void => {
    const name = log === STDIN ? 'standard input' : log
    checkFields(fields, parser, name)
    for (const limits of all) {
      const about = all.length > 1 ? `${limits.name}: ` : ''
      for (const missing of missingFields(limits, parser, name)) notes.add(`${about}${missing}`)
    }
  }
  return { notes, begin }
}

function storingNotes({ settings }: ReplayLimits): string[] {
  return settings.routes.flatMap(({ name, deliver }) => {
    if (deliver === undefined) return []
    if (deliver.when === 'always') return [`route "${name}" stores requests (deliver), so their waits have no bound`]
    return [
      `route "${name}" stores requests whose clients ask for it; a log does not tell which, so none is taken as stored`,
    ]
  })
}

/** Keys from certificates, tokens and bodies. */
const UNLOGGED = /^(?:cert$|jwt:|body:)/

/**
 * One line for each field that the limits use and the log does not have.
 *
 * @throws ConfigError for a missing field that a flag names
 */
function missingFields({ settings, plain }: ReplayLimits, parser: LineParser, log: string): string[] {
  const missing = needsOf(settings.routes).filter(({ name }) => !parser.has(name))
  if (plain && missing.length > 0) {
    throw new ConfigError(
      missing.map(({ name }): Problem => {
        const message = `${log} (${parser.format}) does not contain the ${fieldName(name)}; use --key ip, or add it to the log`
        return { path: '--key', message }
      }),
    )
  }
  const inLog = `${log} (${parser.format})`
  const unlogged = [...new Set(keyPartsOf(settings.routes).map(formatKeyPart))].filter(part => UNLOGGED.test(part))
  return [
    ...missing.map(
      ({ name, by }) =>
        `${inLog} does not contain the ${fieldName(name)}, which ${by} needs; no request counts as having it`,
    ),
    ...unlogged.map(part => `no log has what the key "${part}" is made of; no request counts as having it`),
  ]
}

/** @throws ConfigError for a field of `--field` that has no effect on this log */
function checkFields(fields: FieldNames, parser: LineParser, log: string): void {
  const unused = (Object.keys(fields) as FieldUse[]).filter(use => !parser.takes(use))
  if (unused.length === 0) return
  throw new ConfigError(
    unused.map((use): Problem => {
      const message = `${use}=${fields[use]} has no effect on ${log} (${parser.format}); it is for JSON and W3C, and in combined ip=x_forwarded_for is a quoted field with addresses after the user agent; leave it out`
      return { path: '--field', message }
    }),
  )
}

function fieldName(name: string): string {
  return name === 'host' ? 'host' : `header ${JSON.stringify(name)}`
}
