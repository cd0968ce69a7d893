import type { Clock } from '../core/clock.js'
import type { ArmedWrites } from './armed-writes.js'

/** A clock that may have a thread which makes writes by itself. */
export interface Pacer extends Clock {
  /** Undefined: there is no thread. */
  readonly writes?: ArmedWrites | undefined
}
