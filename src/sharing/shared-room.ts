/**
 * Admission by a store that instances share. The store counts everything, whichever instance it waits in. The queue here has
 * to fit as well: the store's meter leaks while an upstream is slow, and a queue does not. Without an answer of the store
 * this instance decides, as `onOutage` says.
 */

import { decide, placeless, shutOut, timeUntilFit, uncountable } from '../core/admission/decide.js'
import { isMixed, timeUntilQueued } from '../core/admission/drain-time.js'
import { levelWait, predictedWait } from '../core/admission/predicted-wait.js'
import type { RejectedArrival, Reserved, RoomRequest, RoomSource } from '../core/admission/room-source.js'
import { passedIn, timeToPass } from '../core/bucket/limits.js'
import { LEVEL_TOLERANCE } from '../core/bucket/meter.js'
import type { Clock } from '../core/clock.js'
import { ignore, when } from '../core/maybe-promise.js'
import { DEFAULT_PRIORITY } from '../core/priority.js'
import { costAt, costIn, type Demand, type Rejection, type SharedBucket } from '../core/queue/lane.js'
import type { ReadyLanes } from '../core/queue/ready-lanes.js'
import type { Arrival, Shaper, Shared } from '../core/shaper.js'
import { isQuick } from './bucket-lease.js'
import { SharedPromises } from './promises.js'
import type { OnOutage } from './shard.js'
import type { Admission, AdmitRequest, Store } from './store.js'
import { StoreSlots } from './store-slots.js'
import { type Inquiries, type Inquiry, refsFor, type StoredBucket } from './stored-bucket.js'

interface Asking {
  readonly arrival: Arrival
  readonly stack: readonly SharedBucket[]
  readonly request: Omit<AdmitRequest, 'stack'>
  /** Whether an earlier question of the same request was dealt with just now. */
  readonly isAgain?: boolean
  decided(admission: Admission): void
  alone(): void
}

type Then = (reserved: Reserved) => void
type Question = Pick<Asking, 'arrival' | 'stack'> & { readonly longest: number }

export interface SharingTerms {
  readonly store: Store
  readonly clock: Clock
  /** Absent: `local`. */
  readonly onOutage?: OnOutage
  /** The store has not answered a question of this time, in ms, about these. */
  unanswered?(stack: readonly SharedBucket[], askedAt: number): void
  /** How many there are. Absent: one. */
  instances?(): number
}

/** Lets a shaper get room and slots from a store. */
export function shareBy(terms: SharingTerms): (shaper: Shaper, lanes: ReadyLanes) => Shared {
  return (shaper, lanes) => {
    const options = { onOutage: 'local' as const, unanswered: ignore, instances: () => 1, ...terms, shaper }
    const slots = new StoreSlots({ ...options, lanes })
    return { slots, room: new SharedRoom({ ...options, slots }) }
  }
}

interface SharedRoomOptions extends Required<SharingTerms> {
  readonly shaper: Shaper
  readonly slots: StoreSlots
}

class SharedRoom implements RoomSource {
  readonly #options: SharedRoomOptions
  readonly #promises: SharedPromises

  constructor(options: SharedRoomOptions) {
    this.#options = options
    this.#promises = new SharedPromises(options)
  }

