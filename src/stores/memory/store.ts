/**
 * A store in the memory of this process. sharing/store.ts says what each verb means. Every answer is there at once.
 *
 * It is the store of the primary of workers. Tests hold the other stores to it (test/stores/model.ts).
 */

import type { Clock } from '../../core/clock.js'
import { ignore } from '../../core/maybe-promise.js'
import { IdleSweep } from '../../core/structures/idle-sweep.js'
import { appoint, shiftPromises } from '../../decider/appointments.js'
import {
  type Bucket,
  type BucketPlace,
  change,
  emptiedBucket,
  giveBack,
  levelOf,
  newBucket,
  settle,
} from '../../decider/bucket.js'
import { BEAT_LIFE, FRAME, QUOTA_ROOM, SLOT_GRACE } from '../../decider/constants.js'
import { costOfRef } from '../../decider/costs.js'
import { shiftLeases } from '../../decider/leases.js'
import type { BucketRef } from '../../decider/record.js'
import {
  type Board,
  Listeners,
  MOST_OVERRIDES,
  type Override,
  type UpstreamState,
  VIEW_LIFE,
  type ViewKind,
} from '../../sharing/board.js'
import { areCosts, HORIZON, longestBackDate, type Store, type StoreVerb } from '../../sharing/store.js'
import { SAME_PAUSE } from '../constants.js'
import { admitIn, claimIn, leaseIn, placeOf, type Reach } from '../decided.js'
import { PERIOD_ROOM } from '../doubles.js'
import { boundNews, describeUpstream } from '../news.js'
import type { Levels, SavedLevel } from './levels-file.js'

type AtOnce<Verb> = Verb extends (...input: infer Input) => infer Answer ? (...input: Input) => Awaited<Answer> : Verb

export type MemoryStore = Required<Pick<Store, 'horizon' | 'listen' | 'close'>> & {
  [Verb in StoreVerb]: AtOnce<NonNullable<Store[Verb]>>
} & {
  readonly board: MemoryBoard
  readonly size: number
  readonly levels: Levels
  /** All that it knows, for a store on the same clock in another process. */
  parts(): Iterable<StorePart>
  add(part: StorePart): void
  /** Another store has decided in its place, and is gone. What that has granted may still be used. */
  resume(): void
}

export type StorePart =
  | { readonly bucket: string; readonly key: string; readonly state: Bucket }
  | { readonly upstream: string; readonly state: UpstreamState }
  | { readonly override: Override }
  /** An instance that is there. */
  | { readonly id: string }

/** Another number: the parts have another form. */
export const PARTS_FORM = 1

export interface MemoryStoreOptions {
  readonly clock: Pick<Clock, 'now'>
  /** For who asks next. Absent: for this process. */
  readonly reach?: Readonly<Reach>
}

const NEAR: Reach = { horizon: HORIZON.least, back: longestBackDate(0) }

