/**
 * Admission by a store that instances share. The store counts everything, whichever instance it waits in. The queue here has
 * to fit as well: the store's meter leaks while an upstream is slow, and a queue does not. Without an answer of the store
 * this instance decides, as `onOutage` says.
 */

import { promiseKept } from './admission/appointments.js'
import { decide, placeless, shutOut, timeUntilFit, uncountable } from './admission/decide.js'
import { timeUntilQueued } from './admission/drain-time.js'
import { isMixed } from './admission/mixed-costs.js'
import { levelWait, predictedWait } from './admission/predicted-wait.js'
import { passedIn, timeToPass } from './bucket/limits.js'
import { LEVEL_TOLERANCE } from './bucket/meter.js'
import type { Clock } from './clock.js'
import { ignore, when } from './maybe-promise.js'
import { DEFAULT_PRIORITY } from './priority.js'
import { costAt, costIn, type Demand, type Rejection, type SharedBucket, type Waiter } from './queue/lane.js'
import type { Arrival, Shaper, Verdict } from './shaper.js'
import { type RejectedArrival, SharedPromises } from './shared/shared-promises.js'
import { type Inquiries, type Inquiry, refsFor, type StoredBucket } from './shared/stored-bucket.js'
import type { Admission, AdmitRequest, Store } from './store.js'

/** While the store cannot be asked: decide alone, reject everything, or forward everything. */
export type OnOutage = 'local' | 'closed' | 'open'

/** The callbacks of a request that is to be decided on. */
export interface AdmissionCallbacks extends Waiter {
  /** Called once, at once or later. A ticket's waiter is called after it. */
  decided(verdict: Verdict): void
}

/** A question to the store about one request. */
interface Asking {
  /** The order of arrival is that of its first bucket. */
  readonly arrival: Arrival
  /** The part of its stack that is asked about. */
  readonly stack: readonly SharedBucket[]
  readonly request: Omit<AdmitRequest, 'stack'>
  /** Whether an earlier question of the same request was dealt with just now. */
  readonly isAgain?: boolean
  decided(admission: Admission): void
  /** There is no answer. */
  alone(): void
}

/** A request, the buckets that the store is asked about, and its longest wait in ms. */
type Question = Pick<Asking, 'arrival' | 'stack'> & { readonly longest: number }

export interface SharedShaperOptions {
  readonly shaper: Shaper
  readonly store: Store
  readonly clock: Clock
  readonly onOutage: OnOutage
  /** The store has not answered about these. It was asked at this time in ms. */
  unanswered(stack: readonly SharedBucket[], askedAt: number): void
}

export class SharedShaper {
  readonly #options: SharedShaperOptions
  readonly #promises: SharedPromises

  constructor(options: SharedShaperOptions) {
    this.#options = options
    this.#promises = new SharedPromises(options)
  }