  /** Without the store this instance leaves as many slots between as there are instances. */
  promise(rejected: RejectedArrival, alone: (instances: number) => void): void {
    const { arrival, rejection, atOnce = false } = rejected
    const bucket = rejection.buckets.at(-1) as StoredBucket | undefined
    const isShared = bucket?.shard.mode === 'claimed'
    const tellAlone = (): void => alone(bucket?.shard.mode === 'claimed' ? this.#options.instances() : 1)
    // Of a slow bucket the next moment is far: two instances must not tell the same one.
    const asks =
      !atOnce ||
      arrival.appointment !== undefined ||
      (bucket !== undefined && !isQuick(bucket.limits.rate, costIn(arrival, bucket)))
    if (asks && isShared) this.#promises.ask(rejected, tellAlone)
    else tellAlone()
  }

  reserve(newcomer: RoomRequest, then: Then): void {
    const { arrival, mode } = newcomer
    const { stack } = arrival
    const refused = uncountable(arrival)
    if (mode !== 'shape') {
      if (!this.#asks(arrival)) return this.#decideAlone(newcomer, then)
      const { gate } = arrival.route
      const shut = refused ?? shutOut(gate, this.#options.clock.now()) ?? placeless(arrival)
      return shut === undefined ? this.#reserveByLease(newcomer, then) : then(shut)
    }
    if (refused !== undefined) return then(refused)
    const reserve = (): void => {
      if (!this.#asks(arrival)) this.#afterEarlier(arrival, () => this.#decideAlone(newcomer, then))
      else if (!stack.some(isLeased) || this.#promises.redemptionOf(arrival) !== undefined)
        this.#reserveByStore(newcomer, then)
      else if (this.#passByLease(arrival)) then('released')
      else this.#reserveByLease(newcomer, then)
    }
    const { awaitsRoom, refills } = stack[0] as StoredBucket
    // Those that wait for leased room came first, though it is not leased any more.
    if (awaitsRoom && !(this.#asks(arrival) && stack.some(isLeased))) refills.answered(refills.ask(), reserve)
    else reserve()
  }

  #reserveByStore(newcomer: RoomRequest, then: Then): void {
    const { shaper, slots, clock } = this.#options
    const { arrival, maxWait, arrivedAt } = newcomer
    const { stack } = arrival
    const pause = arrival.route.gate.pausedFor(arrivedAt)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const late = pause > longest ? decide(arrival, longest, arrivedAt, pause) : undefined
    if (late !== undefined) return then(late)
    const patience = longest - pause
    const booked = this.#promises.redemptionOf(arrival)
    const overflow =
      this.#localOverflow(arrival) ?? (booked === undefined ? knownOverflow(arrival, arrivedAt) : undefined)
    // Nobody makes room before the store has admitted the newcomer.
    if (overflow !== undefined && !shaper.couldMakeRoomFor(arrival, overflow.buckets, patience)) return then(overflow)
    if ((arrival.priority ?? DEFAULT_PRIORITY) !== DEFAULT_PRIORITY) {
      for (const bucket of stack) (bucket as StoredBucket).hasPriorities = true
    }
    const ahead = slots.ahead(arrival)
    const claim = booked === undefined && mayGo(arrival, { ahead, now: arrivedAt })
    const told = this.#passesLevels(arrival, longest, pause) ? Infinity : toldWait(arrival, patience, arrivedAt)
    this.#ask(
      { arrival, longest, stack },
      { cost: arrival.cost, maxWait: told, claim, ahead, ...(booked && { booked }) },
      admission => {
        if (!admission.admitted) return then(rejectionOf(arrival, admission, patience, clock.now()))
        const room = slots.roomFor(newcomer, admission.claim)
        // What has its slot leaves in time, however much waits here.
        const full = admission.claim?.granted ? undefined : this.#makeRoomHere(arrival, patience)
        if (full === undefined) return then(room)
        room.giveBack()
        then(full)
        shaper.wake()
      },
      () => this.#decideAlone(newcomer, then),
    )
  }

  #reserveByLease(newcomer: RoomRequest, then: Then): void {
    const { shaper, clock } = this.#options
    const { arrival, mode, maxWait } = newcomer
    const longest = mode === 'shape' ? Math.min(maxWait, arrival.patience ?? Infinity) : Infinity
    const booked = this.#promises.redemptionOf(arrival)
    this.#whenRoomIsKnown(arrival, () => {
      if (!this.#asks(arrival)) return this.#decideAlone(newcomer, then)
      const pause = arrival.route.gate.pausedFor(clock.now())
      // What is booked is room of its own.
      if (booked !== undefined) return this.#reserveRest(newcomer, [], { longest, pause, booked }, then)
      const leased = arrival.stack.filter(isLeased) as StoredBucket[]
      const rejection = this.#rejectByLease(newcomer, leased, { longest, pause })
      if (rejection === undefined) return this.#reserveRest(newcomer, leased, { longest, pause }, then)
      then(rejection)
      shaper.wake()
    })
  }

  /** Where room is leased of some buckets, the store is asked about the others only. */
  #reserveRest(
    newcomer: RoomRequest,
    leased: readonly StoredBucket[],
    { longest, pause, booked }: Pick<Delay, 'longest' | 'pause'> & Pick<AdmitRequest, 'booked'>,
    then: Then,
  ): void {
    const { slots, clock } = this.#options
    const { arrival, mode } = newcomer
    for (const bucket of leased) bucket.useRoom(costIn(arrival, bucket), clock.now())
    const reserved = (): void => then(slots.roomFor(newcomer))
    const stack = arrival.stack.filter(bucket => !leased.includes(bucket as StoredBucket))
    if (stack.length === 0) return mode === 'shape' ? this.#afterEarlier(arrival, reserved) : reserved()
    const told = this.#passesLevels(arrival, longest, pause) ? Infinity : longest - pause
    this.#askOnce({
      ...{ arrival, stack },
      request: { cost: arrival.cost, maxWait: told, claim: false, ...(booked && { booked }) },
      alone: () => this.#decideAlone(newcomer, then),
      decided: admission => {
        if (admission.admitted) return reserved()
        slots.giveBackRoom(partOf(arrival, leased))
        this.#leaseFull(arrival, stack, admission)
        then(rejectionOf({ ...arrival, ...partOf(arrival, stack) }, admission, longest - pause, clock.now()))
      },
    })
  }

  /** Most requests at high rates find leased room and a leased slot: they pass without a ticket (docs/decisions/workers-pipe.md). */
  #passByLease(arrival: Arrival): boolean {
    const { stack } = arrival
    const now = this.#options.clock.now()
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place] as StoredBucket
      const { lease, asked } = bucket
      const cost = costAt(arrival, place)
      if (!isLeased(bucket) || asked || lease!.pastFor(cost) === 0 || lease!.roomAt(now) < cost) return false
    }
    const { shaper, slots } = this.#options
    const passes = slots.passAtOnce(arrival, shaper.engine.settle())
    shaper.engine.notify()
    if (!passes) return false
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place] as StoredBucket
      bucket.lease!.ask(costAt(arrival, place))
      bucket.useRoom(costAt(arrival, place), now)
    }
    return true
  }

  /** Calls back in the order of arrival. A bucket without room for it is asked for more first. */
  #whenRoomIsKnown(arrival: Arrival, then: () => void): void {
    const { slots, clock } = this.#options
    const buckets = arrival.stack as readonly StoredBucket[]
    for (const bucket of buckets) if (isLeased(bucket)) bucket.lease!.ask(costIn(arrival, bucket))
    const poorAt = (now: number): StoredBucket | undefined =>
      buckets.find(bucket => isLeased(bucket) && bucket.lease!.canRefill(costIn(arrival, bucket), now))
    const [own] = buckets as readonly [StoredBucket]
    if (!own.awaitsRoom && poorAt(clock.now()) === undefined) return then()
    const lists = buckets.map(({ refills }) => refills)
    const inquiries = lists.map(refills => refills.ask())
    let tries = 0
    const attempt = (): void => {
      const poor = poorAt(clock.now())
      if (poor === undefined || tries === MOST_REFILLS) return inOrder(lists, inquiries, then)
      tries += 1
      slots.leases.refill(poor, () => {
        poor.lease?.refilled(costIn(arrival, poor), clock.now())
        attempt()
      })
    }
    attempt()
  }

  /** Calls back at once, or behind the requests of the same first bucket that the store was asked about. */
  #afterEarlier({ stack }: Arrival, then: () => void): void {
    const { inquiries } = stack[0] as StoredBucket
    if (inquiries.size === 0) return then()
    inquiries.answered(inquiries.ask(), () => {
      then()
      this.#options.shaper.wake()
    })
  }

  #rejectByLease(
    { arrival, mode }: RoomRequest,
    leased: readonly StoredBucket[],
    { longest, pause }: Pick<Delay, 'longest' | 'pause'>,
  ): Rejection | undefined {
    const { shaper, clock } = this.#options
    const isAll = leased.length === arrival.stack.length
    const asked = isAll ? arrival : { ...arrival, ...partOf(arrival, leased) }
    const judge = (): Rejection | undefined => {
      const now = clock.now()
      return (
        this.#roomless(arrival) ??
        decide(asked, isAll ? longest : Infinity, now, pause) ??
        this.#localOverflow(arrival) ??
        knownOverflow(arrival, now) ??
        (isAll ? undefined : tooLate(arrival, leased, longest, now))
      )
    }
    const rejection = judge()
    if (rejection?.reason !== 'overflow') return rejection
    for (const bucket of rejection.buckets) (bucket as StoredBucket).lease?.refuse()
    // Nobody makes room for a request that does not wait.
    const hasRoom = mode === 'shape' && shaper.makeRoomFor(arrival, rejection.buckets, longest - pause)
    return hasRoom ? judge() : rejection
  }

  /** Why the room that is leased here does not do. When there is some is up to the bucket, as for one process. */
  #roomless(arrival: Arrival): Rejection | undefined {
    const now = this.#options.clock.now()
    const stack = arrival.stack as readonly StoredBucket[]
    const buckets = stack.filter(
      (bucket, place) => bucket.hasRoom && !bucket.lease!.hasRoomFor(costAt(arrival, place), now),
    )
    if (buckets.length === 0 || buckets.some(bucket => !bucket.canEverFit(costIn(arrival, bucket)))) return undefined
    // At least until the next request has left: others have that room.
    const times = buckets.map(bucket => {
      const cost = costIn(arrival, bucket)
      return Math.max(timeUntilFits(bucket, cost, now), cost / (bucket.limits.whole ?? bucket.limits).rate)
    })
    return { reason: 'overflow', buckets, retryAfterMs: Math.max(...times) }
  }

  #asks({ stack }: Arrival): boolean {
    const { slots, onOutage } = this.#options
    if (slots.modeOf(stack) === 'claimed') return true
    // A shard that is in doubt mostly answers. Rejecting meanwhile would be for nothing.
    const isOpen = ({ shard }: StoredBucket): boolean => shard.mode === 'claimed' || shard.isDoubtful
    return onOutage === 'closed' && (stack as readonly StoredBucket[]).every(isOpen)
  }

  /** Asks the store. After an overflow others may make room for the newcomer. It is asked once more then. */
  #ask(
    { arrival, stack, longest }: Question,
    request: Omit<AdmitRequest, 'stack'>,
    decided: (admission: Admission) => void,
    alone: () => void,
  ): void {
    const { shaper } = this.#options
    const decidedAtLast = (admission: Admission): void => {
      this.#leaseFull(arrival, stack, admission)
      if (admission.admitted || admission.reason !== 'max-wait') return decided(admission)
      this.#whenOthersAreKnown(arrival, admission.refusing, () => {
        if (!this.#hasTurnInTime(arrival, longest)) return decided(admission)
        const room = { ...request, maxWait: Infinity }
        this.#askOnce({ arrival, stack, request: room, isAgain: true, decided, alone })
      })
    }
    const decidedFirst = (admission: Admission): void => {
      if (!admission.admitted && admission.reason === 'overflow') {
        // It has to fit here as well, else others would make room in vain.
        const full = stack.filter(
          (bucket, place) => admission.refusing.includes(place) || isFull(bucket, costAt(arrival, place)),
        )
        const mayFit = shaper.makeRoomFor(arrival, full, request.maxWait)
        if (mayFit) return this.#askOnce({ arrival, stack, request, isAgain: true, decided: decidedAtLast, alone })
      }
      decidedAtLast(admission)
    }
    this.#askOnce({ arrival, stack, request, decided: decidedFirst, alone })
  }

  /** Whether a request has its turn in time though more waits than leaves in that time, as is known here. Times in ms. */
  #passesLevels(arrival: Arrival, longest: number, pause: number): boolean {
    if (longest === Infinity) return false
    const delay = { arrival, longest, pause, now: this.#options.clock.now() }
    return arrival.stack.some(bucket => levelDelays(bucket, delay)) && this.#hasTurnInTime(arrival, longest)
  }

  /** Whether a request has its turn in time, in ms, by what waits here and elsewhere. False: not known, so the level counts. */
  #hasTurnInTime(arrival: Arrival, longest: number): boolean {
    const now = this.#options.clock.now()
    const stack = arrival.stack as readonly StoredBucket[]
    // In one lane everybody has the turn that the level says.
    if (stack.every((bucket, place) => bucket.isOneLane(place))) return false
    if (isMixed(arrival) || !stack.every(bucket => bucket.knowsOthers(arrival.cost, now))) return false
    return predictedWait(arrival, now, arrival.route.gate.pausedFor(now)) <= longest
  }

  /** Calls back when it is known what waits in other instances for these buckets of a stack, as far as it can be. */
  #whenOthersAreKnown(arrival: Arrival, places: readonly number[], then: () => void): void {
    const { slots, clock } = this.#options
    const stack = arrival.stack as readonly StoredBucket[]
    const unknown = places.filter(place => !stack[place]!.knowsOthers(arrival.cost, clock.now()))
    if (unknown.length === 0) return then()
    const lists = stack.map(({ inquiries }) => inquiries)
    const asked = lists.map(inquiries => inquiries.ask('first'))
    let left = unknown.length
    for (const place of unknown) {
      slots.leases.look(stack[place]!, costAt(arrival, place), () => {
        left -= 1
        if (left === 0) inOrder(lists, asked, then)
      })
    }
  }

  #askOnce({ arrival, stack: buckets, request, isAgain, decided, alone }: Asking): void {
    const { store, clock, unanswered } = this.#options
    const stack = buckets as readonly StoredBucket[]
    const all = arrival.stack as readonly StoredBucket[]
    const askedAt = clock.now()
    const lists = all.map(({ inquiries }) => inquiries)
    const asked = lists.map(inquiries => inquiries.ask(isAgain ? 'first' : 'last'))
    for (const bucket of stack) bucket.lease?.askStore(costIn(arrival, bucket))
    when(
      store.admit({ ...request, stack: refsFor(stack, arrival) }),
      admission =>
        inOrder(lists, asked, () => {
          const now = clock.now()
          for (const [place, bucket] of stack.entries()) {
            // Of a leased one the level has what is set apart for others. Its next report says how much.
            if (!bucket.hasRoom) bucket.levelReported(admission.levels[place]!, now, askedAt)
            else if (admission.admitted) bucket.levelChanged(costIn(arrival, bucket), now)
          }
          // With a second bucket there would be a call all the same.
          if (stack.length === 1 && stack[0]!.askedOften(now))
            this.#options.slots.leases.startRoom(stack[0]!, costIn(arrival, stack[0]!))
          decided(admission)
        }),
      () => {
        unanswered(stack, askedAt)
        inOrder(lists, asked, alone)
      },
    )
  }

  /** Full buckets are leased from now on, so that others do not have all the room that becomes free. */
  #leaseFull(arrival: Arrival, stack: readonly SharedBucket[], admission: Admission): void {
    if (admission.admitted || admission.reason !== 'overflow') return
    for (const place of admission.refusing) {
      const bucket = stack[place]!
      this.#options.slots.leases.startRoom(bucket as StoredBucket, costIn(arrival, bucket))
    }
  }

  /** Makes room in the queue here for a request that the store has admitted. Undefined: there is room. */
  #makeRoomHere(arrival: Arrival, maxWait: number): Rejection | undefined {
    if (this.#localOverflow(arrival) === undefined) return undefined
    // The store's levels include it already.
    const now = this.#options.clock.now()
    countIn(arrival, -1, now)
    const overflow = this.#localOverflow(arrival)!
    const fits = this.#options.shaper.makeRoomFor(arrival, overflow.buckets, maxWait)
    countIn(arrival, 1, now)
    return fits ? undefined : overflow
  }

  #localOverflow(arrival: Arrival): Rejection | undefined {
    const { stack } = arrival
    const full = stack.filter((bucket, place) => isFull(bucket, costAt(arrival, place)))
    if (full.length === 0) return undefined
    const { store, clock } = this.#options
    const now = clock.now()
    const horizon = store.horizonOf?.(refsFor(stack)) ?? store.horizon
    const times = stack.map((bucket, place) => {
      const cost = costAt(arrival, place)
      const { rate, capacity, quota } = bucket.limits
      if (quota !== undefined) return full.includes(bucket) ? quota.until - now : 0
      // A slot is claimed earlier than it is, by the horizon.
      const released = full.includes(bucket) ? timeUntilQueued(bucket, capacity - cost, now) + horizon : 0
      // The level has to fit as well, as the store is asked then.
      return Math.max((Math.max(bucket.queued, bucket.level(now)) + cost - capacity) / rate, released)
    })
    return { reason: 'overflow', buckets: full, retryAfterMs: Math.max(...times) }
  }

  /** The store cannot be asked. */
  #decideAlone({ arrival, mode }: RoomRequest, then: Then): void {
    const { onOutage, clock } = this.#options
    countAlone(arrival.stack)
    if (onOutage !== 'closed') return then(onOutage === 'local' ? 'here' : 'past')
    then((mode !== 'shape' ? shutOut(arrival.route.gate, clock.now()) : undefined) ?? UNAVAILABLE)
  }
}