export function createMemoryStore({ clock, reach = NEAR }: MemoryStoreOptions): MemoryStore {
  const buckets = new Map<string, Instances>()
  const beats = new Map<string, number>()
  let left = 0
  const upstreams = new MemoryUpstreams()
  const listeners = new Listeners()
  const board = createMemoryBoard(clock, listeners)

  /** Sweeps first: a bucket instance that is idle may not be forgotten once it is found. */
  function placesOf(stack: readonly BucketRef[], cost: number, now: number): BucketPlace[] {
    for (const { limits, key } of stack) buckets.get(limits.name)?.sweepFor(key, now)
    return stack.map(ref => placeOf(find(ref, now), ref, cost, now))
  }

  function instancesOf(name: string): Instances {
    const known = buckets.get(name)
    if (known !== undefined) return known
    const instances = new Instances()
    buckets.set(name, instances)
    return instances
  }

  function find({ limits, key }: BucketRef, now: number): Bucket {
    const bucket = instancesOf(limits.name).find(key, limits.rate)
    const by = now - bucket.at
    if (by < 0 && bucket.leases !== undefined) shiftLeases(bucket.leases, by)
    if (by < 0 && bucket.promises !== undefined) shiftPromises(bucket.promises, by)
    return bucket
  }

  return {
    get horizon() {
      return reach.horizon
    },

    admit(request) {
      const now = clock.now()
      return admitIn(placesOf(request.stack, request.cost, now), request, reach, now)
    },

    claim(request) {
      const now = clock.now()
      return claimIn(placesOf(request.stack, request.cost, now), request, reach, now)
    },

    giveBack({ stack, cost, slot, slotCost = 0, own = 0 }) {
      if (!areCosts(stack, cost) || !areCosts(stack, slotCost)) return
      const now = clock.now()
      const at = (slot?.token as number | undefined) ?? -Infinity
      for (const [index, place] of placesOf(stack, cost, now).entries()) {
        giveBack(place, { slot: at, slotCost: costOfRef(stack[index]!, slotCost), isOwn: index < own }, now)
      }
    },

    settle({ stack, cost }) {
      const now = clock.now()
      return placesOf(stack, cost, now).map(place => settle(place, now))
    },

    appoint(request) {
      const now = clock.now()
      const [place] = placesOf([request.bucket], request.cost, now) as [BucketPlace]
      return appoint(place, request, now)
    },

    lease(request) {
      const now = clock.now()
      const [place] = placesOf([request.bucket], 0, now) as [BucketPlace]
      return leaseIn(place, request, now)
    },

    reset({ limits, key }) {
      listeners.tell({ about: 'reset', bucket: limits.name, key })
      instancesOf(limits.name).put(key, emptiedBucket(limits.rate, clock.now()))
    },

    beat(id) {
      const now = clock.now()
      beats.set(id, now)
      for (const [other, at] of beats) if (now - at > BEAT_LIFE) beats.delete(other)
      return { count: beats.size, left, rank: [...beats.keys()].filter(other => other < id).length, epoch: 0 }
    },

    leave(id) {
      if (beats.delete(id)) left += 1
    },

    exchange(upstream, news) {
      return upstreams.exchange(upstream, news, clock.now(), state =>
        listeners.tell({ about: 'upstream', name: upstream, state }),
      )
    },

    listen: listener => listeners.add(listener),
    board,

    levels: {
      now: () => clock.now(),

      *saved() {
        for (const [bucket, instances] of buckets)
          for (const [key, found] of instances.all()) {
            const level = savedOf(found, clock.now())
            yield level && { bucket, key, ...level }
          }
      },

      restore({ bucket, key, level, at, rate, free, blocked = -Infinity, quota }) {
        const now = clock.now()
        const left = quota === undefined ? Math.max(0, level - (now - at) * rate) : level
        const restored = instancesOf(bucket).find(key, rate)
        Object.assign(restored, { level: left, at: now, free: free ?? now + left / rate, blocked, rate })
        if (quota !== undefined)
          Object.assign(restored, { leasedRoom: quota * PERIOD_ROOM, leasedUntil: now + LONGEST_PERIOD })
        return true
      },
    },

    *parts() {
      const now = clock.now()
      for (const [bucket, instances] of buckets)
        for (const [key, state] of instances.all()) if (!isIdle(state, now)) yield { bucket, key, state }
      for (const [upstream, state] of upstreams.all(now)) yield { upstream, state }
      for (const override of board.overrides()) yield { override }
      for (const id of beats.keys()) yield { id }
    },

    add(part) {
      if ('bucket' in part) instancesOf(part.bucket).put(part.key, part.state)
      else if ('upstream' in part) this.exchange(part.upstream, part.state)
      else if ('override' in part) board.setOverride(part.override)
      else this.beat(part.id)
    },

    resume() {
      const now = clock.now()
      for (const instances of buckets.values())
        for (const [, bucket] of instances.all()) {
          change(bucket, 0, now)
          if (bucket.leasedRoom > QUOTA_ROOM) continue
          // Who reports again says how far ahead its slots lie.
          const { free, rate } = bucket
          Object.assign(bucket, { ...NO_LEASE, free: Math.max(free, now + FRAME + 1 / rate) })
        }
    },

    async close() {},

    get size() {
      let size = 0
      for (const instances of buckets.values()) size += instances.size
      return size
    },
  }
}

/** ms. A month, with the change of summer time. The first request of the next period ends it anyway. */
const LONGEST_PERIOD = 32 * 86_400_000
const NO_LEASE = { leases: undefined, leasedRate: 0, leasedRoom: 0, leasedUntil: -Infinity }

/** The instances of one bucket, by key. Each new one sweeps some idle ones. */
class Instances {
  readonly #byKey = new Map<string, Bucket>()
  readonly #sweep = new IdleSweep(this.#byKey)

  get size(): number {
    return this.#byKey.size
  }

  find(key: string, rate: number): Bucket {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    const bucket = newBucket(rate)
    this.#byKey.set(key, bucket)
    return bucket
  }

  all(): Iterable<[key: string, bucket: Bucket]> {
    return this.#byKey
  }

  put(key: string, bucket: Bucket): void {
    this.#byKey.set(key, bucket)
  }

