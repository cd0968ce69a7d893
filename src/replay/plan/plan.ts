/** What a replay is asked to do, and whether the limits can be tried by themselves. */

import { needsOf } from '../../config/header-needs.js'
import { ConfigError, type Problem } from '../../config/load.js'
import type { BucketSettings, RouteSettings, Settings } from '../../config/settings.js'
import type { FormatOptions } from '../formats/detect.js'
import type { LineParser } from '../formats/line-parser.js'
import type { Bound } from '../runs/bound-run.js'
import type { GridRequest } from './sweep-grid.js'

export interface ReplayLimits {
  readonly settings: Settings
  /** What is shown for them: the file, or the flags. */
  readonly name: string
  /** Given by flags alone: one bucket for each client and nothing else. */
  readonly plain: boolean
}

export interface Plan extends FormatOptions {
  readonly logs: readonly string[]
  readonly stdin: AsyncIterable<Buffer>
  readonly seed: number | undefined
  readonly limits: ReplayLimits
  /** Try many rates and capacities. */
  readonly sweep?: GridRequest
  /** Find the smallest of them that meet this. */
  readonly target?: readonly Bound[]
  readonly progress?: (bytes: number, lines: number) => void
}

/** One bucket that every request passes at one cost: what can be swept. */
export interface Single {
  readonly route: RouteSettings
  readonly bucket: BucketSettings
  readonly cost: number
}

/** Undefined: there is more to a request's way than one bucket. */
export function singleOf({ routes }: Settings): Single | undefined {
  const [route] = routes
  const [bucket] = route?.buckets ?? []
  if (route === undefined || bucket === undefined || routes.length > 1 || route.buckets.length > 1) return undefined
  const { match, mode, cost, maxWait } = route
  const { limits, tiers } = bucket
  const isPlain =
    Object.keys(match).length === 0 &&
    mode !== 'off' &&
    cost.kind === 'fixed' &&
    maxWait === Infinity &&
    tiers.length === 0 &&
    limits.blockFor === undefined &&
    (limits.overflow ?? 'reject') === 'reject'
  return isPlain ? { route, bucket, cost: cost.cost } : undefined
}

/** Whether it is one bucket for each address. */
export function isByAddress({ bucket }: Single): boolean {
  return bucket.key.parts.length === 1 && bucket.key.parts[0]!.kind === 'ip'
}

/**
 * What a log lacks of what the limits look at, a line each.
 *
 * @throws ConfigError where it lacks the key that a flag has named
 */
export function missingFields({ settings, plain }: ReplayLimits, parser: LineParser, log: string): string[] {
  const missing = needsOf(settings.routes).filter(({ name }) => !parser.has(name))
  if (plain && missing.length > 0) {
    throw new ConfigError(
      missing.map(({ name }): Problem => {
        const message = `${log} (${parser.format}) does not tell the ${fieldName(name)}; use --key ip, or log it`
        return { path: '--key', message }
      }),
    )
  }
  return missing.map(
    ({ name, by }) =>
      `${log} (${parser.format}) does not tell the ${fieldName(name)}, which ${by} looks at: as if no request had it`,
  )
}

function fieldName(name: string): string {
  return name === 'host' ? 'host' : `header ${JSON.stringify(name)}`
}
