/** The public names of the package. */

export {
  type Figure,
  type Profile,
  type ProfileBucket,
  type ProfileName,
  profileBuckets,
  profiles,
} from './config/profiles.js'
export type { Cancel, Clock } from './core/clock.js'
export type { CallOptions, RunOptions } from './outbound/calls/call-options.js'
export type { MapOptions } from './outbound/calls/map.js'
export type { Admitted, RunContext } from './outbound/calls/run-call.js'
export {
  ClearedError,
  ClosedError,
  ExpiredError,
  OverflowError,
  type OverflowReason,
  TimeoutError,
} from './outbound/errors.js'
export type { CallEvent, OutboundEvents } from './outbound/events.js'
export { type Addition, LeakyBucket, type LeakyBucketOptions } from './outbound/leaky-bucket.js'
export type {
  BucketOptions,
  ChangedLimits,
  CostAfter,
  CostOf,
  Costs,
  CredentialOptions,
  InFlightBound,
  PostgresStoreOptions,
  RedisStoreOptions,
  RetryRule,
  ShaperOptions,
  UpdateOptions,
} from './outbound/options.js'
export { createTestClock, type TestClock } from './outbound/process-clock.js'
export { type AnswerHeaders, retryAfterOf } from './outbound/retry-after.js'
export {
  createShaper,
  type KeyStatus,
  type OutboundShaper,
  type RoomOptions,
  type ShaperStatus,
  type WrapOptions,
} from './outbound/shaper.js'
export { type ShapeInterceptor, type ShapeOptions, shape } from './outbound/undici/interceptor.js'
export { StoreError } from './sharing/store.js'
