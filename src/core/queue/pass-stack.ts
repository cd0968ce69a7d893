/** How a request passes the buckets of its stack: each has a schedule of its own (queued-bucket.ts). */
import { countedFrom, graceAt } from '../bucket/queued-bucket.js'
import { costAt, type Demand } from './lane.js'
import { SAME_TIME } from './ready-lanes.js'

interface Passing extends Demand {
  /** ms. Absent: it has not waited. */
  readonly arrivedAt?: number
}

/** Lets a request pass in a slot, at `now`. @returns when it passed each bucket, where it waited for one behind (`passedAt`) */
export function passStack(passing: Passing, slot: number, now: number): readonly number[] | undefined {
  const { stack } = passing
  const waitedFor = placeWaitedFor(passing, slot)
  let dates: number[] | undefined
  let own = passing.arrivedAt ?? slot
  for (let place = 0; place < stack.length; place += 1) {
    const bucket = stack[place]!
    if (place < waitedFor) own = Math.max(own, bucket.freeFor(costAt(passing, place)), bucket.busyBehind)
    const grace = graceAt(bucket.limits, place, stack.length)
    const earliest = place < waitedFor ? Math.min(own, slot) : slot
    const at = bucket.pass(costAt(passing, place), countedFrom(earliest, now, bucket.limits, grace))
    if (at !== slot) dates ??= stack.map(() => slot)
    if (dates !== undefined) dates[place] = at
  }
  if (stack.length > 1) noteBusyBehind(passing, slot, dates)
  return dates
}

/** When a request that has passed in a slot passed the bucket at a place, in ms. */
export function passedAt(
  { dates }: { readonly dates: readonly number[] | undefined },
  slot: number,
  place: number,
): number {
  return dates === undefined ? slot : dates[place]!
}

/** Whether a request that passes in this slot is late in a bucket: others have kept one behind it busy. The first is the earliest. */
export function isLate(passing: Passing, slot: number): boolean {
  if (placeWaitedFor(passing, slot) === 0) return false
  const first = passing.stack[0]!
  const own = Math.max(passing.arrivedAt ?? slot, first.freeFor(costAt(passing, 0)), first.busyBehind)
  return own < slot - SAME_TIME
}

/** The last place whose bucket became free in this slot. 0: the first, or none. */
function placeWaitedFor(passing: Demand, slot: number): number {
  const { stack } = passing
  for (let place = stack.length - 1; place > 0; place -= 1) {
    if (stack[place]!.freeFor(costAt(passing, place)) >= slot - SAME_TIME) return place
  }
  return 0
}

function noteBusyBehind(passed: Demand, slot: number, dates: readonly number[] | undefined): void {
  const { stack, costs } = passed
  let until = -Infinity
  for (let place = stack.length - 1; place >= 0; place -= 1) {
    const bucket = stack[place]!
    // Where nobody waits the instance may sleep and forget it.
    bucket.busyBehind = bucket.waiting === 0 ? Infinity : until - Math.max(0, slot - (dates?.[place] ?? slot))
    // Where costs differ, the next may need a bucket with a burst to be empty.
    until = Math.max(until, costs === undefined ? bucket.freeFor(costAt(passed, place)) : bucket.drainedAt)
  }
}
