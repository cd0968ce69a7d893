/** Several instances on one store, on one virtual clock; each call takes its time on the way there and back. */

import type { BucketLimits } from '../../src/core/bucket/limits.js'
import { BucketTable } from '../../src/core/bucket-table.js'
import { createVirtualClock, type VirtualClock } from '../../src/core/clock.js'
import type { MaybePromise } from '../../src/core/maybe-promise.js'
import { Gate, type LaneRoute, type SharedBucket, Ticket } from '../../src/core/queue/lane.js'
import { Shaper, type Verdict } from '../../src/core/shaper.js'
import type { BucketRef } from '../../src/decider/record.js'
import { UpstreamQuota } from '../../src/proxy/upstream/upstream-quota.js'
import type { News } from '../../src/sharing/board.js'
import type { OnOutage } from '../../src/sharing/shard.js'
import { Sharing } from '../../src/sharing/sharing.js'
import { HORIZON, longestBackDate, type Store, StoreError } from '../../src/sharing/store.js'
import type { StoredBucket } from '../../src/sharing/stored-bucket.js'
import { createMemoryStore } from '../../src/stores/memory/store.js'
import { least, parse } from '../config/sample.js'

export interface Sent {
  at: number
  instance: number
  key: string
  /** The number of the request among all that were sent in. */
  id: number
}

export interface Instance {
  readonly shaper: Shaper
  readonly sharing: Sharing
  /** Sends a request in; the id is its number. */
  /** The shared upstream has answered. */
  hear(status: number, headers: Record<string, string>): void
  request(keys: readonly string[], options?: { cost?: number; maxWait?: number; name?: string }): Request
}

export interface Request {
  readonly id: number
  verdict: Verdict | undefined
  sentAt: number | undefined
  expired: boolean
  /** Hangs up: if it is still queued. */
  hangUp(): void
}

/** A call is not answered, or it is carried out and not answered, or it fails at once. */
export type Fault = 'silent' | 'lost' | 'refused'

export interface World {
  readonly clock: VirtualClock
  readonly instances: readonly Instance[]
  readonly sent: Sent[]
  /** The ms that a call takes each way. */
  latency: (instance: number) => number
  /** While true, calls have no answer. */
  down: boolean
  /** Shards that are down. */
  readonly lost: Set<string>
  /** What becomes of a call while the store is down. Default: it is silent. */
  fault: () => Fault
  /** Whether the store tells news. Otherwise instances have to ask. */
  hears: boolean
  /** While true, every write fails. */
  full: boolean
  /** How many calls there were. */
  admits: number
  claims: number
  leases: number
  /** Lets time pass. */
  run(until: number): Promise<void>
}

const STEP = 0.25

const LISTENED_TO = { url: 'http://upstream', pauseOn: { status: [429] }, learn: true }

const known = new Map<string, BucketLimits>()

/** The same object for the same limits. */
function lowered(limits: BucketLimits, rate: number): BucketLimits {
  if (rate >= limits.rate) return limits
  const key = JSON.stringify([limits, rate])
  const found = known.get(key) ?? { ...limits, rate }
  known.set(key, found)
  return found
}

export interface WorldOptions {
  readonly onOutage?: OnOutage
  /** A key begins with the name of its shard. */
  readonly shards?: readonly string[]
}

