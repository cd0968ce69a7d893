/** What a shaper tells of its calls. Durations in ms. */
import type { ClosedError, ExpiredError, OverflowError } from './errors.js'

export interface CallEvent {
  readonly key: string
  readonly cost: number
}

export interface OutboundEvents {
  /** A call has to wait: so many of its key do now, itself included. */
  queued: [event: CallEvent & { readonly queued: number }]
  /** A call was let go, after so long. */
  released: [event: CallEvent & { readonly waitMs: number }]
  /** A call was not queued, or was still queued when the shaper closed. */
  rejected: [event: CallEvent & { readonly error: OverflowError | ClosedError | Error }]
  expired: [event: CallEvent & { readonly waitMs: number; readonly error: ExpiredError }]
  /** The signal of a call that waited was aborted. */
  cancelled: [event: CallEvent & { readonly waitMs: number; readonly reason: unknown }]
  /** Nothing of this key is let go for so long from now; without a key: nothing at all. */
  paused: [event: { readonly key: string | undefined; readonly ms: number }]
  resumed: [event: { readonly key: string | undefined }]
  /** Nobody waits and nothing runs any more. */
  idle: []
  /** Something about the store. The shaper goes on; without a listener it is not told. */
  error: [error: Error]
}

/** Who is told. Nothing is made for events that nobody wants. */
export interface EventReporter {
  wants(name: keyof OutboundEvents): boolean
  /** Never throws. */
  notify<K extends keyof OutboundEvents>(name: K, ...event: OutboundEvents[K]): void
}