  sweepFor(key: string, now: number): void {
    if (!this.#byKey.has(key)) this.#sweep.sweep(bucket => isIdle(bucket, now))
  }
}

/** Undefined: it is idle. Room that is leased is in its level: it may have been used. */
function savedOf(bucket: Bucket, now: number): Omit<SavedLevel, 'bucket' | 'key'> | undefined {
  const { rate, free, blocked } = bucket
  const level = levelOf(bucket, now)
  const isBlocked = blocked > now
  if (level === 0 && free <= now && !isBlocked) return undefined
  const { leasedRoom } = bucket
  return {
    ...{ level, at: now, rate, free: Math.max(now, free) },
    ...(isBlocked && { blocked }),
    ...(leasedRoom > QUOTA_ROOM && { quota: leasedRoom / PERIOD_ROOM }),
  }
}

/** Whether nothing would change if it were forgotten. A slot may be taken from before now, by the grace. */
function isIdle(bucket: Bucket, now: number): boolean {
  if (bucket.keptUntil >= now) return false
  const isFree = bucket.free <= now - SLOT_GRACE && (bucket.leases === undefined || bucket.leasedUntil <= now)
  const isBlocked = bucket.blocked < Infinity && bucket.blocked > now
  return isFree && !isBlocked && levelOf(bucket, now) === 0
}

/** Durations, not moments: if the clock goes back, no time has passed. In ms, except the rate. */
interface Known {
  readonly at: number
  readonly pausedFor: number
  /** Meaningless if `rateFor` is 0. */
  readonly rate: number
  readonly rateFor: number
}

const NOTHING: Known = { at: -Infinity, pausedFor: 0, rate: 0, rateFor: 0 }

export class MemoryUpstreams {
  readonly #known = new Map<string, Known>()
  readonly #sweep = new IdleSweep(this.#known)

  get size(): number {
    return this.#known.size
  }

  *all(now: number): Generator<[upstream: string, state: UpstreamState]> {
    for (const [upstream, known] of this.#known) {
      const { pausedFor, rate, rateFor } = age(known, now)
      yield [upstream, describeUpstream(pausedFor, rate, rateFor)]
    }
  }

  /** `changed` is called with what holds then, if that is new for others. `now` in ms. */
  exchange(
    upstream: string,
    news: UpstreamState | undefined,
    now: number,
    changed: (state: UpstreamState) => void = ignore,
  ): UpstreamState {
    const bounded = boundNews(news)
    const known = age(this.#known.get(upstream) ?? NOTHING, now)
    const isNewRate = bounded.rate !== undefined && (bounded.rate !== known.rate || bounded.rateFor > known.rateFor)
    const isNewPause = bounded.pausedFor > (this.#known.has(upstream) ? known.pausedFor + SAME_PAUSE : 0)
    const pausedFor = Math.max(known.pausedFor, bounded.pausedFor)
    const { rate = 0, rateFor } = bounded.rate === undefined ? known : bounded
    if (pausedFor === 0 && rateFor === 0) {
      this.#known.delete(upstream)
    } else {
      if (!this.#known.has(upstream)) this.#sweep.sweep(other => isOver(age(other, now)))
      this.#known.set(upstream, { at: now, pausedFor, rate, rateFor })
    }
    const state = describeUpstream(pausedFor, rate, rateFor)
    if (isNewRate || isNewPause) changed(state)
    return state
  }
}

function isOver({ pausedFor, rateFor }: Known): boolean {
  return pausedFor === 0 && rateFor === 0
}

function age({ at, pausedFor, rate, rateFor }: Known, now: number): Known {
  const elapsed = Math.max(0, now - at)
  return { at: now, pausedFor: Math.max(0, pausedFor - elapsed), rate, rateFor: Math.max(0, rateFor - elapsed) }
}

type MemoryBoard = { [Verb in keyof Board]: AtOnce<Board[Verb]> }

/** What instances leave for each other, in this process. sharing/board.ts says what each verb means. */
function createMemoryBoard({ now }: Pick<Clock, 'now'>, listeners: Listeners): MemoryBoard {
  /** By bucket and key, each with its end in ms. */
  const overrides = new Map<string, { override: Override; end: number }>()
  /** By their ids, each with its time in ms. */
  const views: Record<ViewKind, Map<string, { text: string; at: number }>> = { present: new Map(), hour: new Map() }
  let secret: string | undefined
  const nameOf = (bucket: string, key: string): string => JSON.stringify([bucket, key])

  function forgetEnded(): void {
    for (const [name, { end }] of overrides) if (end <= now()) overrides.delete(name)
  }

  function forgetGone(kind: ViewKind): void {
    for (const [id, { at }] of views[kind]) if (now() - at >= VIEW_LIFE[kind]) views[kind].delete(id)
  }

  return {
    setOverride(override) {
      const name = nameOf(override.bucket, override.key)
      forgetEnded()
      if (overrides.size === MOST_OVERRIDES && !overrides.has(name)) return false
      overrides.set(name, { override, end: now() + override.endsIn })
      listeners.tell({ about: 'override', override })
      return true
    },

    endOverride(bucket, key) {
      forgetEnded()
      const isKnown = overrides.delete(nameOf(bucket, key))
      if (isKnown) listeners.tell({ about: 'override', override: { bucket, key, endsIn: 0 } })
      return isKnown
    },

    overrides() {
      forgetEnded()
      return Array.from(overrides.values(), ({ override, end }) => ({ ...override, endsIn: end - now() }))
    },

    show(kind, id, text) {
      forgetGone(kind)
      views[kind].set(id, { text, at: now() })
    },

    views(kind) {
      forgetGone(kind)
      return Array.from(views[kind], ([id, { text, at }]) => ({ id, text, age: now() - at }))
    },

    tell: news => listeners.tell(news),

    agreeOnSecret(proposed) {
      secret ??= proposed
      return secret
    },
  }
}
