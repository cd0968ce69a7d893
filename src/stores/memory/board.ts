/** What instances leave for each other, in this process. core/board.ts says what each verb means. */
import {
  type Board,
  type Listeners,
  MOST_OVERRIDES,
  type Override,
  VIEW_LIFE,
  type ViewKind,
} from '../../core/board.js'
import type { Clock } from '../../core/clock.js'

export function createMemoryBoard({ now }: Pick<Clock, 'now'>, listeners: Listeners): Board {
  /** By bucket and key, each with its end in ms. */
  const overrides = new Map<string, { override: Override; end: number }>()
  /** By their ids, each with its time in ms. */
  const views: Record<ViewKind, Map<string, { text: string; at: number }>> = { present: new Map(), hour: new Map() }
  let secret: string | undefined
  const nameOf = (bucket: string, key: string): string => JSON.stringify([bucket, key])

  function forgetEnded(): void {
    for (const [name, { end }] of overrides) if (end <= now()) overrides.delete(name)
  }

  function forgetGone(kind: ViewKind): void {
    for (const [id, { at }] of views[kind]) if (now() - at >= VIEW_LIFE[kind]) views[kind].delete(id)
  }

  return {
    setOverride(override) {
      const name = nameOf(override.bucket, override.key)
      forgetEnded()
      if (overrides.size === MOST_OVERRIDES && !overrides.has(name)) return false
      overrides.set(name, { override, end: now() + override.endsIn })
      listeners.tell({ about: 'override', override })
      return true
    },

    endOverride(bucket, key) {
      forgetEnded()
      const isKnown = overrides.delete(nameOf(bucket, key))
      if (isKnown) listeners.tell({ about: 'override', override: { bucket, key, endsIn: 0 } })
      return isKnown
    },

    overrides() {
      forgetEnded()
      return Array.from(overrides.values(), ({ override, end }) => ({ ...override, endsIn: end - now() }))
    },

    show(kind, id, text) {
      forgetGone(kind)
      views[kind].set(id, { text, at: now() })
    },

    views(kind) {
      forgetGone(kind)
      return Array.from(views[kind], ([id, { text, at }]) => ({ id, text, age: now() - at }))
    },

    agreeOnSecret(proposed) {
      secret ??= proposed
      return secret
    },
  }
}
