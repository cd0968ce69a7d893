/** Rates that follow the time of day. The wall clock of a time zone decides, so summer time needs no rules of its own. */
import type { BucketLimits } from '../core/bucket/limits.js'
import type { BucketSettings, RateEntry, RateSchedule, Settings, TierSettings } from './settings.js'

export const MINUTES_PER_DAY = 1_440

/** What has limits and perhaps a schedule: a bucket, or a tier of it. */
interface Scheduled {
  readonly limits: BucketLimits
  readonly schedule?: RateSchedule
}

/** Whether any rate depends on the time. */
export function hasSchedule({ buckets }: Settings): boolean {
  return buckets.some(isScheduled)
}

export function isScheduled({ schedule, tiers }: BucketSettings): boolean {
  return schedule !== undefined || tiers.some(tier => tier.schedule !== undefined)
}

/**
 * The configuration with the rates of a moment.
 *
 * @param wall ms since 1970
 */
export function settingsAt(settings: Settings, wall: number): Settings {
  if (!hasSchedule(settings)) return settings
  const present = new Map(settings.buckets.map(bucket => [bucket, bucketAt(bucket, wall)]))
  const at = (bucket: BucketSettings): BucketSettings => present.get(bucket)!
  return {
    ...settings,
    buckets: settings.buckets.map(at),
    routes: settings.routes.map(route => ({ ...route, buckets: route.buckets.map(at) })),
  }
}

function bucketAt(bucket: BucketSettings, wall: number): BucketSettings {
  if (!isScheduled(bucket)) return bucket
  const limits = limitsAt(bucket, wall)
  const tiers = bucket.tiers.map((tier): TierSettings => ({ ...tier, limits: limitsAt(tier, wall) }))
  return { ...bucket, rate: limits.rate, limits, tiers }
}

function limitsAt({ limits, schedule }: Scheduled, wall: number): BucketLimits {
  return schedule === undefined ? limits : { ...limits, rate: rateAt(schedule, wall) }
}

/** A rate that depends on the time, as it is at a moment. */
export interface PresentRate {
  readonly bucket: string
  readonly tier: string | undefined
  /** Cost units per ms. */
  readonly rate: number
}

/**
 * The rates that depend on the time, in the order of the file.
 *
 * @param wall ms since 1970
 */
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
  for (let minute = 0; minute < MINUTES_PER_DAY; minute += 1) {
    reached.add(entries.findIndex(entry => isWithin(entry, minute)))
  }
  return entries.map((_, index) => index).filter(index => !reached.has(index))
}

/** All rates that a bucket or a tier ever has, in cost units per ms. */
export function ratesOf({ limits, schedule }: Scheduled): number[] {
  return schedule === undefined ? [limits.rate] : schedule.entries.map(({ rate }) => rate)
}

const formats = new Map<string, Intl.DateTimeFormat>()

/** The minute of the day on the wall clock of a time zone. */
function minuteOfDay(timeZone: string, wall: number): number {
  let format = formats.get(timeZone)
  if (format === undefined) {
    format = new Intl.DateTimeFormat('en-GB', { timeZone, hour: '2-digit', minute: '2-digit', hourCycle: 'h23' })
    formats.set(timeZone, format)
  }
  const [hour = 0, minute = 0] = format.format(wall).split(':').map(Number)
  return hour * 60 + minute
}
