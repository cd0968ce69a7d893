/** Helpers for the tests of the Redis store. */
import type { Test } from 'tap'
import type { BucketRef } from '../../src/decider/record.js'
import { type Admission, type ClaimAnswer, type Store, StoreError } from '../../src/sharing/store.js'
import { createRedisStore, type RedisOptions } from '../../src/stores/redis/store.js'
import { clock } from './conformance.js'
import { endsWithin } from './ends-within.js'

export const TIMEOUT = 250

/** The origin of the script's clock, in ms since 1970. */
export const EPOCH = 1_735_689_600_000

export function createStore(t: Test, options: Partial<RedisOptions>): Store {
  const store = createRedisStore({ prefix: 'shaper:', timeout: TIMEOUT, clock, ...options })
  t.teardown(() => store.close())
  return store
}

export async function admit(store: Store, stack: readonly BucketRef[], cost = 1, claim = false): Promise<Admission> {
  return await store.admit({ stack, cost, maxWait: Infinity, claim })
}

export async function claim(store: Store, stack: readonly BucketRef[], cost = 1, since = 0): Promise<ClaimAnswer> {
  return await store.claim({ stack, cost, since })
}

/** The contents of a bucket. */
export async function levelOf(store: Store, bucket: BucketRef): Promise<number> {
  return (await admit(store, [bucket], 0)).levels[0]!
}

/** A call that must fail: its error, and its time in ms. */
export async function failure(call: () => unknown): Promise<{ error: unknown; ms: number }> {
  const began = clock.now()
  try {
    await call()
  } catch (error) {
    return { error, ms: clock.now() - began }
  }
  throw new Error('was answered')
}

export async function fails(t: Test, call: () => unknown, what: string): Promise<void> {
  const failed = failure(call)
  const isInTime = await endsWithin(TIMEOUT + 100, failed)
  const { error, ms } = await failed
  t.ok(error instanceof StoreError, `${what}: ${error}`)
  t.ok(isInTime, `${what}: after ${ms} ms`)
}

/** The time until a call succeeds again, in ms. */
export async function recovery(call: () => Promise<unknown>): Promise<number> {
  const began = clock.now()
  for (;;) {
    try {
      await call()
      return clock.now() - began
    } catch (error) {
      if (clock.now() - began > 15_000) throw error
      await new Promise(resolve => setTimeout(resolve, 10))
    }
  }
}
