/**
 * How a verb travels to a server that decides by a script: as doubles, beside the names of what it is about. The script of each
 * server says in which order they stand there (redis/scripts/decide.lua, postgres/decide.sql).
 */

import type { QuotaPeriod } from '../core/bucket/limits.js'
import type { BucketRef } from '../decider/record.js'
import type { Admission } from '../sharing/store.js'
import { REASONS } from './constants.js'

/** The doubles of one operation. */
export interface Operation {
  readonly cost: number
  /** `maxWait`, `since`, `slotCost` and others, in ms or cost units. */
  readonly x: number
  /** Further ones. Of a claim: `ahead` because of any bucket, `ahead` because of the last one, `within` and `own`. */
  readonly numbers: number[]
  /** A moment in ms: of a claim `notBefore`, by our clock, else what the store has told. -Infinity: none. */
  readonly at: number
}

export function operation(cost: number, x = 0, numbers: number[] = [], at = -Infinity): Operation {
  return { cost, x, numbers, at }
}

/** A question to such a server: its doubles, the names of its rows there, and the bucket of each of the first of them. */
export interface ServerQuestion {
  readonly operation: Operation
  readonly keys: readonly string[]
  readonly stack: readonly BucketRef[]
}

/** Doubles that a server reads for a question, or a few more. */
export function sizeOf({ keys, operation }: ServerQuestion): number {
  return 6 + 7 * keys.length + operation.numbers.length
}

/** Times the end of the period of a quota, in ms since 1970, this is what stands for it in the records of a store. */
export const PERIOD_ROOM = 1e6

/** As `openPeriod` wants it. */
export function periodOf(quota: QuotaPeriod | undefined): readonly [period: number, lasts: number] {
  return quota === undefined ? NO_PERIOD : [quota.end * PERIOD_ROOM, quota.until - quota.from]
}

const NO_PERIOD = [0, 0] as const

/**
 * Writes a bucket of an operation: rate, capacity, 1 if an overflow fills it, `blockFor`, burst, and its own cost. Of a quota: 2,
 * and its period and how long that lasts in place of `blockFor` and burst.
 */
export function writeBucket({ limits, cost }: BucketRef, to: NumberList, at: number): void {
  const { rate, capacity, overflow, blockFor = 0, burst = 0, quota } = limits
  to[at] = rate
  to[at + 1] = capacity
  to[at + 2] = overflow === 'fill' ? 1 : 0
  to[at + 3] = blockFor === 'drain' ? Infinity : blockFor
  to[at + 4] = burst
  if (quota !== undefined) {
    const [period, lasts] = periodOf(quota)
    to[at + 2] = 2
    to[at + 3] = period
    to[at + 4] = lasts
  }
  // NaN stands for none, so one that is given is told as another that no bucket can count.
  to[at + 5] = Number.isNaN(cost) ? Infinity : (cost ?? NaN)
}

type NumberList = ArrayLike<number> & { [place: number]: number }

/** The answers of a script, one after the other. Moments are by its clock. */
export abstract class Answers {
  constructor(
    protected readonly numbers: NumberList,
    protected at: number,
    /** A moment of the server's clock by ours. */
    readonly ours: (theirs: number) => number,
  ) {}

  /** Of an admission or a claim: whether it is granted. */
  abstract granted(): boolean
  /** The rest of an admission that is not. */
  abstract rejection(length: number): Admission

  /** @throws RangeError: there is no more, or it is no number */
  next(): number {
    const value = this.numbers[this.at]
    if (value === undefined || Number.isNaN(value)) throw new RangeError('the answer is not the script’s')
    this.at += 1
    return value
  }

  list(length: number): number[] {
    const values: number[] = []
    for (let count = 0; count < length; count += 1) values.push(this.next())
    return values
  }

  protected rejectionOf(
    reason: number,
    retryAfter: number,
    levels: number[],
    refuses: (place: number) => boolean,
  ): Admission {
    const name = REASONS[reason - 1]
    if (name === undefined) throw new RangeError('the answer is not the script’s')
    const refusing = [...levels.keys()].filter(refuses)
    const retryAfterMs = name === 'too-costly' ? undefined : retryAfter
    return { admitted: false, levels, reason: name, refusing, retryAfterMs }
  }
}
