/** The periods of quotas: hours, days and months of the calendar of a time zone. The zone says when summer time begins and ends. */
import type { QuotaPeriod } from '../core/bucket/limits.js'
import { keptIn } from '../core/structures/maps.js'

/** ms */
const HOUR = 3_600_000
const DAY = 24 * HOUR

export const PERIODS = ['hour', 'day', 'month'] as const

/** How a quota counts. */
export interface QuotaSettings {
  readonly per: (typeof PERIODS)[number]
  /** IANA */
  readonly timeZone: string
  /** What is left is paced. */
  readonly spread: boolean
}

/** ms. Of a period that is not known yet. */
export const LENGTHS = { hour: HOUR, day: DAY, month: 30 * DAY } as const
/** How many cost units may wait for a quota that is spread. */
export const DEFAULT_SPREAD = 10
/** What the bucket that paces a quota is called, behind the name of the quota. */
export const PACE = '.pace'

/** The quota that a bucket of this name would pace. Undefined: it is not such a name. */
export function quotaOf(name: string): string | undefined {
  return name.endsWith(PACE) ? name.slice(0, -PACE.length) : undefined
}

/** One moment by two clocks. */
export interface Moment {
  /** ms since 1970 */
  readonly wall: number
  /** ms of the core's clock */
  readonly now: number
}

export function periodAt(
  { per, timeZone }: Pick<QuotaSettings, 'per' | 'timeZone'>,
  { wall, now }: Moment,
): QuotaPeriod {
  const [from, until] = per === 'hour' ? hourAt(timeZone, wall) : daysAt(per, timeZone, wall)
  return { from: now + from - wall, until: now + until - wall, end: until }
}

function hourAt(timeZone: string, wall: number): [from: number, until: number] {
  const from = wall - (localTime(timeZone, wall) % HOUR)
  return [from, from + HOUR]
}

function daysAt(per: 'day' | 'month', timeZone: string, wall: number): [from: number, until: number] {
  const local = new Date(localTime(timeZone, wall))
  const [year, month, day] = [local.getUTCFullYear(), local.getUTCMonth(), local.getUTCDate()]
  const start = per === 'month' ? Date.UTC(year, month, 1) : Date.UTC(year, month, day)
  const end = per === 'month' ? Date.UTC(year, month + 1, 1) : Date.UTC(year, month, day + 1)
  return [firstAt(timeZone, start), firstAt(timeZone, end)]
}

/** The first moment at which clocks of a zone show this time or a later one. There may be a change of summer time around it. */
function firstAt(timeZone: string, local: number): number {
  const offsets = [-1, 1].map(side => localTime(timeZone, local + side * DAY) - (local + side * DAY))
  const moments = offsets.map(offset => local - offset).sort((one, other) => one - other)
  return moments.find(moment => localTime(timeZone, moment) >= local) ?? moments[1]!
}

const localFormats = new Map<string, Intl.DateTimeFormat>()

/** What clocks of a zone show, as ms since 1970 as if they showed UTC. */
function localTime(timeZone: string, wall: number): number {
  if (timeZone === 'UTC') return wall
  const format = keptIn(localFormats, timeZone, () => {
    const two = '2-digit'
    const parts = { year: 'numeric', month: two, day: two, hour: two, minute: two, second: two } as const
    return new Intl.DateTimeFormat('en-US', { timeZone, hourCycle: 'h23', ...parts })
  })
  const shown = new Map(format.formatToParts(wall).map(({ type, value }) => [type, Number(value)]))
  const [year, month, day] = (['year', 'month', 'day'] as const).map(type => shown.get(type)!) as [
    number,
    number,
    number,
  ]
  const [hour, minute, second] = (['hour', 'minute', 'second'] as const).map(type => shown.get(type)!)
  return Date.UTC(year, month - 1, day, hour, minute, second) + (wall - Math.floor(wall / 1_000) * 1_000)
}
