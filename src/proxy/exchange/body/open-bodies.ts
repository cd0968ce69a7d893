/** Clients with a body that is sent as it comes, and their requests that wait to be the next. */
export class OpenBodies {
  readonly #open = new Map<string, Set<() => void>>()

  /** How many clients have one. */
  get size(): number {
    return this.#open.size
  }

  /**
   * @param next called if it is this body's turn later
   * @returns false if the client has such a body already
   */
  take(client: string, next: () => void): boolean {
    const waiting = this.#open.get(client)
    if (waiting === undefined) this.#open.set(client, new Set())
    else waiting.add(next)
    return waiting === undefined
  }

  /** No longer waits. */
  leave(client: string, next: () => void): void {
    this.#open.get(client)?.delete(next)
  }

  /** The body has ended. The next one takes its place. */
  end(client: string): void {
    const waiting = this.#open.get(client)!
    const [next] = waiting
    if (next === undefined) this.#open.delete(client)
    else {
      waiting.delete(next)
      next()
    }
  }
}
