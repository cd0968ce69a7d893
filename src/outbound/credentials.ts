/**
 * Several credentials with one queue in front of them.
 *
 * Each credential is a key with its own bucket, pause and bound of calls in flight. A credential gets a call only while no other
 * call waits for it. So at most one call waits for the next slot of each credential, and all others wait in front, in order. The
 * credential that is free first takes the first of them. No call is stuck behind a pause: when a credential pauses, its call goes
 * back to the front.
 *
 * Credentials of `shape` leave for their origins alone. Calls to origins with the same credentials share one front.
 *
 * The slots are those of the buckets: the call that waits holds the next one, however late this process wakes. So n credentials
 * of rate r have n * r together.
 */
import { predictedWait } from '../core/admission/predicted-wait.js'
import type { Clock } from '../core/clock.js'
import { LAST_PRIORITY } from '../core/priority.js'
import { type Cost, costAt, type SharedBucket } from '../core/queue/lane.js'
import { keptIn } from '../core/structures/maps.js'
import type { KeyQueue } from './key-queues.js'
import type { Credential } from './options.js'

export interface CallInFront extends Cost {
  readonly key: string
  readonly priority: number
  readonly maxWait: number
  /** Of a request; else empty. */
  readonly origin: string
  readonly refusedBy: readonly KeyQueue[]
  /** From now on it waits for this credential. */
  giveTo(queue: KeyQueue): void
}

interface CredentialsContext {
  readonly clock: Clock
  readonly ready: boolean
  readonly queues: { get(key: string): KeyQueue | undefined }
  queueOf(key: string, now: number): KeyQueue | undefined
  stackOf(queue: KeyQueue, now: number): readonly SharedBucket[] | undefined
}

/** Some credentials, and the calls that wait in front of them. */
export interface Front {
  readonly names: readonly string[]
  readonly calls: readonly Set<CallInFront>[]
  readonly costs: number[]
}

export class Credentials {
  readonly fronts: readonly Front[]
  readonly #fronts = new Map<string, Front>()
  #came = 0
  readonly #places = new WeakMap<CallInFront, number>()
  readonly #context: CredentialsContext
  readonly #all: ReadonlyMap<string, Credential>
  #isGiving = false

  constructor(context: CredentialsContext, all: readonly Credential[], buckets: number) {
    this.#context = context
    this.#all = new Map(all.map(credential => [credential.name, credential]))
    const byNames = new Map<string, Front>()
    for (const origin of all.flatMap(({ origins }) => origins)) {
      const names = all.filter(({ origins }) => origins.includes(origin)).map(({ name }) => name)
      const front = keptIn(byNames, names.join(), () => ({
        names,
        calls: Array.from({ length: LAST_PRIORITY + 1 }, () => new Set<CallInFront>()),
        costs: Array.from({ length: buckets }, () => 0),
      }))
      this.#fronts.set(origin, front)
    }
    this.fronts = [...byNames.values()]
  }

  /** Undefined: no credential may leave for this origin. */
  frontOf(origin: string): Front | undefined {
    return this.#fronts.get(origin)
  }

  get names(): readonly string[] {
    return [...this.#all.keys()]
  }

  of(queue: KeyQueue): Credential | undefined {
    return this.#all.get(queue.name)
  }

  /** A call waits in front, behind those of its priority. Given at once if a credential is free for it. */
  add(call: CallInFront): void {
    this.#came += 1
    this.#places.set(call, this.#came)
    this.#count(call)
    this.#callsLike(call).add(call)
    this.give()
  }

  /** A call goes back to where it came from: before those that came later. */
  putBack(call: CallInFront): void {
    const known = this.#callsLike(call)
    const all = [...known, call].sort((one, other) => this.#compare(one, other))
    known.clear()
    this.#count(call)
    for (const each of all) known.add(each)
  }

  /** False: it does not wait in front. */
  remove(call: CallInFront): boolean {
    if (!this.#callsLike(call).delete(call)) return false
    const { calls, costs } = this.#fronts.get(call.origin)!
    const isEmpty = calls.every(({ size }) => size === 0)
    for (const [place, cost] of costs.entries()) {
      // Sums of fractions may leave a rest.
      costs[place] = isEmpty ? 0 : cost - costAt(call, place)
    }
    return true
  }

  #callsLike({ origin, priority }: CallInFront): Set<CallInFront> {
    return this.#fronts.get(origin)!.calls[priority]!
  }

  #compare(one: CallInFront, other: CallInFront): number {
    return one.priority - other.priority || this.#places.get(one)! - this.#places.get(other)!
  }

  #count(call: CallInFront): void {
    const { costs } = this.#fronts.get(call.origin)!
    for (const place of costs.keys()) costs[place]! += costAt(call, place)
  }

  give(): void {
    // A call that is given may end at once, and make another.
    if (this.#isGiving || !this.#context.ready) return
    this.#isGiving = true
    try {
      for (let next = this.#next; next !== undefined; next = this.#next) {
        this.remove(next.call)
        next.call.giveTo(next.queue)
      }
    } finally {
      this.#isGiving = false
    }
  }

  /** Whether a credential other than these could take this call: it does not pause. */
  hasOther({ origin }: CallInFront, these: readonly KeyQueue[]): boolean {
    return this.#fronts.get(origin)!.names.some(name => {
      return these.every(queue => queue.name !== name) && this.#context.queues.get(name)?.gate.paused !== true
    })
  }

  get #next(): { readonly call: CallInFront; readonly queue: KeyQueue } | undefined {
    const found = this.fronts.flatMap(front => this.#nextOf(front) ?? [])
    return found.sort((one, other) => this.#compare(one.call, other.call))[0]
  }

  #nextOf({ calls, names }: Front) {
    for (const sameClass of calls) {
      for (const call of sameClass) {
        const queue = this.#freeFirst(call, names)
        if (queue !== undefined) return { call, queue }
        // One that has been refused leaves that credential to those behind it.
        if (call.refusedBy.length === 0) return undefined
      }
    }
    return undefined
  }

  /** The credential for which nobody waits and that lets a call pass first. */
  #freeFirst(call: CallInFront, names: readonly string[]): KeyQueue | undefined {
    const { cost, costs, priority, refusedBy } = call
    const leftOut = refusedBy.length > 0 && this.hasOther(call, refusedBy) ? refusedBy : []
    const { clock } = this.#context
    const now = clock.now()
    let best: KeyQueue | undefined
    let least = Infinity
    for (const name of names) {
      const queue = this.#context.queueOf(name, now)
      if (queue === undefined || leftOut.includes(queue) || queue.waiting > 0 || !isOpen(queue, cost, now)) continue
      const stack = this.#context.stackOf(queue, now)
      if (stack === undefined) continue
      const wait = predictedWait({ route: queue, stack, cost, costs, priority }, now, 0)
      if (wait >= least) continue
      least = wait
      best = queue
    }
    return best
  }
}

/** Whether a call may leave, as far as pauses and bounds of calls in flight say. At the end of a pause its gate may open a little later. */
function isOpen({ gate }: KeyQueue, cost: number, now: number): boolean {
  return gate.pausedFor(now) === 0 && gate.fits(cost) && !gate.isFull
}
