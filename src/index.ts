/** The public names of the package. */

export {
  type Figure,
  type Profile,
  type ProfileBucket,
  type ProfileName,
  profileBuckets,
  profiles,
} from './config/profiles.js'
export type { Board, News, Override, View, ViewKind } from './core/board.js'
export type { BucketLimits } from './core/bucket/limits.js'
export type { Clock } from './core/clock.js'
export type { MaybePromise } from './core/maybe-promise.js'
export {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  type ClassDemand,
  type GiveBackRequest,
  type LeaseAnswer,
  type LeasedSlot,
  type LeaseRequest,
  type Roll,
  type SettleRequest,
  type Slot,
  type Store,
  StoreError,
} from './core/store.js'
export type { UpstreamState } from './core/upstream-state.js'
export type { CallOptions, RunOptions } from './outbound/calls/call-options.js'
export type { MapOptions } from './outbound/calls/map.js'
export type { Admitted } from './outbound/calls/promised-call.js'
export type { RoomOptions } from './outbound/calls/room.js'
export type { RunContext } from './outbound/calls/run-call.js'
export {
  ClearedError,
  ClosedError,
  ExpirationError,
  ExpiredError,
  OverflowError,
  type OverflowReason,
} from './outbound/errors.js'
export type { CallEvent, OutboundEvents } from './outbound/events.js'
export { type Addition, LeakyBucket, type LeakyBucketOptions } from './outbound/leaky-bucket.js'
export type {
  BucketOptions,
  CostAfter,
  Costs,
  CredentialOptions,
  InFlightBound,
  PostgresStoreOptions,
  RedisStoreOptions,
  RetryRule,
  ShaperOptions,
  UpdateOptions,
} from './outbound/options.js'
export { createShaper, type OutboundShaper, type WrapOptions } from './outbound/shaper.js'
export type { KeyStatus, ShaperStatus } from './outbound/status.js'
export { type ShapeInterceptor, type ShapeOptions, shape } from './outbound/undici/interceptor.js'
