/**
 * What an instance knows of the promises that a store makes for a bucket, and the rejected clients that wait for theirs.
 *
 * One call is for all that wait. It asks for a part of the sequence of moments that is as long as they need, and it is divided
 * in the order in which they came. It also asks for those that come before the next call: for as much as was needed from the
 * last call to this one, or from the one before to the last one, whichever is less. So a crowd that is rejected at once asks
 * for nobody else. What nobody needs of it lapses: it is a hole in the sequence of at most what one such period needs.
 */
import type { Promisable } from '../core/admission/appointments.js'
import type { Clock } from '../core/clock.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import { FRAME } from '../decider/constants.js'

/** Rejected clients of one bucket that wait for an answer. Further ones are told the last moment. */
const MOST_WAITING = 1_000
/** ms. A call may be so much before its time, as the next one is later then. */
const EARLY = FRAME / 3

export interface WaitingClient {
  readonly asks: Promisable
  /** Cost units in this bucket. */
  readonly cost: number
  /** ms. Its request does not fit earlier. */
  readonly fitAt: number
}

/** A part of the sequence of moments, in ms. */
export interface PromisedPart {
  /** The moment of the first client. */
  readonly first: number
  readonly until: number
  /** Cost units per ms. */
  readonly rate: number
}

/** What a client gets of it, in ms. */
export interface DividedMoment {
  readonly place: number
  /** When it is to come back. It is later than its place if something else delays it. */
  readonly at: number
}

/** Times in ms. */
export class PromisingBucket<C extends WaitingClient = WaitingClient> {
  /** The last moment that is known. It falls with a reset only, as in the store: a rate that rises moves no moment that was told. */
  last = -Infinity
  /** Until then nothing more is promised. */
  fullUntil = -Infinity
  /** How many clients that book are being asked about. */
  booking = 0
  /** Whether a call for those that wait is on its way, or planned. */
  isAsking = false
  #waiting: C[] = []
  #ask: (() => void) | undefined
  /** When the next call may be made. A quiet bucket may have two at once, for the first client of a crowd and for the others. */
  nextCallAt = -Infinity
  #spare: { readonly part: PromisedPart; before: number; readonly since: number } | undefined
  /** Clients that were told of it since the last call. */
  toldAhead = 0
  /** Cost units that were told since the last call, and those that were needed from the one before to that. */
  #toldOfSpare = 0
  #neededBefore = 0

  get hasPlace(): boolean {
    return this.booking + this.#waiting.length < MOST_WAITING
  }

  get waiting(): number {
    return this.#waiting.length
  }

  reset(): void {
    this.last = -Infinity
    this.fullUntil = -Infinity
  }

  wait(client: C): void {
    this.#waiting.push(client)
  }

  /** They have no moment yet, and came before all that wait. */
  waitAgain(clients: readonly C[]): void {
    this.#waiting = [...clients, ...this.#waiting]
  }

  /** Makes the call with the next report of the lease, in one message, or after two frames. So there are half as many messages. */
  askWithReport(ask: () => void, clock: Clock): void {
    this.#ask = ask
    clock.at(clock.now() + 2 * FRAME, () => {
      if (this.#ask === ask) this.#askNow()
    })
  }

  reported(now: number): void {
    // Reports may come more often.
    if (this.nextCallAt <= now + EARLY) this.#askNow()
  }

  #askNow(): void {
    const ask = this.#ask
    this.#ask = undefined
    ask?.()
  }

  /** A moment that was promised for one that comes now. Undefined: there is none, or others wait that came before. */
  spareFor(client: C, now: number, changedAt: number): DividedMoment | undefined {
    const spare = this.#spare
    if (spare === undefined || this.#waiting.length > 0 || changedAt >= spare.since) return undefined
    const moment = nextMoment(client, Math.max(spare.before, now), spare.part)
    if (moment === undefined) return undefined
    spare.before = moment.place
    this.#toldOfSpare += client.cost
    this.toldAhead += 1
    return moment
  }

  keepSpare(part: PromisedPart, before: number, now: number): void {
    this.#spare = { part, before, since: now }
  }

  /** Cost units to ask for ahead, in the call for those that wait. */
  expect(needed: number): number {
    const all = needed + this.#toldOfSpare
    const expected = Math.min(all, this.#neededBefore)
    this.#neededBefore = all
    this.#toldOfSpare = 0
    this.toldAhead = 0
    return expected
  }

  takeAll(now: number): C[] {
    // What was needed so long ago says nothing of the next frame. Asked for in vain it would be a hole in the sequence.
    if (now - this.nextCallAt > FRAME) {
      this.#neededBefore = 0
      this.#toldOfSpare = 0
      this.toldAhead = 0
    }
    this.nextCallAt = Math.max(this.nextCallAt + FRAME, now)
    const all = this.#waiting
    this.#waiting = []
    return all
  }
}

/** The cost units of the clients behind the first one. */
export function costBehind(clients: readonly WaitingClient[], rate: number): number {
  const [first] = clients as [WaitingClient]
  const names = new Set([first.asks.arrival.client])
  let place = first.fitAt
  for (const client of clients) {
    const { arrival } = client.asks
    if (names.has(arrival.client)) continue
    names.add(arrival.client)
    place = momentOf(client, place, rate).place
  }
  return (place - first.fitAt) * rate
}

/** The next moment of a part, for a client. Undefined: the part is too short. */
export function nextMoment(
  client: WaitingClient,
  before: number,
  { until, rate }: PromisedPart,
): DividedMoment | undefined {
  const moment = momentOf(client, before, rate)
  return moment.place > until + SAME_TIME ? undefined : moment
}

/** @param before the place of the client before it, in ms */
function momentOf({ cost, fitAt }: WaitingClient, before: number, rate: number): DividedMoment {
  const place = before + cost / rate
  // A client that something else delays for longer must not delay the others.
  if (fitAt - place > Math.max(cost / rate, FRAME)) return { place, at: fitAt }
  const at = Math.max(place, fitAt)
  return { place: at, at }
}