  /**
   * As `Shaper.promise`. `tell` is called at once or later. Without the store this instance spreads its own clients, as many slots apart as
   * there are instances that do.
   */
  promise(rejected: RejectedArrival, instances: number): void {
    const { arrival, rejection, maxWait, tell, atOnce = false } = rejected
    const bucket = rejection.buckets.at(-1) as StoredBucket | undefined
    const alone = (): void => {
      const sharing = bucket?.shard.mode === 'claimed' ? instances : 1
      tell(this.#options.shaper.promise(arrival, rejection, maxWait, sharing))
    }
    const asks = !atOnce || arrival.appointment !== undefined
    if (asks && bucket?.shard.mode === 'claimed') this.#promises.ask(rejected, alone)
    else alone()
  }

  /** As `Shaper.admit`. */
  admit(arrival: Arrival, callbacks: AdmissionCallbacks, maxWait: number): void {
    const { shaper, clock } = this.#options
    const arrivedAt = clock.now()
    const { stack } = arrival
    // The store has no part in it.
    if (stack.length === 0) return callbacks.decided(shaper.admit(arrival, callbacks, maxWait))
    const refused = uncountable(arrival)
    if (refused !== undefined) return callbacks.decided(refused)
    const admit = (): void => {
      if (!this.#asks(arrival)) {
        const decideAlone = (): void => callbacks.decided(this.#admitAlone(arrival, callbacks, maxWait, arrivedAt))
        this.#afterEarlier(arrival, decideAlone)
      } else if (stack.some(isLeased) && this.#promises.claimOf(arrival) === undefined)
        this.#admitByLease(arrival, callbacks, maxWait, arrivedAt)
      else this.#admitByStore(arrival, callbacks, maxWait, arrivedAt)
    }
    const { awaitsRoom, refills } = stack[0] as StoredBucket
    // Those that wait for leased room came first, though it is not leased any more.
    if (awaitsRoom && !(this.#asks(arrival) && stack.some(isLeased))) refills.answered(refills.ask(), admit)
    else admit()
  }

  #admitByStore(arrival: Arrival, callbacks: AdmissionCallbacks, maxWait: number, arrivedAt: number): void {
    const { shaper, clock } = this.#options
    const { stack } = arrival
    const pause = arrival.route.gate.pausedFor(arrivedAt)
    const longest = Math.min(maxWait, arrival.patience ?? Infinity)
    const late = pause > longest ? decide(arrival, longest, arrivedAt, pause) : undefined
    if (late !== undefined) return callbacks.decided(late)
    // The store knows of no pause.
    const patience = longest - pause
    const localOverflow = this.#localOverflow(arrival)
    // Nobody makes room before the store has admitted the newcomer.
    if (localOverflow !== undefined && !shaper.couldMakeRoomFor(arrival, localOverflow.buckets, patience))
      return callbacks.decided(localOverflow)
    if ((arrival.priority ?? DEFAULT_PRIORITY) !== DEFAULT_PRIORITY) {
      for (const bucket of stack) (bucket as StoredBucket).hasPriorities = true
    }
    const ahead = shaper.claimAhead(stack)
    const booked = this.#promises.claimOf(arrival)
    const claim = booked === undefined && mayGo(arrival, { ahead, now: arrivedAt })
    const told = this.#passesLevels(arrival, longest, pause) ? Infinity : toldWait(arrival, patience, arrivedAt)
    this.#ask(
      { arrival, longest, stack },
      { cost: arrival.cost, maxWait: told, claim, ahead, ...(booked && { booked }) },
      admission => {
        if (!admission.admitted) return callbacks.decided(rejectionOf(arrival, admission, patience, clock.now()))
        const ticket =
          this.#makeRoomHere(arrival, patience) ??
          shaper.enqueue({ arrival, waiter: callbacks, maxWait, arrivedAt }, admission.claim)
        if ('reason' in ticket) this.#giveBack(arrival, admission)
        else promiseKept(arrival, clock.now())
        callbacks.decided(ticket)
        shaper.wake()
      },
      () => callbacks.decided(this.#admitAlone(arrival, callbacks, maxWait, arrivedAt)),
    )
  }

  /** Where room is leased of some buckets, the store is asked about the others only. */
  #admitByLease(arrival: Arrival, callbacks: AdmissionCallbacks, maxWait: number, arrivedAt: number): void {
    if (this.#passByLease(arrival)) return callbacks.decided('released')
    const { shaper, clock } = this.#options
    const { stack, cost } = arrival
    this.#whenRoomIsKnown(arrival, () => {
      if (!this.#asks(arrival)) return callbacks.decided(this.#admitAlone(arrival, callbacks, maxWait, arrivedAt))
      const pause = arrival.route.gate.pausedFor(clock.now())
      const longest = Math.min(maxWait, arrival.patience ?? Infinity)
      const rejection = this.#rejectByLease(arrival, longest, pause)
      if (rejection !== undefined) {
        callbacks.decided(rejection)
        return shaper.wake()
      }
      const leased = stack.filter(isLeased)
      useRoom(leased, arrival)
      const enqueue = (): void => {
        const ticket = shaper.enqueue({ arrival, waiter: callbacks, maxWait, arrivedAt })
        if ('reason' in ticket) shaper.uncount(arrival)
        callbacks.decided(ticket)
        shaper.wake()
      }
      const rest = stack.filter(bucket => !isLeased(bucket))
      if (rest.length === 0) return this.#afterEarlier(arrival, enqueue)
      const told = this.#passesLevels(arrival, longest, pause) ? Infinity : longest - pause
      this.#askOnce({
        ...{ arrival, stack: rest, request: { cost, maxWait: told, claim: false } },
        decided: admission => {
          if (admission.admitted) return enqueue()
          shaper.uncount(partOf(arrival, leased))
          this.#leaseFull(arrival, rest, admission)
          callbacks.decided(
            rejectionOf({ ...arrival, ...partOf(arrival, rest) }, admission, longest - pause, clock.now()),
          )
        },
        alone: () => callbacks.decided(this.#admitAlone(arrival, callbacks, maxWait, arrivedAt)),
      })
    })
  }

  /**
   * At high rates most requests find leased room and a leased slot. They pass without a ticket and a lane, as by the buckets of one
   * process (docs/decisions/workers-pipe.md).
   */
  #passByLease(arrival: Arrival): boolean {
    const { stack } = arrival
    const now = this.#options.clock.now()
    for (let place = 0; place < stack.length; place += 1) {
      const bucket = stack[place] as StoredBucket
      const { lease, asked } = bucket
      const cost = costAt(arrival, place)
      if (!isLeased(bucket) || asked || lease!.pastFor(cost) === 0 || lease!.roomAt(now) < cost) return false
    }
    if (!this.#options.shaper.passByLease(arrival)) return false
    for (let place = 0; place < stack.length; place += 1) {
      const { lease } = stack[place] as StoredBucket
      lease!.ask(costAt(arrival, place))
      lease!.use(costAt(arrival, place))
    }
    return true
  }

  /** Calls back in the order of arrival. A bucket without room for it is asked for more first. */
  #whenRoomIsKnown(arrival: Arrival, then: () => void): void {
    const { shaper, clock } = this.#options
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
      shaper.refill(poor, () => {
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

  /** Whether the room that is leased is too small. */
  #rejectByLease(arrival: Arrival, longest: number, pause: number): Rejection | undefined {
    const { shaper, clock } = this.#options
    const { stack } = arrival
    const leased = stack.filter(isLeased)
    // The others are not known here. Nor are the turns of a part of a stack.
    const asked = leased.length === stack.length ? arrival : { ...arrival, ...partOf(arrival, leased) }
    const judge = (): Rejection | undefined => {
      const now = clock.now()
      const rejection = this.#roomless(arrival) ?? decide(asked, asked === arrival ? longest : Infinity, now, pause)
      return (
        rejection ??
        this.#localOverflow(arrival) ??
        (asked === arrival ? undefined : tooLate(arrival, leased, longest, now))
      )
    }
    const rejection = judge()
    if (rejection?.reason !== 'overflow') return rejection
    for (const bucket of rejection.buckets) (bucket as StoredBucket).lease?.refuse()
    return shaper.makeRoomFor(arrival, rejection.buckets, longest - pause) ? judge() : rejection
  }

  /** The rejection of a request that the leased room of a bucket is too small for. */
  #roomless(arrival: Arrival): Rejection | undefined {
    const now = this.#options.clock.now()
    const stack = arrival.stack as readonly StoredBucket[]
    const times = stack.map(({ lease, hasRoom }, place) => {
      return hasRoom ? lease!.timeUntilRoom(costAt(arrival, place), now) : 0
    })
    const buckets = stack.filter((_, place) => times[place]! > 0)
    if (buckets.length === 0 || buckets.some(bucket => !bucket.canEverFit(costIn(arrival, bucket)))) return undefined
    return { reason: 'overflow', buckets, retryAfterMs: Math.max(...times) }
  }

  /** As `Shaper.meter`. */
  meter(arrival: Arrival, callbacks: AdmissionCallbacks): void {
    const { clock, shaper } = this.#options
    if (arrival.stack.length === 0) return callbacks.decided(shaper.meter(arrival))
    if (!this.#asks(arrival)) return callbacks.decided(this.#meterAlone(arrival))
    const { gate } = arrival.route
    const shutBefore = uncountable(arrival) ?? shutOut(gate, clock.now()) ?? placeless(arrival)
    if (shutBefore !== undefined) return callbacks.decided(shutBefore)
    const booked = this.#promises.claimOf(arrival)
    if (arrival.stack.some(isLeased) && booked === undefined) return this.#meterByLease(arrival, callbacks)
    // Nobody makes room for a request that does not wait.
    this.#askOnce({
      ...{
        arrival,
        stack: arrival.stack,
        request: { cost: arrival.cost, maxWait: Infinity, claim: false, ...(booked && { booked }) },
      },
      decided: admission => {
        this.#leaseFull(arrival, arrival.stack, admission)
        if (!admission.admitted) return callbacks.decided(rejectionOf(arrival, admission, Infinity, clock.now()))
        // Others may have passed the gate meanwhile.
        const shut = shutOut(gate, clock.now()) ?? placeless(arrival)
        if (shut === undefined) shaper.enter(gate, arrival.stack)
        else this.#giveBack(arrival, admission)
        if (shut === undefined) promiseKept(arrival, clock.now())
        callbacks.decided(shut ?? 'released')
      },
      alone: () => callbacks.decided(this.#meterAlone(arrival)),
    })
  }

  #meterByLease(arrival: Arrival, callbacks: AdmissionCallbacks): void {
    const { shaper, clock } = this.#options
    const { stack, cost, route } = arrival
    this.#whenRoomIsKnown(arrival, () => {
      if (!this.#asks(arrival)) return callbacks.decided(this.#meterAlone(arrival))
      const rejection = this.#rejectByLease(arrival, Infinity, 0)
      if (rejection !== undefined) return callbacks.decided(rejection)
      const leased = stack.filter(isLeased)
      useRoom(leased, arrival)
      const rest = stack.filter(bucket => !isLeased(bucket))
      const pass = (): void => {
        const shut = shutOut(route.gate, clock.now()) ?? placeless(arrival)
        if (shut === undefined) shaper.enter(route.gate, stack)
        else shaper.uncount(arrival)
        callbacks.decided(shut ?? 'released')
      }
      if (rest.length === 0) return pass()
      this.#askOnce({
        ...{ arrival, stack: rest, request: { cost, maxWait: Infinity, claim: false } },
        decided: admission => {
          if (admission.admitted) return pass()
          shaper.uncount(partOf(arrival, leased))
          this.#leaseFull(arrival, rest, admission)
          callbacks.decided(rejectionOf({ ...arrival, ...partOf(arrival, rest) }, admission, Infinity, clock.now()))
        },
        alone: () => callbacks.decided(this.#meterAlone(arrival)),
      })
    })
  }

  /** Whether the store is asked about a stack. */
  #asks({ stack }: Arrival): boolean {
    const { shaper, onOutage } = this.#options
    if (shaper.releaseModeOf(stack) === 'claimed') return true
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

  /**
   * Whether a request has its turn in time, by what waits here and in other instances. False: that is not known, so the level counts.
   *
   * @param longest ms
   */
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
    const { shaper, clock } = this.#options
    const stack = arrival.stack as readonly StoredBucket[]
    const unknown = places.filter(place => !stack[place]!.knowsOthers(arrival.cost, clock.now()))
    if (unknown.length === 0) return then()
    const lists = stack.map(({ inquiries }) => inquiries)
    const asked = lists.map(inquiries => inquiries.askAgain())
    let left = unknown.length
    for (const place of unknown) {
      shaper.look(stack[place]!, costAt(arrival, place), () => {
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
    const asked = lists.map(inquiries => (isAgain ? inquiries.askAgain() : inquiries.ask()))
    for (const bucket of stack) bucket.lease?.askStore(costIn(arrival, bucket))
    when(
      store.admit({ ...request, stack: refsFor(stack, arrival) }),
      admission =>
        inOrder(lists, asked, () => {
          const now = clock.now()
          for (const [place, bucket] of stack.entries()) {
            // Of a leased one the level has what is set apart for others. Its next report says how much.
            if (!bucket.hasRoom) bucket.levelReported(admission.levels[place]!, now)
            else if (admission.admitted) bucket.levelChanged(costIn(arrival, bucket))
          }
          // With a second bucket there would be a call all the same.
          if (stack.length === 1 && stack[0]!.askedOften(now))
            this.#options.shaper.lease(stack[0]!, costIn(arrival, stack[0]!))
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
      this.#options.shaper.lease(bucket, costIn(arrival, bucket))
    }
  }

  /** Makes room in the queue here for a request that the store has admitted. Undefined: there is room. */
  #makeRoomHere(arrival: Arrival, maxWait: number): Rejection | undefined {
    if (this.#localOverflow(arrival) === undefined) return undefined
    // The store's levels include it already.
    countIn(arrival, -1)
    const overflow = this.#localOverflow(arrival)!
    const fits = this.#options.shaper.makeRoomFor(arrival, overflow.buckets, maxWait)
    countIn(arrival, 1)
    return fits ? undefined : overflow
  }

  /** The queue here has to fit, whatever the store's meter says. */
  #localOverflow(arrival: Arrival): Rejection | undefined {
    const { stack } = arrival
    const full = stack.filter((bucket, place) => isFull(bucket, costAt(arrival, place)))
    if (full.length === 0) return undefined
    const { store, clock } = this.#options
    const now = clock.now()
    const horizon = store.horizonOf?.(refsFor(stack)) ?? store.horizon
    const times = stack.map((bucket, place) => {
      const cost = costAt(arrival, place)
      const { rate, capacity } = bucket.limits
      // A slot is claimed earlier than it is, by the horizon.
      const released = full.includes(bucket) ? timeUntilQueued(bucket, capacity - cost, now) + horizon : 0
      // The level has to fit as well, as the store is asked then.
      return Math.max((Math.max(bucket.queued, bucket.level(now)) + cost - capacity) / rate, released)
    })
    return { reason: 'overflow', buckets: full, retryAfterMs: Math.max(...times) }
  }

  #giveBack(arrival: Arrival, admission: Admission): void {
    const { stack, cost } = arrival
    countIn(arrival, -1)
    const slot = admission.admitted && admission.claim?.granted ? admission.claim.slot : undefined
    const given = this.#options.store.giveBack({
      stack: refsFor(stack, arrival),
      cost,
      ...(slot && { slot, slotCost: cost }),
    })
    when(given, ignore)
  }

  #admitAlone(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt?: number): Verdict {
    const { onOutage, shaper } = this.#options
    countAlone(arrival.stack)
    if (onOutage === 'local') return shaper.admit(arrival, waiter, maxWait, arrivedAt)
    return onOutage === 'closed' ? UNAVAILABLE : this.#admitPastBuckets(arrival, waiter, maxWait, arrivedAt)
  }

  /** A request without buckets waits only for the gate: for the end of a pause, or for a place. Its buckets count it. */
  #admitPastBuckets(arrival: Arrival, waiter: Waiter, maxWait: number, arrivedAt?: number): Verdict {
    const { shaper, clock } = this.#options
    const { route, stack } = arrival
    const pause = route.gate.pausedFor(clock.now())
    if (pause > maxWait) return { reason: 'max-wait', buckets: stack, retryAfterMs: pause - maxWait }
    const enter = (): void => shaper.enter(undefined, stack)
    const entering: Waiter = {
      ...(waiter.hasOwnMaxWait && { hasOwnMaxWait: true }),
      release(slot, now) {
        enter()
        waiter.release(slot, now)
      },
      expire: now => waiter.expire(now),
      reject: rejection => waiter.reject(rejection),
    }
    const verdict = shaper.admit({ ...arrival, stack: [], costs: undefined, weight: 1 }, entering, maxWait, arrivedAt)
    if (verdict === 'released') enter()
    return verdict
  }

  #meterAlone(arrival: Arrival): 'released' | Rejection {
    const { onOutage, shaper, clock } = this.#options
    countAlone(arrival.stack)
    if (onOutage === 'local') return shaper.meter(arrival)
    const { gate } = arrival.route
    const shut = shutOut(gate, clock.now())
    if (shut !== undefined) return shut
    if (onOutage === 'closed') return UNAVAILABLE
    shaper.enter(gate, arrival.stack)
    return 'released'
  }
}

