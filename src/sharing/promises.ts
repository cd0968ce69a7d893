/**
 * What rejected clients are told where a store decides: it has one sequence of moments for the clients of all instances, and
 * the bookings. This instance asks it in one call for all that wait (promising-bucket.ts), or for each client that books. It
 * keeps the answer beside the bucket (bucket/promises.ts), to tell it again. Where as much is promised as may be, it tells the
 * last moment and asks no more for a while.
 *
 * Of several buckets that reject, the last of the stack is asked, which has most clients.
 */
import { type Promisable, promisable, repeated } from '../core/admission/appointments.js'
import type { RejectedArrival } from '../core/admission/room-source.js'
import { PromisedMoment } from '../core/bucket/promises.js'
import type { Clock } from '../core/clock.js'
import { when } from '../core/maybe-promise.js'
import { type Arrival, costIn, type Rejection } from '../core/queue/lane.js'
import { SAME_TIME } from '../core/queue/ready-lanes.js'
import { hashOf } from '../core/structures/text.js'
import type { AppointmentAnswer, AppointmentRequest, Redemption } from '../decider/record.js'
import { costBehind, type DividedMoment, nextMoment, type WaitingClient } from './promising-bucket.js'
import type { Store } from './store.js'
import type { StoredBucket } from './stored-bucket.js'

/** Numbers of bookings tell the place of their bucket in a stack: its rest by this. Buckets behind it book nothing. */
const MOST_PLACES = 16
/** Numbers of bookings are below `MOST_PLACES` times this. */
const MOST_SERIALS = 2 ** 40
/** ms without a call after which the next one is made at once, even if the bucket is leased. */
const QUIET = 1_000
/** So few clients since the last call are asked about one by one. Of more only the moments of all are asked for. */
const MOST_NAMED_AT_ONCE = 8
/** ms without a question after the store has answered that it promises no more. */
const FULL = 100

export interface SharedPromisesOptions {
  readonly store: Pick<Store, 'appoint'>
  readonly clock: Clock
}

interface AskedClient extends WaitingClient, Pick<RejectedArrival, 'tell'> {
  readonly bucket: StoredBucket
  /** ms. The longest predicted wait to which it is admitted. */
  readonly maxWait: number
  alone(): void
}

export class SharedPromises {
  readonly #options: SharedPromisesOptions

  constructor(options: SharedPromisesOptions) {
    this.#options = options
  }

  /** Tells at once or later. `alone` tells what this instance promises without the store. */
  ask({ arrival, rejection, maxWait, tell }: RejectedArrival, alone: () => void): void {
    const { store, clock } = this.#options
    const now = clock.now()
    const asks = promisable(arrival, rejection, now)
    if (asks === undefined) return tell(rejection)
    const isBooking = arrival.appointment !== undefined
    if (store.appoint === undefined) return isBooking ? tell(rejection) : alone()
    const again = repeatedAhead(asks, now)
    if (again !== undefined) return tell(again)
    const bucket = rejection.buckets.at(-1) as StoredBucket
    const client: AskedClient = {
      ...{ asks, bucket, tell, cost: costIn(arrival, bucket), fitAt: now + asks.rejection.retryAfterMs },
      maxWait: Math.min(maxWait, arrival.patience ?? Infinity),
      // What it booked here nobody would know of.
      alone: isBooking ? () => tell(rejection) : alone,
    }
    const { promising } = bucket
    if (promising.fullUntil > now || !promising.hasPlace) return tellLast(client, now)
    if (isBooking) return this.#book(client)
    if (bucket.openPromises().isFull) return tellLast(client, now)
    const spare = promising.spareFor(client, now, bucket.changedAt)
    if (spare !== undefined) return tellMoment(client, spare, now)
    promising.wait(client)
    if (!promising.isAsking) this.#askSoon(bucket)
  }