export function createWorld(
  stack: BucketLimits[],
  count: number,
  latency: (instance: number) => number,
  { onOutage = 'local', shards = [''] }: WorldOptions = {},
): World {
  const clock = createVirtualClock()
  const reach = { horizon: HORIZON.least, back: longestBackDate(0) }
  const inner = createMemoryStore({ clock, reach })
  const registries = new Map(shards.map(shard => [shard, createMemoryStore({ clock })]))
  const shardOf = ({ key }: BucketRef): string => shards.find(shard => key.startsWith(shard))!
  const sent: Sent[] = []
  let ids = 0
  // Whether calls were answered since their continuations ran.
  let answered = true
  const world = {
    clock,
    sent,
    latency,
    down: false,
    full: false,
    hears: true,
    lost: new Set(),
    admits: 0,
    claims: 0,
    leases: 0,
    fault: () => 'silent' as Fault,
  } as World & {
    instances: Instance[]
  }

  function written<T>(call: () => T): T {
    if (world.full) throw new StoreError('out of memory')
    return call()
  }

  function answer(delay: number, settle: () => void): void {
    clock.at(clock.now() + delay, () => {
      answered = true
      settle()
    })
  }

  function delayed<T>(instance: number, asked: readonly string[], call: () => MaybePromise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      if (world.down || asked.some(shard => world.lost.has(shard))) {
        const fault = world.fault()
        if (fault === 'lost') clock.at(clock.now() + world.latency(instance), () => void call())
        answer(fault === 'refused' ? 0.1 : 250, () => reject(new StoreError('down')))
        return
      }
      clock.at(clock.now() + world.latency(instance), () => {
        try {
          const value = call()
          answer(world.latency(instance), () => resolve(value))
        } catch (error) {
          answer(world.latency(instance), () => reject(error as StoreError))
        }
      })
    })
  }

  world.instances = Array.from({ length: count }, (_, instance) => {
    let horizon = HORIZON.least
    const reaching = <T>(call: () => T): T => {
      reach.horizon = horizon
      return call()
    }
    const store: Store = {
      get horizon() {
        horizon = Math.max(HORIZON.least, 5 * world.latency(instance))
        return horizon
      },
      ...(shards.length > 1 && { shards, shardOf }),
      admit: request => {
        world.admits += 1
        return delayed(instance, request.stack.map(shardOf), () => written(() => reaching(() => inner.admit(request))))
      },
      claim: request => {
        world.claims += 1
        return delayed(instance, request.stack.map(shardOf), () => written(() => reaching(() => inner.claim(request))))
      },
      lease: request => {
        world.leases += 1
        return delayed(instance, [shardOf(request.bucket)], () => written(() => inner.lease(request)))
      },
      giveBack: request => delayed(instance, request.stack.map(shardOf), () => inner.giveBack(request)),
      reset: bucket => delayed(instance, [shardOf(bucket)], () => inner.reset(bucket)),
      exchange: (upstream, news) => delayed(instance, [], () => inner.exchange(upstream, news)),
      async beat(id, shard = '') {
        const ask = () => ({ ...registries.get(shard)!.beat(id), epoch: clock.now() })
        const roll = await delayed(instance, [shard], ask)
        // As long as the answer has taken.
        return { ...roll, epoch: clock.now() - roll.epoch }
      },
      listen: told => {
        const arrive = (news: News): void => void (world.hears && !world.down && told(news))
        return inner.listen(news => answer(world.latency(instance), () => arrive(news)))
      },
      close: async () => undefined,
    }
    const sharing = new Sharing({ store, onOutage, clock, id: String(instance) })
    const shaper = new Shaper({
      clock,
      share: sharing.shareBy(clock),
    })
    const bucketTable = new BucketTable(1e9, (limits, key) => sharing.createBucket(limits, key))
    const peek = (name: string, key: string) => bucketTable.peek(name, key)
    const gate = new Gate()
    void sharing.join({ shaper, clock, buckets: () => bucketTable.all(), peek, gates: () => [gate] })
    const { upstream: settings } = parse({ ...least(), upstream: LISTENED_TO }).routes[0]!
    const quota = new UpstreamQuota(settings.url)
    quota.attach(gate)
    const line = {
      clock,
      wallNow: () => 0,
      shaper,
      sharing,
      observer: {},
      rateLearned() {
        for (const bucket of bucketTable.all()) {
          const whole = stack.find(({ name }) => name === bucket.limits.name)!
          shaper.engine.setLimits(
            bucket,
            sharing.limitsOf(lowered(whole, quota.rateOf('requests')), (bucket as StoredBucket).key),
          )
        }
      },
    }
    quota.join(line)
    const route: LaneRoute = { name: 'route', gate }
    return {
      shaper,
      sharing,
      hear: (status, headers) => quota.received(settings, status, name => headers[name]),
      request(keys, { cost = 1, maxWait = Infinity } = {}) {
        const id = ids++
        const request: Request = {
          id,
          verdict: undefined,
          sentAt: undefined,
          expired: false,
          hangUp() {
            if (request.verdict instanceof Ticket) shaper.cancel(request.verdict)
          },
        }
        const buckets = stack.map((whole, place) => {
          const limits = sharing.limitsOf(lowered(whole, quota.rateOf('requests')), keys[place]!)
          const bucket = bucketTable.find(limits, keys[place]!, clock.now()) as SharedBucket
          if (bucket.limits !== limits) shaper.engine.setLimits(bucket, limits)
          return bucket
        })
        shaper.arrive(
          { route, stack: buckets, cost },
          {
            decided: verdict => {
              request.verdict = verdict
            },
            release: () => {
              request.sentAt = clock.now()
              sent.push({ at: clock.now(), instance, key: keys[0]!, id })
              gate.leave()
            },
            expire: () => {
              request.expired = true
            },
            reject: () => undefined,
          },
          'shape',
          maxWait,
        )
        return request
      },
    }
  })
  world.run = async until => {
    while (clock.now() < until) {
      clock.runUntil(Math.min(until, clock.now() + STEP))
      if (!answered) continue
      answered = false
      for (let turn = 0; turn < 6; turn += 1) await Promise.resolve()
    }
  }
  return world
}
