/**
 * The clock of a machine: CLOCK_MONOTONIC, in ms. All its processes read the same one. `performance.now` counts the same time
 * from the start of its process.
 */
import { performance } from 'node:perf_hooks'

/** What to add to `performance.now`, in ms. Each reading is too small by the time between its clocks, so the most is best. */
const OFFSET = Math.max(...Array.from({ length: 64 }, () => Number(process.hrtime.bigint()) / 1e6 - performance.now()))

/** The clock of the store, as a worker reads it, and how its moments map to the worker's own. In ms. */
export interface StoreClock {
  now(): number
  ours(theirs: number): number
  theirs(ours: number): number
}

/** A moment is mapped late by less than a microsecond, and never early. */
export const MACHINE: StoreClock = {
  now: () => performance.now() + OFFSET,
  ours: theirs => theirs - OFFSET,
  theirs: ours => ours + OFFSET,
}
