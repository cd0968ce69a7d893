/**
 * The adaptive rate of an upstream, as instances on one store share it. It is kept there as an override of its bucket, which has no other:
 * the rate, and in place of a capacity, which the bucket does not have, the number of falls and the phase. The last one who writes
 * counts. A fall that was overwritten by an older state is told once more (`AdaptiveLimit.heard`).
 */
import type { AdaptiveState } from '../../core/adaptive/adaptive-rate.js'
import type { Override } from '../../core/board.js'
import { ignore, when } from '../../core/maybe-promise.js'
import type { Store } from '../../core/store.js'
import { ADAPTIVE_KEY, type AdaptiveLimit } from './adaptive-limit.js'

const PHASES = ['doubling', 'climbing', 'draining'] as const

/** ms. Instances that start later find the rate of the last ones. */
const LIFE = 3_600_000

/** So many of its own states an instance may hear of late, and not take for news. */
const MOST_OWN = 32

export class SharedAdaptive {
  readonly #store: Pick<Store, 'board' | 'listen'>
  readonly #limits: () => Iterable<AdaptiveLimit>
  /** Those that this instance has told last and not heard of. The same state is news when another finds it later. */
  #told: string[] = []
  #stop: (() => void) | undefined

  /** @param limits those that this instance has now */
  constructor(store: Pick<Store, 'board' | 'listen'>, limits: () => Iterable<AdaptiveLimit>) {
    this.#store = store
    this.#limits = limits
  }

  /** Takes over what the others have found so far. Without an answer this instance begins as it would alone. */
  join(): void {
    this.#stop = this.#store.listen?.(news => {
      if (news.about === 'override') this.#heard(news.override)
    })
    const known = this.#store.board?.overrides() ?? []
    when(
      known,
      overrides => {
        for (const override of overrides) this.#heard(override)
      },
      ignore,
    )
  }

  close(): void {
    this.#stop?.()
  }

  /** Tells the others. */
  tell({ bucket: { name }, state }: AdaptiveLimit): void {
    const override: Override = {
      ...{ bucket: name, key: ADAPTIVE_KEY, endsIn: LIFE, rate: state.rate },
      capacity: PHASES.length * state.falls + PHASES.indexOf(state.phase),
    }
    this.#told = [...this.#told.slice(1 - MOST_OWN), textOf(override)]
    // Without the store each goes on by what it sees itself.
    when(this.#store.board?.setOverride(override) ?? false, ignore, ignore)
  }

  #heard(override: Override): void {
    const { bucket, rate, capacity } = override
    if (rate === undefined || capacity === undefined) return
    const own = this.#told.indexOf(textOf(override))
    if (own >= 0) {
      this.#told.splice(own, 1)
      return
    }
    for (const limit of this.#limits()) if (limit.bucket.name === bucket) limit.heard(stateOf(rate, capacity))
  }
}

function stateOf(rate: number, capacity: number): AdaptiveState {
  return { rate, phase: PHASES[capacity % PHASES.length]!, falls: Math.floor(capacity / PHASES.length) }
}

function textOf({ bucket, rate, capacity }: Override): string {
  return `${bucket} ${rate} ${capacity}`
}