const MOST_REFILLS = 10
const UNAVAILABLE: Rejection = { reason: 'unavailable', buckets: [], retryAfterMs: undefined }

/** Whether no request here goes before it. Those set aside do not, nor those whose slots may be ahead by `times.ahead` ms. */
function mayGo({ route, stack }: Arrival, { ahead, now }: { ahead: number; now: number }): boolean {
  const isTaken = (bucket: StoredBucket): boolean => {
    const { waiting, aside, claiming, lease, shut } = bucket
    const isAwaited = waiting > aside + (ahead > 0 ? claiming : 0)
    // What has left by a lease without a slot drains for a while after its end. The store does not know of it.
    return isAwaited || lease !== undefined || bucket.claimableFrom(now) > now || shut
  }
  return route.gate.open && !(stack as readonly StoredBucket[]).some(isTaken)
}

function isFull({ queued, waiting, limits }: SharedBucket, cost: number): boolean {
  return waiting > 0 && queued + cost > limits.capacity + LEVEL_TOLERANCE
}

/** ms until the level of a bucket leaves room for a cost. Below 0: it does. */
function timeUntilFits(bucket: SharedBucket, cost: number, now: number): number {
  const limits = bucket.limits.whole ?? bucket.limits
  return timeToPass(limits, bucket.level(now) + cost - limits.capacity, now)
}

