/**
 * A store in the memory of this process. core/store.ts says what each verb means. Every answer is there at once.
 *
 * Nothing in src uses it. It is the model that tests hold the other stores to (test/stores/model.ts).
 */
import { type BucketLimits, slackOf } from '../../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import type { Clock } from '../../core/clock.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import {
  type Admission,
  type AdmitRequest,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  type GiveBackRequest,
  HORIZON,
  longestBackDate,
  SLOT_GRACE,
  type UpstreamState,
} from '../../core/store.js'
import { IdleSweep } from '../../core/structures/idle-sweep.js'
import { BEAT_LIFE, SAME_SLOT } from '../constants.js'
import { MemoryUpstreams } from './upstreams.js'

/** The state of a bucket instance. Moments are in ms of the clock. */
interface State {
  /** Cost units at `at`. */
  level: number
  at: number
  /** When what was granted has drained. */
  free: number
  /** When a block ends. Infinity: when drained. -Infinity: no block. */
  blocked: number
  /** The rate that it was used with last, in cost units per ms. */
  rate: number
}

/** A store that answers without a promise. */
export interface MemoryStore {
  readonly horizon: number
  admit(request: AdmitRequest): Admission
  claim(request: ClaimRequest): ClaimAnswer
  giveBack(request: GiveBackRequest): void
  reset(bucket: BucketRef): void
  beat(id: string): number
  leave(id: string): void
  readonly left: number
  exchange(upstream: string, news?: UpstreamState): UpstreamState
  close(): Promise<void>
  /** How many bucket instances it knows. */
  readonly size: number
}

export function createMemoryStore({ clock }: { clock: Clock }): MemoryStore {
  /** By bucket name, then by key. */
  const buckets = new Map<string, Instances>()
  const beats = new Map<string, number>()
  let left = 0
  const upstreams = new MemoryUpstreams()

  function find({ limits, key }: BucketRef, now: number): State {
    let instances = buckets.get(limits.name)
    if (instances === undefined) {
      instances = new Instances()
      buckets.set(limits.name, instances)
    }
    const state = instances.find(key, now)
    if (now < state.at) shift(state, now)
    // The time until the next slot passes at the present rate.
    const isNew = state.rate !== limits.rate
    const left = (state.free - now) * state.rate
    state.rate = limits.rate
    if (isNew) {
      if (left > 0) state.free = now + left / limits.rate
      change(state, 0, now)
    }
    // A block until drained must not come back with the level.
    if (state.blocked === Infinity && blockedFor(state, now) === 0) {
      state.blocked = -Infinity
      change(state, 0, now)
    }
    return state
  }

  function claimAt(
    { stack, cost, since, ahead = 0 }: ClaimRequest,
    states: readonly State[],
    now: number,
  ): ClaimAnswer {
    const frees = states.map(({ free, rate }, place) => free - slackOf(stack[place]!.limits, cost) / rate)
    let at = Math.max(now - Math.min(since, longestBackDate(0)), ...frees.slice(0, -1))
    const isFar = at > now + HORIZON.least
    at = Math.max(at, frees.at(-1)!)
    if (isFar || at > now + HORIZON.least + ahead)
      return { granted: false, freeAt: frees.map(free => Math.max(now, free)) }
    for (const [place, state] of states.entries()) {
      change(state, 0, now)
      state.free = Math.max(state.free, at) + cost / stack[place]!.limits.rate
    }
    return { granted: true, slot: { at, token: at } }
  }

  return {
    horizon: HORIZON.least,

    admit(request) {
      const { stack, cost, claim } = request
      const now = clock.now()
      const states = stack.map(ref => find(ref, now))
      const rejection = decideAdmission(request, states, now)
      if (rejection !== undefined) return rejection
      for (const state of states) change(state, cost, now)
      const levels = states.map(({ level }) => level)
      if (!claim) return { admitted: true, levels }
      return { admitted: true, levels, claim: claimAt({ stack, cost, since: 0 }, states, now) }
    },

    claim(request) {
      const now = clock.now()
      const states = request.stack.map(ref => find(ref, now))
      return claimAt(request, states, now)
    },

    giveBack({ stack, cost, slot, slotCost = 0 }) {
      const now = clock.now()
      for (const ref of stack) {
        const state = find(ref, now)
        change(state, -cost, now)
        if (slot === undefined) continue
        const token = slot.token as number
        const { burst, rate } = ref.limits
        if (burst !== undefined)
          state.free = Math.min(state.free, state.free - slotCost / rate + Math.max(0, now - token))
        else if (Math.abs(state.free - (token + slotCost / rate)) <= SAME_SLOT) state.free = token
      }
    },

    reset({ limits, key }) {
      buckets.get(limits.name)?.forget(key)
    },

    beat(id) {
      const now = clock.now()
      beats.set(id, now)
      for (const [other, at] of beats) if (now - at > BEAT_LIFE) beats.delete(other)
      return beats.size
    },

    leave(id) {
      if (beats.delete(id)) left += 1
    },

    get left() {
      return left
    },

    exchange(upstream, news) {
      return upstreams.exchange(upstream, news, clock.now())
    },

    async close() {},

    get size() {
      let size = 0
      for (const instances of buckets.values()) size += instances.size
      return size
    },
  }
}

