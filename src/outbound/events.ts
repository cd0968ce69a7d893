/** Events of a shaper. Durations are in ms. */
import type { ClearedError, ClosedError, ExpiredError, OverflowError } from './errors.js'

/** What every event of a call has. */
export interface CallEvent {
  /** The key of the call, or the name of the credential that it takes. */
  readonly key: string
  /** Cost units; where there are several buckets, of the last one. */
  readonly cost: number
  /** Of each bucket, in their order, where they differ. */
  readonly costs?: readonly number[]
  /** As in the options of the call. */
  readonly id?: string
}

/** The events of a shaper, with the arguments of their listeners. */
export interface OutboundEvents {
  /** A call has to wait. `queued`: the number of waiting calls of its key, including this one. */
  queued: [event: CallEvent & { readonly queued: number }]
  /** A call was released after `waitMs`. */
  released: [event: CallEvent & { readonly waitMs: number }]
  /** A call was not queued, or was still queued when the shaper closed. */
  rejected: [event: CallEvent & { readonly error: OverflowError | ClosedError | ClearedError | Error }]
  /** A call has waited for its `maxWait`, or would have to wait longer because of a pause. */
  expired: [event: CallEvent & { readonly waitMs: number; readonly error: ExpiredError }]
  /** The signal of a call that waited was aborted. */
  cancelled: [event: CallEvent & { readonly waitMs: number; readonly reason: unknown }]
  /** The function of a run has returned, after `ms`. Not for `admit` and requests of `shape`. */
  done: [event: CallEvent & { readonly ms: number; readonly attempt: number }]
  /** The function of a run has failed. `retryMs`: it is tried again after this time. */
  failed: [
    event: CallEvent & {
      readonly ms: number
      readonly attempt: number
      readonly error: unknown
      readonly retryMs?: number
    },
  ]
  /** No call of this key is released for `ms` from now. Without a key: no call at all. */
  paused: [event: { readonly key: string | undefined; readonly ms: number }]
  /** A pause was ended early. Without a key: all pauses. */
  resumed: [event: { readonly key: string | undefined }]
  /** No call waits or runs any more. */
  idle: []
  /** A problem with the store. The shaper goes on. Without a listener the error is not reported. */
  error: [error: Error]
}

/** Reports events to the listeners. `wants` lets callers skip events without listeners. */
export interface EventReporter {
  wants(name: keyof OutboundEvents): boolean
  /** Never throws. */
  notify<K extends keyof OutboundEvents>(name: K, ...event: OutboundEvents[K]): void
}