/** The rejection by buckets of which the store has just said that they are full. */
function knownOverflow(arrival: Arrival, now: number): Rejection | undefined {
  const stack = arrival.stack as readonly StoredBucket[]
  const times = stack.map((bucket, place) => bucket.fullFor(costAt(arrival, place), now))
  const refusing = [...stack.keys()].filter(place => times[place]! > 0)
  if (refusing.length === 0 || !stack.every((bucket, place) => bucket.canEverFit(costAt(arrival, place))))
    return undefined
  const retryAfterMs = Math.max(...times)
  return rejectionOf(
    arrival,
    { admitted: false, levels: [], reason: 'overflow', refusing, retryAfterMs },
    Infinity,
    now,
  )
}

function isLeased(bucket: SharedBucket): boolean {
  return (bucket as StoredBucket).hasRoom
}

/** The rejection of a request because of its turn at buckets whose levels are known. Undefined: it has it in time. */
function tooLate(
  arrival: Arrival,
  leased: readonly SharedBucket[],
  longest: number,
  now: number,
): Rejection | undefined {
  if (longest === Infinity || isMixed(arrival)) return undefined
  const pause = arrival.route.gate.pausedFor(now)
  const buckets = leased.filter(bucket => levelDelays(bucket, { arrival, longest, pause, now }))
  if (buckets.length === 0 || predictedWait(arrival, now, pause) <= longest) return undefined
  return { reason: 'max-wait', buckets, retryAfterMs: timeUntilFit(partOf(arrival, leased), longest, now, pause) }
}

