/**
 * A store in the memory of this process. core/store.ts says what each verb means. Every answer is there at once.
 *
 * It is the store of the primary of workers. Tests hold the other stores to it (test/stores/model.ts).
 */
import { type Board, Listeners, type News } from '../../core/board.js'
import { type BucketLimits, slackOf } from '../../core/bucket/limits.js'
import { isCost, LEVEL_TOLERANCE } from '../../core/bucket/meter.js'
import type { Clock } from '../../core/clock.js'
import { SAME_TIME } from '../../core/queue/ready-lanes.js'
import {
  type Admission,
  type AdmitRequest,
  areCosts,
  type BucketRef,
  type ClaimAnswer,
  type ClaimRequest,
  costOfRef,
  type GiveBackRequest,
  HORIZON,
  type LeaseAnswer,
  type LeaseRequest,
  longestBackDate,
  type PromiseAnswer,
  type PromiseRequest,
  type Roll,
  type SettleRequest,
  SLOT_GRACE,
} from '../../core/store.js'
import { IdleSweep } from '../../core/structures/idle-sweep.js'
import type { UpstreamState } from '../../core/upstream-state.js'
import { BEAT_LIFE, SAME_SLOT } from '../constants.js'
import { createMemoryBoard } from './board.js'
import { type LeasedState, lease } from './leases.js'
import { claimed, isDue, promise, redeem, reservedOf, shiftPromises } from './promises.js'
import { firstSlot, freeAt, placeOf, type Schedule, takeSlot } from './schedule.js'
import { MemoryUpstreams } from './upstreams.js'

/** The state of a bucket instance. Moments are in ms of the clock. The rate is the one that it was used with last. */
interface State extends LeasedState, Schedule {
  /** When a block ends. Infinity: when drained. -Infinity: no block. */
  blocked: number
}

/** A store that answers without a promise. */
export interface MemoryStore {
  readonly horizon: number
  admit(request: AdmitRequest): Admission
  claim(request: ClaimRequest): ClaimAnswer
  giveBack(request: GiveBackRequest): void
  settle(request: SettleRequest): number[]
  promise(request: PromiseRequest): PromiseAnswer
  lease(request: LeaseRequest): LeaseAnswer
  reset(bucket: BucketRef): void
  beat(id: string): Roll
  leave(id: string): void
  exchange(upstream: string, news?: UpstreamState): UpstreamState
  listen(listener: (news: News) => void): () => void
  readonly board: Board
  close(): Promise<void>
  /** How many bucket instances it knows. */
  readonly size: number
}

interface Returned {
  /** ms */
  readonly at: number
  readonly cost: number
  readonly now: number
}

/**
 * When what was granted has drained, in ms, without a slot that is given back. The last slot takes with it all that it added. Of a burst an
 * earlier one takes what has not drained of it, as long as no slot lies ahead. Those that do stay where they are, so the next comes after them.
 */
function freeWithout(free: number, limits: BucketLimits, { at, cost, now }: Returned): number {
  const { rate, burst = 0 } = limits
  const [length, slack] = [cost / rate, slackOf(limits, cost) / rate]
  if (Math.abs(free - (at + slack + length)) <= SAME_SLOT) return free - length
  return free <= now + burst / rate ? free - Math.max(0, length - Math.max(0, now - at)) : free
}

/** Where the slots of a claim may lie, in ms from now: as far ahead as the horizon, and `longestBackDate` back. */
export interface Reach {
  horizon: number
  back: number
}

export interface MemoryStoreOptions {
  readonly clock: Pick<Clock, 'now'>
  /** For who asks next. Absent: for this process. */
  readonly reach?: Readonly<Reach>
}

const NEAR: Reach = { horizon: HORIZON.least, back: longestBackDate(0) }

