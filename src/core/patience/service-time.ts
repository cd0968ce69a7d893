/**
 * How long an upstream takes to answer on one route: the 90th percentile of its last 100 answers. No client has more than a
 * tenth of them, so nobody makes it look slow to others. Nine clients or fewer have more than that each. So there it is the
 * least that it would be without one of them. While answers are too few, a client's own count for itself.
 *
 * Where answers take longer than clients wait nothing is sent, and so nobody would notice that they have become faster. So
 * one request may be sent to look, if there was no answer for a while.
 */

const KEPT = 100
/** Answers of one client that count for others. */
const KEPT_OF_CLIENT = KEPT / 10
/** With fewer nothing is known. */
const LEAST = 20
/** So many clients have a tenth each. */
const SHARES = KEPT / KEPT_OF_CLIENT
const KEPT_CLIENTS = 256
const LOOK_AFTER = 10_000
/** The newest times of one client in ms, the oldest first. */
type Times = number[]

export class ServiceTime {
  readonly #clients = new Map<string, Times>()
  #latest: { readonly client: string; readonly times: Times } | undefined
  #known = 0
  /** How many answers have come since it was looked at. */
  #news = 0
  #size = 0
  /** ms. From then on one may look. */
  #lookAt = 0
  /** What `hasGrown` has seen last. */
  #seen = 0

  /** An answer took so long, in ms, from the release to its head. */
  add(client: string, ms: number, now: number): void {
    this.#lookAt = now + LOOK_AFTER
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

  untilLook(now: number): number {
    return Math.max(0, this.#lookAt - now)
  }

  /** False: it is too early. Else the next one may look later. */
  look(now: number): boolean {
    if (now < this.#lookAt) return false
    this.#lookAt = now + LOOK_AFTER
    return true
  }

  forget(): void {
    this.#clients.clear()
    this.#latest = undefined
    this.#known = 0
    this.#news = 0
    this.#size = 0
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

  /** Whether it is longer for most clients than at the last call. */
  hasGrown(): boolean {
    const before = this.#seen
    this.#seen = this.usual ?? 0
    return this.#seen > before
  }

  #ofAll(): number {
    if (this.#news * 10 < Math.min(this.#size, KEPT)) return this.#known
    this.#news = 0
    const newest = [...this.#clients.values()].reverse().map(times => times.slice(-KEPT_OF_CLIENT))
    this.#known = percentile(newest.flat().slice(0, KEPT))
    if (newest.length < SHARES) {
      for (const own of newest) {
        const others = newest.filter(times => times !== own).flat()
        if (others.length >= LEAST / 2) this.#known = Math.min(this.#known, percentile(others))
      }
    }
    return this.#known
  }
}

function percentile(times: readonly number[]): number {
  const sorted = [...times].sort((a, b) => a - b)
  return sorted[Math.ceil(sorted.length * 0.9) - 1]!
}
