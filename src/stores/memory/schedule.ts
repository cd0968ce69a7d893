/**
 * When a claim can have its slot, in the schedules of the buckets of a stack.
 *
 * A slot is at one moment in all of them. So it may lie behind the end of a schedule (`free`), as another bucket is not free before. The time
 * until then is a gap, and later claims get it. Of each bucket one gap is kept, the longest one. Slots in it are as far from all others as slots at the end.
 */
import { slackOf } from '../../core/bucket/limits.js'
import { type BucketRef, type ClaimRequest, costOfRef } from '../../core/store.js'
import { SAME_SLOT } from '../constants.js'

/** Moments in ms. */
export interface Schedule {
  /** When what was granted has drained. */
  free: number
  /** It has been free as well from here, */
  gapFrom: number
  /** to here. No later than `free`. */
  gapUntil: number
  leasedUntil: number
}

/** The schedule of one bucket, for one claim. Times in ms. */
export interface SchedulePlace {
  readonly schedule: Schedule
  /** When the slot can be, if it is not in the gap. */
  readonly free: number
  /** What its cost takes. */
  readonly length: number
  /** Whether the slot may be in a gap, or leave one. */
  readonly mayHaveGap: boolean
  readonly now: number
}

export function placeOf(
  schedule: Schedule,
  ref: BucketRef,
  { cost, notBefore }: Pick<ClaimRequest, 'cost' | 'notBefore'>,
  now: number,
): SchedulePlace {
  const { rate, burst } = ref.limits
  const own = costOfRef(ref, cost)
  return {
    schedule,
    free: schedule.free - slackOf(ref.limits, own) / rate,
    length: own / rate,
    // Slots of leases are dealt out from the end. Those that go with leased ones are at their moments, and in the order of these.
    mayHaveGap: notBefore === undefined && burst === undefined && schedule.leasedUntil <= now,
    now,
  }
}

/** The first moment, in ms, not before this one, at which a slot is possible in all of them. */
export function firstSlot(places: readonly SchedulePlace[], from: number): number {
  for (let at = from; ; ) {
    const next = places.reduce((moment, place) => firstIn(place, moment), at)
    if (next === at) return at
    at = next
  }
}

/** When one of them is free for a claim that wants a slot from this moment on, in ms. */
export function freeAt(place: SchedulePlace, from: number): number {
  return Math.max(place.now, from < place.free ? firstIn(place, from) : place.free)
}

function firstIn({ schedule, free, length, mayHaveGap, now }: SchedulePlace, at: number): number {
  if (at >= free) return at
  const { gapFrom, gapUntil } = schedule
  const begin = Math.max(now, at, gapFrom)
  return mayHaveGap && begin + length <= Math.min(gapUntil, schedule.free) + SAME_SLOT ? begin : free
}

/** Takes the time of a slot, which may be used from `from` on: nobody else has the time between. In ms. */
export function takeSlot(place: SchedulePlace, { at, from }: { at: number; from: number }): void {
  const { schedule, free, length, mayHaveGap, now } = place
  if (at < free) {
    const end = at + length
    if (at - schedule.gapFrom > schedule.gapUntil - end) schedule.gapUntil = at
    else schedule.gapFrom = end
    return
  }
  const begin = Math.max(now, schedule.free)
  const known = schedule.gapUntil - Math.max(now, schedule.gapFrom)
  if (mayHaveGap && from - begin >= Math.max(length, known)) {
    schedule.gapFrom = begin
    schedule.gapUntil = from
    // A smaller cost that comes later must not overtake.
  } else if (length > known) schedule.gapUntil = -Infinity
  schedule.free = Math.max(schedule.free, at) + length
}
