/**
 * Tickets of clients that have booked (core/admission/appointments.ts): the number of the booking, and a signature.
 *
 * What a ticket is bound to is not in it but signed with it: route, client and cost. So nothing of it can be changed, and nobody else
 * can use it. Whether it has been used is known to the bucket, which forgets a booking that was claimed. The key is made at
 * start and never leaves the process, as the bookings do not either.
 */

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import type { Cost } from '../../../core/queue/lane.js'

export const TICKET_HEADER = 'Shaper-Ticket'

const FORM = /^(\d{1,15})\.([A-Za-z0-9_-]{43})$/

/** Whom a ticket is for. */
export interface TicketHolder {
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

  /** Whether the configuration has keys. */
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
