/**
 * Several credentials with one queue in front of them.
 *
 * Each credential is a key with its own bucket, pause and bound of calls in flight. A credential gets a call only while no other
 * call waits for it. So at most one call waits for the next slot of each credential, and all others wait in front, in order. The
 * credential that is free first takes the first of them. No call is stuck behind a pause: when a credential pauses, its call goes
 * back to the front.
 *
 * The slots are those of the buckets: the call that waits holds the next one, however late this process wakes. So n credentials
 * of rate r have n * r together.
 */
import { predictedWait } from '../core/admission/predicted-wait.js'
import type { Clock } from '../core/clock.js'
import { LAST_PRIORITY } from '../core/priority.js'
import { type Cost, costAt, type SharedBucket } from '../core/queue/lane.js'
import type { KeyQueue } from './key-queues.js'
import type { Credential } from './options.js'

/** A call that takes a credential. */
export interface CallInFront extends Cost {
  readonly key: string
  readonly priority: number
  /** ms */
  readonly maxWait: number
  /** From now on it waits for this credential. */
  giveTo(queue: KeyQueue): void
}

/** What credentials need of their shaper. */
export interface CredentialsContext {
  readonly clock: Clock
  readonly ready: boolean
  readonly queues: { get(key: string): KeyQueue | undefined }
  queueOf(key: string, now: number): KeyQueue | undefined
  stackOf(queue: KeyQueue, now: number): readonly SharedBucket[] | undefined
}

export class Credentials {
  /** Calls in front, by priority, in the order of their arrival. */
  readonly #front: Set<CallInFront>[] = Array.from({ length: LAST_PRIORITY + 1 }, () => new Set())
  /** How many have come, and the place of each among them. */
  #came = 0
  /** By bucket. */
  readonly #costs: number[]
  readonly #places = new WeakMap<CallInFront, number>()
  readonly #context: CredentialsContext
  readonly #all: ReadonlyMap<string, Credential>
  #isGiving = false

  constructor(context: CredentialsContext, all: readonly Credential[], buckets: number) {
    this.#context = context
    this.#costs = Array.from({ length: buckets }, () => 0)
    this.#all = new Map(all.map(credential => [credential.name, credential]))
  }

  get names(): readonly string[] {
    return [...this.#all.keys()]
  }

  of(queue: KeyQueue): Credential | undefined {
    return this.#all.get(queue.name)
  }

  /** Cost units that wait in front, in the bucket at this place. */
  costIn(place: number): number {
    return this.#costs[place]!
  }

  /** A call waits in front, behind those of its priority. Given at once if a credential is free for it. */
  add(call: CallInFront): void {
    this.#came += 1
    this.#places.set(call, this.#came)
    this.#count(call)
    this.#front[call.priority]!.add(call)
    this.give()
  }

  /** A call goes back to where it came from: before those that came later. */
  putBack(call: CallInFront): void {
    const known = this.#front[call.priority]!
    const placeOf = (each: CallInFront): number => this.#places.get(each)!
    const all = [...known, call].sort((one, other) => placeOf(one) - placeOf(other))
    known.clear()
    this.#count(call)
    for (const each of all) known.add(each)
  }

  /** False: it does not wait in front. */
  remove(call: CallInFront): boolean {
    const calls = this.#front[call.priority]!
    if (!calls.delete(call)) return false
    const isEmpty = this.#front.every(({ size }) => size === 0)
    for (const [place, cost] of this.#costs.entries()) {
      // Sums of fractions may leave a rest.
      this.#costs[place] = isEmpty ? 0 : cost - costAt(call, place)
    }
    return true
  }

  #count(call: CallInFront): void {
    for (const place of this.#costs.keys()) this.#costs[place]! += costAt(call, place)
  }

  /** Gives the first calls to the credentials for which nobody waits. */
  give(): void {
    // A call that is given may end at once, and make another.
    if (this.#isGiving || !this.#context.ready) return
    this.#isGiving = true
    try {
      for (let call = this.#first; call !== undefined; call = this.#first) {
        const queue = this.#freeFirst(call)
        if (queue === undefined) return
        this.remove(call)
        call.giveTo(queue)
      }
    } finally {
      this.#isGiving = false
    }
  }

  /** Whether another credential than this one could take a call. */
  hasOther(queue: KeyQueue): boolean {
    for (const name of this.#all.keys()) {
      if (name !== queue.name && this.#context.queues.get(name)?.gate.paused !== true) return true
    }
    return false
  }

  get #first(): CallInFront | undefined {
    for (const calls of this.#front) for (const call of calls) return call
    return undefined
  }

  /** The credential for which nobody waits and that lets a call pass first. */
  #freeFirst({ cost, costs, priority }: CallInFront): KeyQueue | undefined {
    const { clock } = this.#context
    const now = clock.now()
    let best: KeyQueue | undefined
    let least = Infinity
    for (const name of this.#all.keys()) {
      const queue = this.#context.queueOf(name, now)
      if (queue === undefined || queue.waiting > 0 || !isOpen(queue, cost, now)) continue
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
