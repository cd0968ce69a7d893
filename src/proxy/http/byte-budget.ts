/** One client may hold this part of the budget while others hold some, and half of it else. */
const SHARE = 1 / 16
const ALONE = 1 / 2

/** The buffered bytes, of each client and of all. Code that keeps bytes counts them here, and asks before it reads more. */
export class ByteBudget {
  /** Bytes that may be held in all. A reload may change it. */
  most: number
  used = 0
  readonly #clients = new Map<string, number>()
  /** The same for heads of requests. A client with no more than heads does not want the part of another. */
  readonly #heads = new Map<string, number>()

  constructor(most: number) {
    this.most = most
  }

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

  change(client: string, by: number): void {
    this.used += by
    add(this.#clients, client, by)
  }

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

export class HeldBytes {
  held = 0
  readonly #budget: ByteBudget
  readonly #client: string

  constructor(budget: ByteBudget, client: string) {
    this.#budget = budget
    this.#client = client
  }

  get hasRoom(): boolean {
    return this.#budget.room(this.#client) > 0
  }

  hold(bytes: number): void {
    this.#budget.change(this.#client, bytes - this.held)
    this.held = bytes
  }
}
