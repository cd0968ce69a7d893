/**
 * Room that is not in the buckets here: it is reserved where instances share it (src/sharing/shared-room.ts).
 */
import type { Arrival, Rejection, Ticket } from '../queue/lane.js'

/** Only in `shape` it lines up. */
export type Mode = 'shape' | 'meter' | 'off'

/** A newcomer that asks for room. */
export interface RoomRequest {
  readonly arrival: Arrival
  readonly mode: Mode
  /** ms */
  readonly maxWait: number
  /** ms */
  readonly arrivedAt: number
}

/**
 * What a newcomer gets:
 *
 * - room, so it lines up, or passes if it is metered
 * - `released`: it has passed with its room
 * - `here`: the buckets here decide
 * - `past`: it waits for its gate only
 * - a rejection
 */
export type Reserved = ReservedRoom | 'released' | 'here' | 'past' | Rejection

export interface ReservedRoom {
  /** ms that a free slot may take to arrive. */
  readonly patience: number
  /** It has lined up. A slot may have been claimed with its room. */
  offer(ticket: Ticket): void
  /** It has lined up, and has had its turn if it is the first. */
  linedUp(): void
  giveBack(): void
}

/** A rejection, and what to do with it once it is known what its client is told. */
export interface RejectedArrival {
  /** It waits for nothing: it is told at once, as without a store, unless it books. */
  readonly atOnce?: boolean
  readonly arrival: Arrival
  readonly rejection: Rejection
  /** ms */
  readonly maxWait: number
  tell(rejection: Rejection): void
}

export interface RoomSource {
  /** `then` is called once, at once or when it is known. */
  reserve(newcomer: RoomRequest, then: (reserved: Reserved) => void): void
  /** Tells a rejected client when to come back. `alone` tells it what this instance knows, as one of so many. */
  promise(rejected: RejectedArrival, alone: (instances: number) => void): void
}