export function createMemoryStore({ clock, reach = NEAR }: MemoryStoreOptions): MemoryStore {
  /** By bucket name, then by key. */
  const buckets = new Map<string, Instances>()
  const beats = new Map<string, number>()
  let left = 0
  const upstreams = new MemoryUpstreams()
  const listeners = new Listeners()

  /** Sweeps first: a bucket instance that is idle may not be forgotten once it is found. */
  function findAll(stack: readonly BucketRef[], now: number): State[] {
    for (const { limits, key } of stack) buckets.get(limits.name)?.sweepFor(key, now)
    return stack.map(ref => find(ref, now))
  }

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
      state.gapUntil = -Infinity
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

  function claimAt(request: ClaimRequest, states: readonly State[], now: number): ClaimAnswer {
    const { stack, since, ahead: asked = 0, notBefore = -Infinity, within = Infinity } = request
    if (!areCosts(stack, request.cost)) return { granted: false, freeAt: states.map(({ free }) => Math.max(now, free)) }
    const places = states.map((state, place) => placeOf(state, stack[place]!, request, now))
    const frees = places.map(({ free }) => free)
    const earliest = Math.max(now - Math.min(since, reach.back), notBefore)
    // Those who lease are in turn.
    const isInTurn = states.every(
      ({ leasedUntil }, place) => leasedUntil <= now || frees[place]! <= Math.max(now, earliest) + SAME_SLOT,
    )
    let at = firstSlot(places.slice(0, -1), earliest)
    const wanted = Math.min(notBefore + (within < Infinity ? within : 0), now + HORIZON.most)
    const furthest = Math.max(now + reach.horizon, wanted)
    // The last bucket would be idle meanwhile.
    const isFar = at > furthest && at > frees.at(-1)!
    at = firstSlot(places, at)
    const isLate = within < Infinity && at > notBefore + within
    if (!isInTurn || isFar || isLate || at > furthest + asked)
      return { granted: false, freeAt: places.map(place => freeAt(place, earliest)) }
    const from = Math.min(at, Math.max(now, notBefore, ...frees))
    for (const [place, state] of states.entries()) {
      change(state, 0, now)
      takeSlot(places[place]!, { at, from })
    }
    return { granted: true, slot: { at, from, token: at } }
  }

  return {
    get horizon() {
      return reach.horizon
    },

    admit(request) {
      const { stack, cost, claim, ahead = 0 } = request
      const now = clock.now()
      const states = findAll(stack, now)
      const rejection = decideAdmission(request, states, now)
      if (rejection !== undefined) return rejection
      for (const [place, state] of states.entries()) change(state, costOfRef(stack[place]!, cost), now)
      redeemBooking(request, states)
      const levels = states.map(({ level }) => level)
      if (!claim) return { admitted: true, levels }
      return { admitted: true, levels, claim: claimAt({ stack, cost, since: 0, ahead }, states, now) }
    },

    claim(request) {
      const now = clock.now()
      const states = findAll(request.stack, now)
      return claimAt(request, states, now)
    },

    giveBack({ stack, cost, slot, slotCost = 0 }) {
      const now = clock.now()
      if (!areCosts(stack, cost) || !areCosts(stack, slotCost)) return
      for (const [place, state] of findAll(stack, now).entries()) {
        const ref = stack[place]!
        change(state, -costOfRef(ref, cost), now)
        if (slot === undefined) continue
        state.free = freeWithout(state.free, ref.limits, {
          at: slot.token as number,
          cost: costOfRef(ref, slotCost),
          now,
        })
      }
    },

    settle({ stack, cost }) {
      const now = clock.now()
      return findAll(stack, now).map((state, place) => {
        const ref = stack[place]!
        const { rate, capacity } = ref.limits
        const told = costOfRef(ref, cost)
        const difference = isCost(Math.abs(told)) ? told : 0
        const free = Math.max(state.free, now)
        const held = (free - now) * rate
        const moved = Math.max(-held, Math.min(difference, Math.max(0, capacity - held)))
        state.free = Math.max(now, free + moved / rate)
        // What was settled moves the schedule, and it has no gap any more.
        state.gapUntil = -Infinity
        const level = levelOf(state, now)
        change(state, difference < 0 ? difference : moved, now)
        return difference < 0 ? Math.min(moved, state.level - level) : moved
      })
    },

    promise(request) {
      const now = clock.now()
      const [state] = findAll([request.bucket], now) as [State]
      change(state, 0, now)
      return promise(state, state.level, request, now)
    },

    lease(request) {
      const now = clock.now()
      const [state] = findAll([request.bucket], now) as [State]
      change(state, 0, now)
      return lease(state, known(request), now)
    },

    reset({ limits, key }) {
      listeners.tell({ about: 'reset', bucket: limits.name, key })
      buckets.get(limits.name)?.forget(key)
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
    board: createMemoryBoard(clock, listeners),

    async close() {},

    get size() {
      let size = 0
      for (const instances of buckets.values()) size += instances.size
      return size
    },
  }
}

/** What is no number in a report counts as 0. */
function known(report: LeaseRequest): LeaseRequest {
  const { largest, used, want, ahead, lacks, pace, demand, returned } = report
  return {
    ...report,
    ...{
      largest: largest || 0,
      used: used || 0,
      want: want || 0,
      ahead: ahead || 0,
      lacks: lacks || 0,
      pace: pace || 0,
    },
    demand: demand.map(each => ({ ...each, cost: each.cost || 0 })),
    returned: returned.map(each => ({ ...each, cost: each.cost || 0 })),
  }
}

/** The instances of one bucket, by key. Each new one sweeps some idle ones. */
class Instances {
  readonly #byKey = new Map<string, State>()
  readonly #sweep = new IdleSweep(this.#byKey)

  get size(): number {
    return this.#byKey.size
  }

  get(key: string): State | undefined {
    return this.#byKey.get(key)
  }

  find(key: string, now: number): State {
    const known = this.#byKey.get(key)
    if (known !== undefined) return known
    const state = {
      level: 0,
      at: now,
      free: -Infinity,
      gapFrom: -Infinity,
      gapUntil: -Infinity,
      blocked: -Infinity,
      rate: 1,
      leasedRate: 0,
      leasedUntil: -Infinity,
      leases: undefined,
      promises: [],
      kept: 0,
      keptUntil: -Infinity,
    }
    this.#byKey.set(key, state)
    return state
  }

  sweepFor(key: string, now: number): void {
    if (!this.#byKey.has(key)) this.#sweep.sweep(state => isIdle(state, now))
  }

  forget(key: string): void {
    this.#byKey.delete(key)
  }
}

/** Whether nothing would change if it were forgotten. A slot may be taken from before now, by the grace. */
function isIdle(state: State, now: number): boolean {
  if (state.keptUntil >= now) return false
  const isFree = state.free <= now - SLOT_GRACE && (state.leases === undefined || state.leasedUntil <= now)
  return isFree && levelOf(state, now) === 0 && blockedFor(state, now) === 0
}

/** The clock went back: moves all moments with it, as no time has passed. */
function shift(state: State, now: number): void {
  const by = now - state.at
  state.at = now
  state.free += by
  state.gapUntil = -Infinity
  state.blocked += by
  state.leasedUntil += by
  shiftPromises(state, by)
  for (const lessee of state.leases?.lessees ?? []) {
    lessee.seenAt += by
    lessee.nextAt += by
    lessee.pacedAt += by
    lessee.roomUntil += by
    lessee.slots = lessee.slots.map(({ at, cost }) => ({ at: at + by, cost }))
  }
  if (state.leases === undefined) return
  state.leases.spare = []
  state.leases.gone = state.leases.gone.map(({ until, ...rest }) => ({ ...rest, until: until + by }))
}

function levelOf({ level, at, rate, leasedRate, leasedUntil }: State, now: number): number {
  if (level === 0) return 0
  const leased = leasedRate * Math.max(0, Math.min(now, leasedUntil) - at)
  return Math.max(0, level - Math.max(0, now - at) * rate + leased)
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
  const levels = occupied(request, states, now)
  const which = (refuses: (place: number, limits: BucketLimits, cost: number) => boolean): number[] =>
    stack.flatMap((ref, place) => (refuses(place, ref.limits, costOfRef(ref, cost)) ? [place] : []))

  const answer = (reason: Refusal['reason'], refusing: number[]): Refusal => ({
    admitted: false,
    levels: states.map(state => levelOf(state, now)),
    reason,
    refusing,
    retryAfterMs: reason === 'too-costly' ? undefined : msUntilAdmitted(request, states, now),
  })

  const tooSmall = which((_, { capacity }, cost) => !isCost(cost) || cost > capacity + LEVEL_TOLERANCE)
  if (tooSmall.length > 0) return answer('too-costly', tooSmall)
  const blocked = which(place => blockedFor(states[place]!, now) > 0)
  if (blocked.length > 0) return answer('blocked', blocked)
  const full = which((place, { capacity }, cost) => levels[place]! + cost - capacity > LEVEL_TOLERANCE)
  for (const place of full) applyOverflowPolicy(states[place]!, stack[place]!.limits, now)
  if (full.length > 0) return answer('overflow', full)
  const long = which((place, limits, cost) => {
    return (levels[place]! - slackOf(limits, cost)) / limits.rate - SAME_TIME > maxWait
  })
  return long.length > 0 ? answer('max-wait', long) : undefined
}

/** The levels with the room that is kept from this request. */
function occupied({ stack, cost, booked }: AdmitRequest, states: readonly State[], now: number): number[] {
  return states.map((state, place) => {
    const claim = booked?.place === place ? claimed(state, booked, costOfRef(stack[place]!, cost)) : undefined
    return levelOf(state, now) + (claim !== undefined && isDue(claim, now) ? 0 : reservedOf(state, now))
  })
}

/** The booking of a request that was admitted is over, also if it came early. */
function redeemBooking({ stack, cost, booked }: AdmitRequest, states: readonly State[]): void {
  const state = booked && states[booked.place]
  if (state === undefined) return
  const ref = stack[booked!.place]!
  const claim = claimed(state, booked!, costOfRef(ref, cost))
  if (claim !== undefined) redeem(state, claim, ref.limits)
}

function applyOverflowPolicy(state: State, { capacity, overflow, blockFor }: BucketLimits, now: number): void {
  if (overflow !== 'fill' && blockFor === undefined) return
  change(state, 0, now)
  if (overflow === 'fill') state.level = Math.max(capacity, state.level)
  if (blockFor !== undefined) state.blocked = blockFor === 'drain' ? Infinity : now + blockFor
}

/** ms until it would be admitted if nobody else came. */
function msUntilAdmitted(request: AdmitRequest, states: readonly State[], now: number): number {
  const { stack, cost, maxWait } = request
  const levels = occupied(request, states, now)
  let time = 0
  for (const [place, state] of states.entries()) {
    const { limits } = stack[place]!
    const inBucket = costOfRef(stack[place]!, cost)
    const { rate, capacity } = limits
    const blocked = blockedFor(state, now)
    const target = blocked === Infinity ? 0 : Math.min(capacity - inBucket, rate * maxWait + slackOf(limits, inBucket))
    time = Math.max(time, (levels[place]! - target) / rate)
    if (blocked < Infinity) time = Math.max(time, blocked)
  }
  return time
}
