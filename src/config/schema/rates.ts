/** Rates of buckets: one, or a list by the time of day. */

import * as z from 'zod'
import { quote, wants } from '../messages.js'
import { rateError, readTimeZone, ZONE_REMEDY } from '../read-values.js'
import { maybe, number, object, rate, read, report } from './values.js'

export const MINUTES_PER_DAY = 1_440
const TIMES = 'use "00:00" to "23:59"'
const ENTRIES = 'use e.g. [{ "from": "22:00", "to": "06:00", "rate": "50/s" }, { "rate": "10/s" }]'

const time = (last: number, remedy: string) =>
  number(
    z.string({ error: wants('a time of day', remedy) }),
    text => {
      const [, hours, minutes] = /^(\d\d):([0-5]\d)$/.exec(text) ?? []
      const minute = Number(hours) * 60 + Number(minutes)
      if (minute <= last) return minute
      throw new RangeError(`${quote(text)} is not a time of day; ${remedy}`)
    },
    formatTime,
  )

function formatTime(minute: number): string {
  const pad = (value: number) => String(value).padStart(2, '0')
  return `${pad(Math.floor(minute / 60))}:${pad(minute % 60)}`
}

const entry = object(
  {
    from: maybe(time(MINUTES_PER_DAY - 1, TIMES)).describe(
      'From when on this rate holds, in the time zone of the bucket, e.g. "22:00".',
    ),
    to: maybe(time(MINUTES_PER_DAY, `${TIMES}, or "24:00"`)).describe(
      'Until when this rate holds, on the next day if that is before "from", e.g. "06:00".',
    ),
    rate: rate.describe('The rate in this time, e.g. "50/s".'),
  },
  'use e.g. { "from": "22:00", "to": "06:00", "rate": "50/s" }',
  'a rate with its time of day',
).superRefine(({ from, to }, ctx) => {
  if (from === undefined && to !== undefined) report(ctx, 'from', 'missing; say from when on, e.g. "22:00"')
  if (from !== undefined && to === undefined) report(ctx, 'to', 'missing; say until when, e.g. "06:00"')
  if (from !== undefined && from === to) report(ctx, 'to', 'the same as "from"; for the whole day leave both out')
})

const entries = z
  .array(entry)
  .min(1, { error: `the list is empty; ${ENTRIES}` })
  .superRefine((list, ctx) => {
    const last = list.at(-1)
    if (last === undefined || (last.from === undefined && last.to === undefined)) return
    const message = `the last entry must be without "from" and "to", as it holds at all other times; add e.g. { "rate": "10/s" }`
    report(ctx, list.length - 1, message)
  })

/** A rate and its time of day. Minutes since midnight; the end is not within, and may be on the next day. Both or none are set. */
type RateEntry = z.output<typeof entry>
export const bucketRate = z.union([rate, entries], { error: rateError })

export function slowest(given: number | readonly RateEntry[]): number {
  return typeof given === 'number' ? given : Math.min(...given.map(each => each.rate))
}

export const timeZone = read(z.string({ error: wants('a time zone', ZONE_REMEDY) }), readTimeZone)
