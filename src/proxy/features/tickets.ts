/**
 * Tickets of clients that have booked (core/admission/appointments.ts): the number of the booking, and a signature.
 *
 * What a ticket is bound to is not in it but signed with it: route, client and cost. So nothing of it can be changed, and nobody else
 * can use it. Whether it has been used is known to the bucket, which forgets a booking that was claimed. The key is made at
 * start and never leaves the process, as the bookings do not either.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { RejectedArrival } from '../../core/admission/room-source.js'
import type { Cancel, Clock } from '../../core/clock.js'
import type { Cost, SharedBucket } from '../../core/queue/lane.js'
import type { Shaper } from '../../core/shaper.js'
import type { Store } from '../../sharing/store.js'
import type { Route } from '../routing/route.js'

export const TICKET_HEADER = 'Shaper-Ticket'
const FORM = /^(\d{1,15})\.([A-Za-z0-9_-]{43})$/

interface TicketHolder {
  readonly route: string
  readonly client: string
  readonly cost: Cost
}

export class Tickets {
  /** Of the configuration. The first one signs, all are accepted. */
  #configured: readonly string[] = []
  /** Made at start: the present one, and the one before it. */
  #made: readonly string[] = [randomBytes(32).toString('base64url')]

  /** Uses these keys from now on. Undefined: the one that was made. */
  configure(keys: readonly string[] = []): void {
    this.#configured = keys
  }

  get isConfigured(): boolean {
    return this.#configured.length > 0
  }

  /** The key that was made, here or by another instance. */
  get made(): string {
    return this.#made[0]!
  }

  /** All instances have this key. Tickets of the one before it are accepted still. */
  agree(key: string): void {
    if (key !== this.made) this.#made = [key, this.made]
  }

  issue(booking: number, holder: TicketHolder): string {
    return `${booking}.${sign(booking, holder, this.#keys[0]!).toString('base64url')}`
  }

  /** The number of a booking. Undefined: there is no ticket, or it is not one of ours for this holder. */
  read(text: string | undefined, holder: TicketHolder): number | undefined {
    const [, number, signature] = FORM.exec(text ?? '') ?? []
    if (number === undefined || signature === undefined) return undefined
    const booking = Number(number)
    // 43 characters are 32 bytes, as many as a signature has.
    const given = Buffer.from(signature, 'base64url')
    return this.#keys.some(key => timingSafeEqual(given, sign(booking, holder, key))) ? booking : undefined
  }

  get #keys(): readonly string[] {
    return this.isConfigured ? this.#configured : this.#made
  }
}

function sign(booking: number, { route, client, cost }: TicketHolder, key: string): Buffer {
  const bound = JSON.stringify([booking, route, client, cost.costs ?? cost.cost])
  return createHmac('sha256', key).update(bound).digest()
}

/**
 * Tells a rejection as its client is to be told of it: clients that are rejected at the same moment are told different ones. It is told at
 * once, or later where a store is asked.
 */
export function tellPromised(shaper: Shaper, { buckets, settings }: Route, rejected: RejectedArrival): void {
  const { arrival, rejection, tell } = rejected
  const isAlone = ({ limits }: SharedBucket): boolean =>
    buckets.find(({ settings }) => settings.name === limits.name)?.ofOneClient === true
  // There is nobody to keep it apart from, and a flood from many addresses need not be remembered.
  if (arrival.appointment === undefined && rejection.buckets.every(isAlone)) tell(rejection)
  // Who is metered waits for nothing.
  else shaper.tell({ ...rejected, atOnce: settings.mode === 'meter' })
}

/** ms between two questions. */
const ASK_INTERVAL = 10_000

interface SharedTicketKeyOptions {
  readonly clock: Clock
  readonly store: Pick<Store, 'board'>
  readonly tickets: Tickets
  isUsed(): boolean
}

/**
 * The key of tickets that instances on one store make: the first one proposes its own, and the others take that over. They ask again
 * from time to time. So a store that was away, or that has lost its data, has the same key again.
 */
export class SharedTicketKey {
  readonly #options: SharedTicketKeyOptions
  #cancel: Cancel | undefined
  #isClosed = false

  constructor(options: SharedTicketKeyOptions) {
    this.#options = options
  }

  /** Asks now, and again later. Resolves after the first answer. */
  async join(): Promise<void> {
    const { clock } = this.#options
    await this.ask()
    if (!this.#isClosed) this.#cancel = clock.at(clock.now() + ASK_INTERVAL, () => void this.join())
  }

  async ask(): Promise<void> {
    const { store, tickets, isUsed } = this.#options
    if (tickets.isConfigured || !isUsed()) return
    try {
      const key = await store.board?.agreeOnSecret(tickets.made)
      if (key !== undefined) tickets.agree(key)
    } catch {
      // The store is away. The key that was made here signs meanwhile.
    }
  }

  close(): void {
    this.#isClosed = true
    this.#cancel?.()
  }
}
