/** Changes of overrides, as `PUT /buckets/NAME/KEY` asks for them. */
import { isObject } from '../../config/checks/partial-config.js'
import { nearest, quote } from '../../config/messages.js'
import { parseDuration, parseRate } from '../../core/units.js'
import type { Override } from '../../sharing/board.js'
import type { OverrideState } from './key-state.js'

/** `wrong`: no request can have this key, or its bucket cannot have these limits. `absent`: it was to end, and there is none. `full`: there are as many as there may be. */
export type OverrideAnswer =
  | { readonly status: 'set'; readonly override: OverrideState }
  | { readonly status: 'wrong'; readonly detail: string }
  | { readonly status: 'ended' | 'absent' | 'full' }

const FIELDS = ['rate', 'capacity', 'until']
/** Matches an ISO time with its zone. Without one it would be that of the server. */
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)$/
const EXAMPLE = 'use e.g. { "rate": "50/s", "capacity": 100, "until": "30m" }'
/** Ten years, in ms. */
const LONGEST = 3_652 * 86_400_000

/** Reads the body of a PUT: other limits of a key, or with `endsIn` 0 none any more. @param wall ms since 1970. @throws RangeError that says what is wrong and what to do */
export function readOverrideChange(bucket: string, key: string, body: string, wall: number): Override {
  const fields = readObject(body)
  const unknown = Object.keys(fields).find(name => !FIELDS.includes(name))
  if (unknown !== undefined) {
    const near = nearest(unknown, FIELDS)
    throw new RangeError(
      `${quote(unknown)} is not known; ${near === undefined ? EXAMPLE : `did you mean ${quote(near)}?`}`,
    )
  }
  const { rate, capacity, until } = fields
  if (until === undefined) throw new RangeError('"until" is missing: a time, a duration or "now"; use e.g. "30m"')
  const endsIn = readUntil(until, wall)
  if (endsIn === 0) {
    if (rate !== undefined || capacity !== undefined)
      throw new RangeError('"until": "now" ends an override; leave "rate" and "capacity" out')
    return { bucket, key, endsIn }
  }
  if (rate === undefined && capacity === undefined)
    throw new RangeError(`"rate" and "capacity" are missing; ${EXAMPLE}`)
  return {
    ...{ bucket, key, endsIn, until: wall + endsIn },
    ...(rate !== undefined && { rate: readRate(rate) }),
    ...(capacity !== undefined && { capacity: readCapacity(capacity) }),
  }
}

function readObject(body: string): Record<string, unknown> {
  let value: unknown
  try {
    value = JSON.parse(body)
  } catch {
    throw new RangeError(`the body is not JSON; ${EXAMPLE}`)
  }
  if (!isObject(value)) throw new RangeError(`the body is not a JSON object; ${EXAMPLE}`)
  return value
}

function readRate(rate: unknown): number {
  if (typeof rate === 'string' || typeof rate === 'number') return named('rate', () => parseRate(rate))
  throw new RangeError(`rate: ${JSON.stringify(rate)} is not a rate; use e.g. "50/s"`)
}

function readCapacity(capacity: unknown): number {
  if (typeof capacity === 'number' && capacity > 0 && capacity < Infinity) return capacity
  throw new RangeError(`capacity: ${JSON.stringify(capacity)} is not a number of cost units above 0; use e.g. 100`)
}

/** ms from now. 0: it ends now. */
function readUntil(until: unknown, wall: number): number {
  if (until === 'now') return 0
  const given = JSON.stringify(until)
  if (typeof until !== 'string')
    throw new RangeError(`until: ${given} is not a text; use e.g. "30m" or "2030-01-31T18:00:00Z"`)
  const isTime = /^\d{4}-/.test(until)
  if (isTime && !(ISO_TIME.test(until) && isDay(until) && Number.isFinite(Date.parse(until))))
    throw new RangeError(`until: ${given} is not a time with its zone; use e.g. "2030-01-31T18:00:00Z"`)
  const endsIn = isTime ? Date.parse(until) - wall : named('until', () => parseDuration(until))
  if (endsIn <= 0)
    throw new RangeError(`until: ${given} ${isTime ? 'has passed' : 'is no time'}; "now" ends an override`)
  if (endsIn > LONGEST)
    throw new RangeError(`until: ${given} is more than ten years ahead; change the configuration instead`)
  return endsIn
}

function isDay(time: string): boolean {
  const day = time.slice(0, 10)
  const parsed = Date.parse(`${day}T00:00:00Z`)
  return Number.isFinite(parsed) && new Date(parsed).toISOString().startsWith(day)
}

/** Errors begin with the name of the field. */
function named(field: string, read: () => number): number {
  try {
    return read()
  } catch (error) {
    throw new RangeError(`${field}: ${(error as Error).message}`)
  }
}
