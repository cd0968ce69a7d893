/** One client may hold this part of the budget while others hold some, and half of it else. */
const SHARE = 1 / 16
const ALONE = 1 / 2

/**
 * The bytes that are buffered, of each client and of all together. Code that keeps bytes for later counts them here, and asks
 * before it reads more.
 */
export class ByteBudget {
  /** Bytes that may be held in all. A reload may change it. */
  most: number
  /** Bytes held now. */
  used = 0
  /** Bytes held by each client that holds any. */
  readonly #clients = new Map<string, number>()
  /** The same for heads of requests. A client with no more than heads does not want the part of another. */
  readonly #heads = new Map<string, number>()

  constructor(most: number) {
    this.most = most
  }

  /** How many more bytes a client may hold. */
  room(client: string): number {
    const held = this.#clients.get(client) ?? 0
    const isAlone = this.#clients.size === (held > 0 ? 1 : 0)
    return Math.min(this.most - this.used, this.most * (isAlone ? ALONE : SHARE) - held)
  }

  /** Whether nothing more may come from a client, not even what cannot be held back. */
  isFull(client: string): boolean {
    return this.used >= this.most || (this.#clients.get(client) ?? 0) >= this.most * ALONE
  }

  /** Whether a client holds so much that not even a head may come from it. One within its share may always send heads. */
  isOverfull(client: string): boolean {
    const held = (this.#clients.get(client) ?? 0) + (this.#heads.get(client) ?? 0)
    return held >= this.most * (this.used >= this.most ? SHARE : ALONE)
  }

  /** A client holds so many bytes more, or fewer. */
  change(client: string, by: number): void {
    this.used += by
    add(this.#clients, client, by)
  }

  /** As `change`, for heads of requests. */
  changeHeads(client: string, by: number): void {
    this.used += by
    add(this.#heads, client, by)
  }
}

function add(to: Map<string, number>, client: string, by: number): void {
  const held = (to.get(client) ?? 0) + by
  if (held > 0) to.set(client, held)
  else to.delete(client)
}

/** What one body, answer or connection holds of a budget. */
export class HeldBytes {
  /** Bytes. */
  held = 0
  readonly #budget: ByteBudget
  readonly #client: string

  /** @param client whose share it counts in */
  constructor(budget: ByteBudget, client: string) {
    this.#budget = budget
    this.#client = client
  }

  /** Whether more bytes may be held. */
  get hasRoom(): boolean {
    return this.#budget.room(this.#client) > 0
  }

  /** Tells how many bytes are held from now on. */
  hold(bytes: number): void {
    this.#budget.change(this.#client, bytes - this.held)
    this.held = bytes
  }
}

/** Most bytes of a body to read in search of a hang-up: about as much as the kernels hold. */
export const MOST_AHEAD = 4 * 1024 * 1024

/** Most turns of the event loop spent on reading ahead. A client may send one byte in each. */
export const MOST_TURNS = 256

/** Bytes. A client that sends fewer in a turn sends on: what the kernel has kept comes in larger pieces. */
export const FEW = 16 * 1024

/** After this many turns with so few bytes nothing more is expected soon. */
export const QUIET_TURNS = 3

/** Bytes of a body that are read before the upstream takes it. */
export const BODY_BUFFER = 64 * 1024
