/** `upstream.adapt`: the targets that the rate of an upstream adapts to. */
import * as z from 'zod'
import type { AdaptiveTargets } from '../../core/adaptive/adaptive-rate.js'
import { wants } from '../messages.js'
import { maybe, object, rate, read, report, timeout } from './values.js'

const REMEDY = 'use e.g. { "min": "5/s", "max": "200/s", "latency": { "p90": "800ms" }, "errors": 0.02 }'
const LATENCY = 'use e.g. { "p90": "800ms" }'
const SHARE = 'use a number above 0 and below 1, e.g. 0.02'
const percentile = maybe(timeout)

const latency = object(
  {
    p50: percentile.describe('Half of the answers are to come within this time, e.g. "100ms".'),
    p90: percentile.describe('Nine in ten answers are to come within this time, e.g. "800ms".'),
    p95: percentile.describe('19 in 20 answers are to come within this time, e.g. "1s".'),
    p99: percentile.describe('99 in 100 answers are to come within this time, e.g. "2s".'),
  },
  LATENCY,
  'a percentile of the latency',
).superRefine((given, ctx) => {
  const names = Object.keys(given)
  if (names.length === 1) return
  const message = names.length === 0 ? `it names no percentile; ${LATENCY}` : `only one percentile counts; ${LATENCY}`
  ctx.issues.push({ code: 'custom', path: [], message, input: given })
})

const shareError = wants('a part of the requests', SHARE)

const targets = object(
  {
    min: rate.describe('The rate never falls below this, e.g. "5/s".'),
    max: rate.describe('The rate never climbs above this, e.g. "200/s".'),
    start: maybe(rate).describe('The first rate, e.g. "20/s"; min when absent.'),
    latency: maybe(latency).describe(
      'How long answers may take, e.g. { "p90": "800ms" }; as long as they like when absent.',
    ),
    errors: z
      .number({ error: shareError })
      .gt(0, { error: shareError })
      .lt(1, { error: shareError })
      .prefault(0.02)
      .describe('The part of the requests that may fail, e.g. 0.02.'),
  },
  REMEDY,
  'the targets of an adaptive rate',
).superRefine(({ min, max, start = min }, ctx) => {
  if (min > max) report(ctx, 'max', 'it is below "min"; raise it, or lower that one')
  else if (start < min || start > max)
    report(ctx, 'start', 'it is not between "min" and "max"; leave it out to start at "min"')
})

export const adapt = read(
  targets,
  ({ start, latency, ...given }): AdaptiveTargets => {
    const [[name, ms] = []] = Object.entries(latency ?? {})
    const part = name === undefined ? 0 : Number(name.slice(1)) / 100
    return { ...given, start: start ?? given.min, ...(ms !== undefined && { latency: { part, ms } }) }
  },
  ({ latency, ...given }) => {
    return { ...given, ...(latency && { latency: { [`p${Math.round(latency.part * 100)}`]: latency.ms } }) }
  },
)
