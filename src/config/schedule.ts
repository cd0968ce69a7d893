/** Rates that follow the time of day, and periods of quotas. The wall clock of a time zone decides, so summer time needs no rules of its own. */
import type { BucketLimits } from '../core/bucket/limits.js'
import { keptIn } from '../core/structures/maps.js'
import { type Moment, periodAt } from './periods.js'
import { MINUTES_PER_DAY } from './schema/rates.js'
import type { BucketSettings, RateEntry, RateSchedule, Settings, TierSettings } from './settings.js'

/** ms. Times of day are whole minutes, and time zones differ by whole minutes. */
export const MINUTE = 60_000
/** ms. With the longest change of summer time. */
const LONGEST_DAY = (MINUTES_PER_DAY + 180) * MINUTE

interface Scheduled {
  readonly limits: BucketLimits
  readonly schedule?: RateSchedule
}

/** Whether limits depend on the time. */
export function hasSchedule({ buckets }: Settings): boolean {
  return buckets.some(bucket => bucket.quota !== undefined || isScheduled(bucket))
}

export function isScheduled({ schedule, tiers }: BucketSettings): boolean {
  return schedule !== undefined || tiers.some(tier => tier.schedule !== undefined)
}

/** The configuration with the rates of a moment, and when they change next. */
export function settingsAt(settings: Settings, moment: Moment): Settings {
  if (!hasSchedule(settings)) return settings
  const present = new Map(settings.buckets.map(bucket => [bucket, bucketAt(bucket, moment)]))
  const at = (bucket: BucketSettings): BucketSettings => present.get(bucket)!
  return {
    ...settings,
    buckets: settings.buckets.map(at),
    routes: settings.routes.map(route => ({ ...route, buckets: route.buckets.map(at) })),
  }
}

function bucketAt(bucket: BucketSettings, moment: Moment): BucketSettings {
  const { quota } = bucket
  if (quota !== undefined) {
    const period = periodAt(quota, moment)
    const tiers = bucket.tiers.map((tier): TierSettings => ({ ...tier, limits: { ...tier.limits, quota: period } }))
    return { ...bucket, limits: { ...bucket.limits, quota: period }, tiers }
  }
  if (!isScheduled(bucket)) return bucket
  const limits = limitsAt(bucket, moment)
  const tiers = bucket.tiers.map((tier): TierSettings => ({ ...tier, limits: limitsAt(tier, moment) }))
  return { ...bucket, rate: limits.rate, limits, tiers }
}

function limitsAt({ limits, schedule }: Scheduled, { wall, now }: Moment): BucketLimits {
  if (schedule === undefined) return limits
  const change = nextChange(schedule, wall)
  const { capacity } = limits
  const next = change && { next: { at: now + change.wall - wall, rate: change.rate, capacity } }
  return { ...limits, rate: rateAt(schedule, wall), ...next }
}

interface RateChange {
  /** ms since 1970 */
  readonly wall: number
  /** Cost units per ms from then on. */
  readonly rate: number
}

/**
 * When a rate becomes another one. It can only at the `from` or `to` of an entry, so that only these are looked at, except across
 * a change of summer time. Undefined: not for a day and a bit.
 */
export function nextChange(schedule: RateSchedule, wall: number): RateChange | undefined {
  const { timeZone, entries } = schedule
  const present = rateAt(schedule, wall)
  const borders = entries.flatMap(({ from, to }) => (from === undefined || to === undefined ? [] : [from, to]))
  if (borders.length === 0) return undefined
  const start = Math.floor(wall / MINUTE) * MINUTE
  let at = start
  while (at - start <= LONGEST_DAY) {
    const minute = minuteOfDay(timeZone, at)
    const wait = Math.min(...borders.map(border => (border - minute + MINUTES_PER_DAY - 1) % MINUTES_PER_DAY)) + 1
    const isSteady = minuteOfDay(timeZone, at + wait * MINUTE) === (minute + wait) % MINUTES_PER_DAY
    at += (isSteady ? wait : 1) * MINUTE
    const rate = rateAt(schedule, at)
    if (rate !== present) return { wall: at, rate }
  }
  return undefined
}

/** A rate that depends on the time, as it is at a moment. */
export interface PresentRate {
  readonly bucket: string
  readonly tier: string | undefined
  /** Cost units per ms. */
  readonly rate: number
}

/** The rates that depend on the time, in the order of the file. @param wall ms since 1970 */
export function presentRates({ buckets }: Settings, wall: number): PresentRate[] {
  return buckets.flatMap(bucket =>
    [bucket, ...bucket.tiers].flatMap(({ schedule, limits: { tier } }: Scheduled) =>
      schedule === undefined ? [] : [{ bucket: bucket.name, tier, rate: rateAt(schedule, wall) }],
    ),
  )
}

/** The first entry whose time of day it is counts. */
function rateAt({ timeZone, entries }: RateSchedule, wall: number): number {
  const minute = minuteOfDay(timeZone, wall)
  return entries.find(entry => isWithin(entry, minute))!.rate
}

/** Whether an entry counts in a minute of the day. It may go on past midnight. */
function isWithin({ from, to }: RateEntry, minute: number): boolean {
  if (from === undefined || to === undefined) return true
  return from < to ? from <= minute && minute < to : from <= minute || minute < to
}

/** The indexes of entries that never count, because earlier ones take all of their time. */
export function unreachedEntries(entries: readonly RateEntry[]): number[] {
  const reached = new Set<number>()
  for (let minute = 0; minute < MINUTES_PER_DAY; minute += 1)
    reached.add(entries.findIndex(entry => isWithin(entry, minute)))
  return entries.map((_, index) => index).filter(index => !reached.has(index))
}

/** All rates that a bucket or a tier ever has, in cost units per ms. */
export function ratesOf({ limits, schedule }: Scheduled): number[] {
  return schedule === undefined ? [limits.rate] : schedule.entries.map(({ rate }) => rate)
}

/** When the periods of the quotas end, in the order of the file. @param wall ms since 1970 */
export function periodEnds({ buckets }: Settings, wall: number): number[] {
  return buckets.flatMap(({ quota }) => (quota === undefined ? [] : [periodAt(quota, { wall, now: 0 }).end]))
}

const formats = new Map<string, Intl.DateTimeFormat>()

function minuteOfDay(timeZone: string, wall: number): number {
  const options = { timeZone, hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const
  const format = keptIn(formats, timeZone, () => new Intl.DateTimeFormat('en-GB', options))
  const [hour = 0, minute = 0] = format.format(wall).split(':').map(Number)
  return hour * 60 + minute
}
