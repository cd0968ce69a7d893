/** The public names of the package. */
export type { Clock } from './core/clock.js'
export type { BucketLimits } from './core/limits.js'
export {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type Claim,
  type ClaimRequest,
  type GiveBackRequest,
  type MaybePromise,
  type Slot,
  type Store,
  StoreError,
  type UpstreamState,
} from './core/store.js'
export type { CallOptions } from './outbound/call-options.js'
export { ClosedError, ExpiredError, OverflowError, type OverflowReason } from './outbound/errors.js'
export type { CallEvent, OutboundEvents } from './outbound/events.js'
export { type ShapeInterceptor, type ShapeOptions, shape } from './outbound/interceptor.js'
export { type Addition, LeakyBucket, type LeakyBucketOptions } from './outbound/leaky-bucket.js'
export type { PostgresStoreOptions, RedisStoreOptions, ShaperOptions, UpdateOptions } from './outbound/options.js'
export type { Admitted } from './outbound/promised-call.js'
export { createShaper, type OutboundShaper, type WrapOptions } from './outbound/shaper.js'
export type { KeyStatus, ShaperStatus } from './outbound/status.js'
