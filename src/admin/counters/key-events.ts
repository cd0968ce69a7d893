/** The requests of single keys: when they came, left and were rejected, and their cost. */
import type { BucketSnapshot } from '../snapshot/snapshot.js'
import { RecentTimes } from './recent-times.js'

/** Those of one key. Costs are counted since somebody began to watch it. */
export class KeyEvents {
  offered = 0
  released = 0
  rejected = 0
  readonly #arrivals = new RecentTimes()
  readonly #releases = new RecentTimes()
  readonly #rejections = new RecentTimes()

  /** @param at ms since 1970 */
  arrived(cost: number, at: number): void {
    this.offered += cost
    this.#arrivals.add(at)
  }

  sent(cost: number, at: number): void {
    this.released += cost
    this.#releases.add(at)
  }

  turnedAway(cost: number, at: number): void {
    this.rejected += cost
    this.#rejections.add(at)
  }

  /** As one process tells them. */
  focus(key: string): NonNullable<BucketSnapshot['focus']> {
    return {
      key,
      watchers: 1,
      arrivals: this.#arrivals.list(),
      releases: this.#releases.list(),
      rejections: this.#rejections.list(),
    }
  }
}

/** More than the admin server has streams. */
const MOST_WATCHED = 32

/** ms. A key is watched for this long after the last stream has asked for it. The slowest stream asks every 10 s. */
const UNASKED = 30_000

interface WatchedKey {
  readonly bucket: string
  readonly key: string
  readonly events: KeyEvents
  askedAt: number
}

/** The keys that users look at. */
export class WatchedKeys {
  #watched: WatchedKey[] = []

  /** What has happened to a key since it was asked for first. @param now monotonic ms */
  ask(bucket: string, key: string, now: number): KeyEvents {
    this.#watched = this.#watched.filter(({ askedAt }) => now - askedAt < UNASKED)
    let found = this.#watched.find(each => each.bucket === bucket && each.key === key)
    if (found === undefined) {
      found = { bucket, key, events: new KeyEvents(), askedAt: now }
      this.#watched.push(found)
      if (this.#watched.length > MOST_WATCHED) this.#watched.sort((a, b) => b.askedAt - a.askedAt).pop()
    }
    found.askedAt = now
    return found.events
  }

  /** Undefined: nobody watches it. */
  find(bucket: string, key: string): KeyEvents | undefined {
    for (const each of this.#watched) if (each.key === key && each.bucket === bucket) return each.events
    return undefined
  }
}