interface Delay {
  readonly arrival: Arrival
  /** ms */
  readonly longest: number
  readonly pause: number
  readonly now: number
}

/** Whether more waits for a bucket than leaves in the longest wait of a request. */
function levelDelays(bucket: SharedBucket, { arrival, longest, pause, now }: Delay): boolean {
  return levelWait(bucket, arrival.cost, { level: bucket.level(now), now, pause }) > longest
}

function partOf(arrival: Arrival, stack: readonly SharedBucket[]): Demand {
  const { cost, costs } = arrival
  return { stack, cost, ...(costs && { costs: stack.map(bucket => costIn(arrival, bucket)) }) }
}

function countAlone(stack: readonly SharedBucket[]): void {
  const shards = new Set(stack.map(bucket => (bucket as StoredBucket).shard))
  for (const shard of shards) if (shard.mode !== 'claimed') shard.decidedAlone += 1
}

function countIn(arrival: Arrival, times: number, now: number): void {
  for (const [place, bucket] of arrival.stack.entries()) {
    ;(bucket as StoredBucket).levelChanged(times * costAt(arrival, place), now)
  }
}

/** The client's own bucket keeps its requests in order. The others only have to stay as long. */
function inOrder(lists: readonly Inquiries[], asked: readonly Inquiry[], deal: () => void): void {
  for (let place = 1; place < lists.length; place += 1) lists[place]!.answered(asked[place]!, ignore)
  lists[0]!.answered(asked[0]!, deal)
}

