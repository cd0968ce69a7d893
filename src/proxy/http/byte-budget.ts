/**
 * The bytes that exchanges hold in memory, each and all together. Code that keeps bytes of a body for later counts them here.
 * Reading ahead asks here first whether there is room.
 */
export class ByteBudget {
  /** Bytes that may be held in all. */
  readonly most: number
  /** Bytes held now. */
  used = 0

  constructor(most: number) {
    this.most = most
  }
}

/** What one exchange holds of a budget. */
export class HeldBytes {
  /** Bytes. */
  held = 0
  readonly #budget: ByteBudget
  readonly #most: number

  /** @param most bytes that this exchange may hold */
  constructor(budget: ByteBudget, most: number) {
    this.#budget = budget
    this.#most = most
  }

  /** Whether so many more bytes may be held. */
  hasRoom(bytes: number): boolean {
    return this.held + bytes <= this.#most && this.#budget.used + bytes <= this.#budget.most
  }

  /** Tells how many bytes are held from now on. */
  hold(bytes: number): void {
    this.#budget.used += bytes - this.held
    this.held = bytes
  }
}

/** Most bytes of a body to read in search of a hang-up: about as much as the kernels hold. */
export const MOST_AHEAD = 4 * 1024 * 1024

/** Most bytes that all bodies together may hold. Above it a body is read up to `BODY_BUFFER` only. */
export const ALL_AHEAD = 32 * 1024 * 1024

/** Most turns of the event loop spent on reading ahead. A client may send one byte in each. */
export const MOST_TURNS = 256

/** After this many turns without a byte nothing more is expected soon. */
export const QUIET_TURNS = 3

/** Bytes of a body that are read before the upstream takes it. */
export const BODY_BUFFER = 64 * 1024
