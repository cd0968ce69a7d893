/**
 * Errors of calls that were not let through. Each has a stable code. Those that a later call can avoid say when to try
 * again.
 */
import { durationText, formatDuration } from '../core/units.js'

/**
 * Why a call was not queued. `overflow`: the queue is full. `max-wait`: the predicted wait is longer than `maxWait`.
 * `too-costly`: the cost is above the capacity. `blocked`: the bucket overflowed before, as the store says. `crowded`:
 * `maxQueued` calls wait already, or `maxKeys` keys are in use: they have calls, are paused, or their buckets still hold something.
 */
export type OverflowReason = 'overflow' | 'max-wait' | 'too-costly' | 'blocked' | 'crowded'

const WHY: Record<OverflowReason, string> = {
  overflow: 'the queue is full',
  'max-wait': 'the wait would be longer than maxWait',
  'too-costly': 'the cost is above the capacity',
  blocked: 'the key is blocked',
  crowded: 'too many calls wait, or too many keys are in use',
}

/** A call was not queued. */
export class OverflowError extends Error {
  override readonly name = 'OverflowError'
  /** The same in all versions. */
  readonly code = 'SHAPER_OVERFLOW'
  /** Why it was not queued. */
  readonly reason: OverflowReason
  /** The queue. */
  readonly key: string
  /**
   * A call of the same cost made this many ms later is queued if no other call comes. Infinity: never. A whole number,
   * 1 ms longer than needed, because `setTimeout` may fire that much early. With `crowded` it is a guess, because the
   * time until a place is free is unknown.
   */
  readonly retryAfterMs: number
  /** Of several buckets, the name of the first that did not let it in. */
  readonly bucket: string | undefined

  constructor(reason: OverflowReason, key: string, retryAfterMs: number, bucket?: string) {
    const where = bucket === undefined ? '' : ` (bucket ${JSON.stringify(bucket)})`
    super(`${WHY[reason]}${where}${describeKey(key)}${describeRetry(retryAfterMs)}`)
    this.bucket = bucket
    this.reason = reason
    this.key = key
    this.retryAfterMs = retryAfterMs
  }
}

/** A call has waited for its `maxWait`, or would have to wait longer because of a pause. */
export class ExpiredError extends Error {
  override readonly name = 'ExpiredError'
  /** The same in all versions. */
  readonly code = 'SHAPER_EXPIRED'
  /** The queue. */
  readonly key: string
  /** As in OverflowError. */
  readonly retryAfterMs: number

  constructor(key: string, retryAfterMs: number) {
    super(`not sent within maxWait${describeKey(key)}${describeRetry(retryAfterMs)}`)
    this.key = key
    this.retryAfterMs = retryAfterMs
  }
}

/** The call waited when `clear` was called. */
export class ClearedError extends Error {
  override readonly name = 'ClearedError'
  /** The same in all versions. */
  readonly code = 'SHAPER_CLEARED'

  constructor() {
    super('the call was cleared while it waited')
  }
}

/** The function of a run has not ended within its `timeout`. */
export class TimeoutError extends Error {
  override readonly name = 'TimeoutError'
  /** The same in all versions. */
  readonly code = 'SHAPER_TIMEOUT'
  /** The queue. */
  readonly key: string

  constructor(key: string, ms: number) {
    super(`not done within the timeout of ${formatDuration(ms)}${describeKey(key)}`)
    this.key = key
  }
}

/** The shaper has been drained. */
export class ClosedError extends Error {
  override readonly name = 'ClosedError'
  /** The same in all versions. */
  readonly code = 'SHAPER_CLOSED'

  constructor() {
    super('the shaper is closed: it has been drained')
  }
}

function describeKey(key: string): string {
  return key === '' ? '' : ` (key ${JSON.stringify(key.length > 80 ? `${key.slice(0, 80)}...` : key)})`
}

function describeRetry(ms: number): string {
  return ms === Infinity || ms === 0 ? '' : `; try again in ${durationText(ms)}`
}