  #book(asked: AskedClient): void {
    const { store, clock } = this.#options
    const { asks, bucket, cost, fitAt, tell } = asked
    const { promising } = bucket
    const { client, stack } = asks.arrival
    const booking = newBooking(stack.indexOf(bucket))
    promising.booking += 1
    const answered = (answer: AppointmentAnswer): void => {
      const now = clock.now()
      promising.booking -= 1
      const at = now + answer.after
      promising.last = Math.max(promising.last, at)
      const isBooked = answer.booking !== 0
      const booked = isBooked ? { id: answer.booking, until: at + answer.window } : undefined
      if (!answer.made) promising.fullUntil = now + FULL
      else remember(bucket, new PromisedMoment(client, cost, at, booked), now)
      const retryAfterMs = isBooked ? answer.after : Math.max(answer.after, fitAt - now)
      tell({ ...asks.rejection, retryAfterMs, ...(isBooked && { booking: answer.booking }) })
    }
    when(store.appoint!({ ...questionOf(asked, clock.now()), client: numberOf(client), booking }), answered, () => {
      promising.booking -= 1
      asked.alone()
    })
  }

  /** For those that wait, if any do: now, or when the next call may be made. */
  #askSoon(bucket: StoredBucket): void {
    const { clock } = this.#options
    const { promising } = bucket
    promising.isAsking = promising.waiting > 0
    if (!promising.isAsking) return
    const now = clock.now()
    const ask = (): void => this.#askForAll(bucket)
    const isQuiet = promising.nextCallAt + QUIET <= now
    if (!isQuiet && bucket.lease?.ending === false) promising.askWithReport(ask, clock)
    else if (promising.nextCallAt <= now) ask()
    else clock.at(promising.nextCallAt, ask)
  }

  #askForAll(bucket: StoredBucket): void {
    const { store, clock } = this.#options
    const now = clock.now()
    const clients = bucket.promising.takeAll(now) as AskedClient[]
    const alone = (): void => {
      for (const client of clients) client.alone()
      this.#askSoon(bucket)
    }
    // It has become known meanwhile that the store does not answer.
    if (bucket.shard.mode !== 'claimed') return alone()
    if (clients.length + bucket.promising.toldAhead <= MOST_NAMED_AT_ONCE) return this.#askForEach(bucket, clients)
    const question = questionOf(clients[0]!, now)
    const more = costBehind(clients, question.bucket.limits.rate)
    const expected = bucket.promising.expect(question.cost + more)
    when(
      store.appoint!({ ...question, more: more + expected }),
      answer => {
        this.#divide(clients, { ...question, more }, answer)
        this.#askSoon(bucket)
      },
      alone,
    )
  }

  /**
   * In one message, but each by its name: then other instances tell it the same. Nothing is asked for ahead, as the store would not
   * know who gets that.
   */
  #askForEach(bucket: StoredBucket, clients: readonly AskedClient[]): void {
    const { store, clock } = this.#options
    const now = clock.now()
    let unanswered = clients.length
    // What is needed now counts for the next call.
    bucket.promising.expect(costOf(clients))
    const answered = (): void => {
      unanswered -= 1
      if (unanswered === 0) this.#askSoon(bucket)
    }
    for (const client of clients) {
      const question = { ...questionOf(client, now), client: numberOf(client.asks.arrival.client) }
      when(
        store.appoint!(question),
        answer => {
          this.#divide([client], question, answer)
          answered()
        },
        () => {
          client.alone()
          answered()
        },
      )
    }
  }

  /** @param request without what is asked for ahead */
  #divide(
    clients: readonly AskedClient[],
    { bucket: ref, cost, more }: AppointmentRequest,
    answer: AppointmentAnswer,
  ): void {
    const now = this.#options.clock.now()
    const { rate } = ref.limits
    const { bucket } = clients[0]!
    const { promising } = bucket
    const first = now + answer.after
    const part = { first, until: first + answer.more / rate, rate }
    promising.last = Math.max(promising.last, part.until)
    const isAll = answer.made && answer.more >= more
    if (!isAll) promising.fullUntil = now + FULL
    let before = answer.made ? first - cost / rate : Infinity
    const left: AskedClient[] = []
    for (const client of clients) {
      const { arrival, rejection } = client.asks
      const fit = Math.max(0, client.fitAt - now)
      const again = repeatedAhead({ arrival, rejection: { ...rejection, retryAfterMs: fit } }, now)
      // The store has answered about the first: if that does not fit by its moment, there is none to wait for.
      const isFirst = client === clients[0] && answer.made
      const moment = isFirst ? { place: first, at: Math.max(first, client.fitAt) } : nextMoment(client, before, part)
      if (again !== undefined) client.tell(again)
      else if (moment !== undefined) {
        before = moment.place
        tellMoment(client, moment, now)
      } else if (isAll) left.push(client)
      else tellLast(client, now)
    }
    if (answer.made) promising.keepSpare(part, before, now)
    promising.waitAgain(left)
  }

  /** What a request claims. Undefined: nothing, or as is known here what is not due. */
  redemptionOf({ client, appointment, stack }: Arrival): Redemption | undefined {
    const booking = appointment?.redeems
    if (booking === undefined || client === undefined) return undefined
    const place = booking % MOST_PLACES
    const bucket = stack[place]
    if (bucket === undefined) return undefined
    const now = this.#options.clock.now()
    const known = bucket.extras?.promises?.of(client, now)
    // Another booking of this client may be known here and be over: it has claimed that elsewhere.
    if (known?.booked?.id === booking && known.at > now + SAME_TIME) return undefined
    return { place, client: numberOf(client), booking }
  }
}

/** As `repeated`, while the moment lies ahead. Then its client may have claimed it in another instance: the store knows. */
function repeatedAhead(asks: Promisable, now: number): Rejection | undefined {
  const { arrival, rejection } = asks
  for (const { extras } of rejection.buckets) {
    const known = extras?.promises?.of(arrival.client, now)
    if (known !== undefined && known.at <= now) extras!.promises!.drop(known)
  }
  return repeated(asks, now)
}

function costOf(clients: readonly AskedClient[]): number {
  return clients.reduce((sum, { cost }) => sum + cost, 0)
}

function questionOf({ bucket, cost, maxWait, fitAt }: AskedClient, now: number): AppointmentRequest {
  return { bucket: bucket.ref, cost, more: 0, client: 0, booking: 0, maxWait, fit: Math.max(0, fitAt - now) }
}

function tellMoment({ asks, bucket, cost, tell }: AskedClient, { place, at }: DividedMoment, now: number): void {
  remember(bucket, new PromisedMoment(asks.arrival.client, cost, place, undefined), now)
  tell({ ...asks.rejection, retryAfterMs: at - now })
}

function tellLast({ asks: { rejection }, bucket, fitAt, tell }: AskedClient, now: number): void {
  tell({ ...rejection, retryAfterMs: Math.max(fitAt, bucket.promising.last) - now })
}

/** The client may have been told twice meanwhile. */
function remember(bucket: StoredBucket, promise: PromisedMoment, now: number): void {
  const promises = bucket.openPromises()
  const known = promises.of(promise.client, now)
  if (known !== undefined) promises.drop(known)
  if (promise.at > now || promise.booked !== undefined) promises.add(promise)
}

function newBooking(place: number): number {
  return place < MOST_PLACES ? MOST_PLACES * (1 + Math.floor(Math.random() * MOST_SERIALS)) + place : 0
}

/** A client as a whole number, the same in all instances. */
function numberOf(client: string): number {
  return (hashOf(client, 0) >>> 0) * 2 ** 20 + (hashOf(client, 1) >>> 12)
}