/** The instances of one bucket, by key. Each new one sweeps some idle ones. */
class Instances {
  readonly #byKey = new Map<string, State>()
  readonly #sweep = new IdleSweep(this.#byKey)

  get size(): number {
    return this.#byKey.size
  }

  find(key: string, now: number): State {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    this.#sweep.sweep(other => isIdle(other, now))
    const state = { level: 0, at: now, free: -Infinity, blocked: -Infinity, rate: 1 }
    this.#byKey.set(key, state)
    return state
  }

  forget(key: string): void {
    this.#byKey.delete(key)
  }
}

/** Whether nothing would change if it were forgotten. A slot may be taken from before now, by the grace. */
function isIdle(state: State, now: number): boolean {
  return levelOf(state, now) === 0 && blockedFor(state, now) === 0 && state.free <= now - SLOT_GRACE
}

/** The clock went back: moves all moments with it, as no time has passed. */
function shift(state: State, now: number): void {
  const by = now - state.at
  state.at = now
  state.free += by
  state.blocked += by
}

function levelOf({ level, at, rate }: State, now: number): number {
  return level === 0 ? 0 : Math.max(0, level - Math.max(0, now - at) * rate)
}

/** Each change is dated: a clock that goes back is noticed by that. */
function change(state: State, by: number, now: number): void {
  state.level = Math.max(0, levelOf(state, now) + by)
  state.at = now
}

/** How much longer a block lasts, in ms. Infinity: until drained. */
function blockedFor(state: State, now: number): number {
  if (state.blocked < Infinity) return Math.max(0, state.blocked - now)
  return levelOf(state, now) > LEVEL_TOLERANCE ? Infinity : 0
}

type Refusal = Extract<Admission, { admitted: false }>

/** Undefined: all buckets admit it. An overflow is followed by the policy of the buckets that overflow. */
function decideAdmission(request: AdmitRequest, states: readonly State[], now: number): Refusal | undefined {
  const { stack, cost, maxWait } = request
  const which = (refuses: (state: State, limits: BucketLimits) => boolean): number[] =>
    states.flatMap((state, place) => (refuses(state, stack[place]!.limits) ? [place] : []))

  const answer = (reason: Refusal['reason'], refusing: number[]): Refusal => ({
    admitted: false,
    levels: states.map(state => levelOf(state, now)),
    reason,
    refusing,
    retryAfterMs: reason === 'too-costly' ? undefined : msUntilAdmitted(request, states, now),
  })

  const tooSmall = which((_, { capacity }) => cost > capacity + LEVEL_TOLERANCE)
  if (tooSmall.length > 0) return answer('too-costly', tooSmall)
  const blocked = which(state => blockedFor(state, now) > 0)
  if (blocked.length > 0) return answer('blocked', blocked)
  const full = which((state, { capacity }) => levelOf(state, now) + cost - capacity > LEVEL_TOLERANCE)
  for (const place of full) applyOverflowPolicy(states[place]!, stack[place]!.limits, now)
  if (full.length > 0) return answer('overflow', full)
  const long = which((state, limits) => {
    return (levelOf(state, now) - slackOf(limits, cost)) / state.rate - SAME_TIME > maxWait
  })
  return long.length > 0 ? answer('max-wait', long) : undefined
}

function applyOverflowPolicy(state: State, { capacity, overflow, blockFor }: BucketLimits, now: number): void {
  if (overflow !== 'fill' && blockFor === undefined) return
  change(state, 0, now)
  if (overflow === 'fill') state.level = Math.max(capacity, state.level)
  if (blockFor !== undefined) state.blocked = blockFor === 'drain' ? Infinity : now + blockFor
}

/** ms until it would be admitted if nobody else came. */
function msUntilAdmitted({ stack, cost, maxWait }: AdmitRequest, states: readonly State[], now: number): number {
  let time = 0
  for (const [place, state] of states.entries()) {
    const { limits } = stack[place]!
    const { rate, capacity } = limits
    const blocked = blockedFor(state, now)
    const target = blocked === Infinity ? 0 : Math.min(capacity - cost, rate * maxWait + slackOf(limits, cost))
    time = Math.max(time, (levelOf(state, now) - target) / rate)
    if (blocked < Infinity) time = Math.max(time, blocked)
  }
  return time
}