/** How often a request waits for an answer about more room. */
const MOST_REFILLS = 10

const UNAVAILABLE: Rejection = { reason: 'unavailable', buckets: [], retryAfterMs: undefined }

/**
 * Whether no request here goes before it. Those that are set aside do not, nor those that have their slots, where
 * slots may be ahead by this many ms.
 */
function mayGo({ route, stack }: Arrival, times: { ahead: number; now: number }): boolean {
  return route.gate.open && !stack.some(bucket => isTaken(bucket as StoredBucket, times))
}

/** What has left by a lease without a slot drains for a while after its end. The store does not know of it. */
function isTaken(bucket: StoredBucket, { ahead, now }: { ahead: number; now: number }): boolean {
  const { waiting, aside, claiming, lease, shut } = bucket
  const isAwaited = waiting > aside + (ahead > 0 ? claiming : 0)
  return isAwaited || lease !== undefined || bucket.claimableFrom(now) > now || shut
}

/** Whether a cost does not fit the queue here. */
function isFull({ queued, waiting, limits }: SharedBucket, cost: number): boolean {
  return waiting > 0 && queued + cost > limits.capacity + LEVEL_TOLERANCE
}

/** Whether requests are admitted to it by room that is leased. */
function isLeased(bucket: SharedBucket): boolean {
  return (bucket as StoredBucket).hasRoom
}