/** The longest wait to tell a store, in ms: it takes the present rate as lasting. Of several buckets each would need its own. */
function toldWait({ stack }: Arrival, maxWait: number, now: number): number {
  const limits = stack[0]!.limits.whole ?? stack[0]!.limits
  if (stack.length > 1 || limits.next === undefined || maxWait === Infinity) return maxWait
  return passedIn(limits, now, now + Math.max(0, maxWait)) / limits.rate
}

/** A rejection by a store, with the time until a fit at the rates that buckets are known to have by then. */
function rejectionOf(
  arrival: Arrival,
  admission: Admission & { admitted: false },
  maxWait: number,
  now: number,
): Rejection {
  const { reason, refusing, retryAfterMs } = admission
  const buckets = refusing.map(place => arrival.stack[place]!)
  const isTimed = reason === 'overflow' || reason === 'max-wait'
  const untilAnew = Math.max(...buckets.map(({ limits: { quota } }) => (quota === undefined ? 0 : quota.until - now)))
  if (reason === 'overflow' && untilAnew > 0)
    return { reason, buckets, retryAfterMs: Math.max(untilAnew, retryAfterMs ?? 0) }
  if (!isTimed || retryAfterMs === undefined || buckets.every(({ limits }) => limits.next === undefined))
    return { reason, buckets, retryAfterMs }
  const times = buckets.map(({ limits, waiting }) => {
    const own = limits.whole ?? limits
    const { rate, capacity, next } = own
    if (next === undefined || now + retryAfterMs <= next.at) return retryAfterMs
    const excess = retryAfterMs * rate + (capacity > next.capacity ? capacity - next.capacity : 0)
    // Where nobody waits the store hears of the new rate with the next request, and counts all the time before at it.
    return Math.max(timeToPass(own, excess, now), waiting === 0 ? excess / next.rate : 0)
  })
  const fit = reason === 'max-wait' ? timeUntilFit(arrival, maxWait, now) : 0
  return { reason, buckets, retryAfterMs: Math.max(fit, ...times) }
}
