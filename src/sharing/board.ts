/**
 * What instances on one store tell each other, and what they leave there for each other, beside the decisions of store.ts.
 *
 * News may be lost: who needs all of it also asks the store from time to time. News of one upstream, and of one override, comes
 * in the order in which the store took it. Durations are in ms from the arrival of the news. They are shortened by its time on
 * the way, as far as that is known.
 */
import type { MaybePromise } from '../core/maybe-promise.js'

export interface UpstreamState {
  /** How much longer it pauses. 0: no pause. */
  readonly pausedFor: number
  /** Cost units per ms that it allows. Undefined: it has not said. */
  readonly rate: number | undefined
  /** How much longer that rate holds. 0: there is none. */
  readonly rateFor: number
}

/** What waits for a bucket instance in one instance after a reset. Cost units, but for `waiting`. */
export interface Kept {
  /** What waited when it heard of the reset, and what it had admitted by then and not told the store. */
  readonly kept: number
  readonly unreported: number
  /** Requests that wait since, and what they cost: the first may have left. */
  readonly waiting: number
  readonly queued: number
}

export type News =
  | { readonly about: 'upstream'; readonly name: string; readonly state: UpstreamState }
  | { readonly about: 'reset'; readonly bucket: string; readonly key: string }
  /** The instance `from` has heard of a reset. */
  | {
      readonly about: 'kept'
      readonly from: string
      readonly bucket: string
      readonly key: string
      readonly kept: Kept
    }
  /** An override was set. With `endsIn` 0 it was ended. */
  | { readonly about: 'override'; readonly override: Override }

export interface Override {
  readonly bucket: string
  readonly key: string
  /** Cost units per ms. Absent: as configured. */
  readonly rate?: number
  /** Cost units. Absent: as configured. */
  readonly capacity?: number
  /** How much longer it lasts, in ms. */
  readonly endsIn: number
  /** When it ends, in ms since 1970. Only shown: nothing is timed by it. */
  readonly until?: number
}

export const MOST_OVERRIDES = 1_000
/** What instances show of themselves: their present state, and parts of their last hour. ms after which each disappears. */
export const VIEW_LIFE = { present: 4_000, hour: 3_900_000 } as const
export type ViewKind = keyof typeof VIEW_LIFE

export interface View {
  /** Unique among the views of its kind. */
  readonly id: string
  readonly text: string
  /** How long ago it was shown, in ms. */
  readonly age: number
}

/** Each verb is one atomic step. Rejects with `StoreError`; never hangs. */
export interface Board {
  /** Sets an override, or replaces it. False: there are `MOST_OVERRIDES` others. */
  setOverride(override: Override): MaybePromise<boolean>
  /** Ends an override before its time. False: there is none. */
  endOverride(bucket: string, key: string): MaybePromise<boolean>
  overrides(): MaybePromise<readonly Override[]>
  /** Shows a text to all instances, in place of what was shown as `id` before. */
  show(kind: ViewKind, id: string, text: string): MaybePromise<void>
  views(kind: ViewKind): MaybePromise<readonly View[]>
  /** Tells all who listen, and keeps nothing. */
  tell(news: News & { readonly about: 'kept' }): MaybePromise<void>
  /** Keeps a secret for all instances, unless there is one already. Answers the one that is kept. */
  agreeOnSecret(proposed: string): MaybePromise<string>
}

export class Listeners {
  readonly #all = new Set<(news: News) => void>()

  get any(): boolean {
    return this.#all.size > 0
  }

  add(listener: (news: News) => void): () => void {
    // One function may listen twice.
    const own = (news: News): void => listener(news)
    this.#all.add(own)
    return () => void this.#all.delete(own)
  }

  tell(news: News): void {
    for (const listener of this.#all) listener(news)
  }
}