function useRoom(leased: readonly SharedBucket[], arrival: Arrival): void {
  for (const bucket of leased) (bucket as StoredBucket).lease!.use(costIn(arrival, bucket))
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

/** The demand on a part of the stack of a request. */
function partOf(arrival: Arrival, stack: readonly SharedBucket[]): Demand {
  const { cost, costs } = arrival
  return { stack, cost, ...(costs && { costs: stack.map(bucket => costIn(arrival, bucket)) }) }
}

/** A request is decided without the shards of its buckets that do not answer. */
function countAlone(stack: readonly SharedBucket[]): void {
  const shards = new Set(stack.map(bucket => (bucket as StoredBucket).shard))
  for (const shard of shards) if (shard.mode !== 'claimed') shard.decidedAlone += 1
}

/** Adds the costs of a request to the levels that the store has reported, so many times. */
function countIn(arrival: Arrival, times: number): void {
  for (const [place, bucket] of arrival.stack.entries()) {
    ;(bucket as StoredBucket).levelChanged(times * costAt(arrival, place))
  }
}

/** The client's own bucket keeps its requests in order. The others only have to stay as long. */
function inOrder(lists: readonly Inquiries[], asked: readonly Inquiry[], deal: () => void): void {
  for (let place = 1; place < lists.length; place += 1) lists[place]!.answered(asked[place]!, ignore)
  lists[0]!.answered(asked[0]!, deal)
}

/**
 * A store takes the present rate as lasting. So it is told another longest wait, in which as much passes at that rate as will pass in the
 * true one. Of several buckets each would need its own: they are left as they are.
 */
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
