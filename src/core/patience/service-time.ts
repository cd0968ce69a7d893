/**
 * How long an upstream takes to answer on one route: the 90th percentile of its last 100 answers. No client has more than a
 * tenth of them, so nobody makes it look slow to others. While these are too few, a client's own answers count for itself.
 */

/** Answers that count. */
const KEPT = 100

/** Answers of one client that count for others. */
const KEPT_OF_CLIENT = KEPT / 10

/** With fewer nothing is known. */
const LEAST = 20

/** Clients whose own answers are kept. */
const KEPT_CLIENTS = 256

/** The newest times of one client in ms, the oldest first. */
type Times = number[]

export class ServiceTime {
  /** The one that was answered last is the last. */
  readonly #clients = new Map<string, Times>()
  /** The last of them. */
  #latest: { readonly client: string; readonly times: Times } | undefined
  /** Of all clients. */
  #known = 0
  /** How many answers have come since it was looked at. */
  #news = 0
  #size = 0

  /** An answer took so long, in ms, from the release to its head. */
  add(client: string, ms: number): void {
    const times = this.#latest?.client === client ? this.#latest.times : this.#moveToEnd(client)
    times.push(ms)
    if (times.length > KEPT) times.shift()
    if (times.length <= KEPT_OF_CLIENT) this.#size += 1
    this.#news += 1
    if (this.#clients.size <= KEPT_CLIENTS) return
    for (const [oldest, dropped] of this.#clients) {
      this.#clients.delete(oldest)
      this.#size -= Math.min(KEPT_OF_CLIENT, dropped.length)
      return
    }
  }

  #moveToEnd(client: string): Times {
    const times = this.#clients.get(client) ?? []
    this.#clients.delete(client)
    this.#clients.set(client, times)
    this.#latest = { client, times }
    return times
  }

  /** In ms. 0: not known yet. */
  of(client: string): number {
    if (this.#size >= LEAST) return this.#ofAll()
    const own = this.#clients.get(client)
    return own === undefined || own.length < LEAST ? 0 : percentile(own)
  }

  /** In ms, as it counts for most clients. Undefined: not known yet. */
  get usual(): number | undefined {
    return this.#size >= LEAST ? this.#ofAll() : undefined
  }

  #ofAll(): number {
    if (this.#news * 10 < Math.min(this.#size, KEPT)) return this.#known
    this.#news = 0
    const newest = [...this.#clients.values()].reverse().flatMap(times => times.slice(-KEPT_OF_CLIENT))
    this.#known = percentile(newest.slice(0, KEPT))
    return this.#known
  }
}

function percentile(times: readonly number[]): number {
  const sorted = [...times].sort((a, b) => a - b)
  return sorted[Math.ceil(sorted.length * 0.9) - 1]!
}
