/**
 * What instances on one store tell each other, and what they leave there for each other, beside the decisions of store.ts.
 *
 * News is fast and may be lost: who needs it all asks the store from time to time as well. News of one upstream, and of one
 * override, comes in the order in which the store took it. Durations are in ms and begin when the news arrives. They are
 * shortened by its time on the way as far as that is known, so that a late one does not revive what is over.
 */
import type { MaybePromise } from './maybe-promise.js'
import type { UpstreamState } from './upstream-state.js'

export type News =
  /** What holds for an upstream now, as `Store.exchange` answers it. */
  | { readonly about: 'upstream'; readonly name: string; readonly state: UpstreamState }
  /** Another instance has reset a bucket instance: what is held of it here means nothing any more. */
  | { readonly about: 'reset'; readonly bucket: string; readonly key: string }
  /** An override was set. With `endsIn` 0 it was ended. */
  | { readonly about: 'override'; readonly override: Override }

/** Other limits of one bucket instance, for a while. */
export interface Override {
  readonly bucket: string
  readonly key: string
  /** Cost units per ms. Absent: as configured. */
  readonly rate?: number
  /** Cost units. Absent: as configured. */
  readonly capacity?: number
  /** How much longer it lasts, in ms. */
  readonly endsIn: number
  /** The end as it was told, in ms since 1970: every instance shows the same. It is not measured by. */
  readonly until?: number
}

/** How many overrides a store keeps. */
export const MOST_OVERRIDES = 1_000

/**
 * What instances show of themselves, and after how long each disappears if it is not shown again, in ms: their present state,
 * and parts of their last hour, which is still asked for when the instance has gone.
 */
export const VIEW_LIFE = { present: 4_000, hour: 3_900_000 } as const

export type ViewKind = keyof typeof VIEW_LIFE

/** What one instance shows of itself. */
export interface View {
  /** Unique among the views of its kind. */
  readonly id: string
  readonly text: string
  /** How long ago it was shown, in ms. */
  readonly age: number
}

/** Each verb is one atomic step, on the store's clock. Rejects with `StoreError`; never hangs. */
export interface Board {
  /** Sets an override, or replaces it. False: there are `MOST_OVERRIDES` others. */
  setOverride(override: Override): MaybePromise<boolean>
  /** Ends an override before its time. False: there is none. */
  endOverride(bucket: string, key: string): MaybePromise<boolean>
  /** Those that have not ended. */
  overrides(): MaybePromise<readonly Override[]>
  /** Shows a text to all instances, in place of what was shown as `id` before. */
  show(kind: ViewKind, id: string, text: string): MaybePromise<void>
  /** What instances show, in no order. */
  views(kind: ViewKind): MaybePromise<readonly View[]>
  /** Keeps a secret for all instances, unless there is one already. Answers the one that is kept. */
  agreeOnSecret(proposed: string): MaybePromise<string>
}

/** Hands news to those who listen. */
export class Listeners {
  readonly #all = new Set<(news: News) => void>()

  get any(): boolean {
    return this.#all.size > 0
  }

  /** @returns how to stop */
  add(listener: (news: News) => void): () => void {
    // Each call is its own, also of one function.
    const own = (news: News): void => listener(news)
    this.#all.add(own)
    return () => void this.#all.delete(own)
  }

  tell(news: News): void {
    for (const listener of this.#all) listener(news)
  }
}
